"""The package as a whole: what its import costs and brings along, its re-exports, and the direction of its imports."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import max_weights

PACKAGE = Path(max_weights.__file__).parent
LAZY_PACKAGES = [
    "max_weights",
    "max_weights.graph",
    "max_weights.graph.ops",
    "max_weights.graph.weights",
    "max_weights.nn",
]
OPS = {f"graph.ops.{path.stem}" for path in (PACKAGE / "graph" / "ops").glob("[a-z]*.py")}
# Lower may not import higher. What is not listed stands on top and may import everything.
LAYERS = [
    {"_lazy", "errors", "graph.record"},
    {"dtype", "driver.device", "driver.tensor"},
    {"_core"},
    {"driver.virtual", "driver.doors", "driver", "graph.dim", "graph.device", "graph.quantization"},
    {"graph.shape", "graph.place"},
    {"graph.pieces"},
    {"graph.shape_only", "graph.sharding_rules"},
    {"graph.sharding"},
    {"graph.type", "graph.stack", "graph.promote", "graph.infer", "graph.listing"},
    # Values have operators, and operations take values: these belong together.
    {"graph.operators", "graph.value", "graph.ops", *OPS},
    {"graph.weights.weight_data", "graph.weights.format"},
    {"graph.shard_data"},
    {"graph.weight", "graph.weight_shard"},
    {"graph.weights.declared"},
    {"graph.graph"},
    {"graph.weights.lazy_cast"},
    {"graph.weights.hub"},
    {"graph.weights.protocol", "graph.weights.allocate", "graph.weights.load"},
    {"blocks"},
    {"graph.weights", "graph"},
    {"nn.hooks", "nn.near_names"},
    {"nn.walk", "nn.load_report"},
    {"nn.places", "nn.named_weights", "nn.values", "nn.plain", "nn.census"},
    {"nn.convert", "nn.placement", "nn.load_state", "nn.tree", "nn.summary"},
    {"nn.load_file"},
    {"nn.module"},
    {"nn.layer_list", "nn.layer_v2"},
    {"nn.sequential"},
    {"nn.layer", "nn"},
    {"pipelines.nn.layer"},
    {"pipelines.nn", "pipelines"},
]
FRAMEWORKS = {"numpy", "torch", "jax", "ml_dtypes", "rich", "typer", "safetensors"}


def modules() -> dict[str, ast.Module]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text())
    return found


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imports(node: ast.AST, only_at_import: bool) -> set[str]:
    """The modules that a tree imports, those for type checkers left out."""
    found: set[str] = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            found |= {alias.name for alias in child.names}
        elif isinstance(child, ast.ImportFrom):
            found.add(child.module or "")
        elif is_type_checking(child) or (only_at_import and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)):
            continue
        else:
            found |= imports(child, only_at_import)
    return found


def test_import_brings_no_framework_along() -> None:
    script = f"import sys, max_weights; print(sorted({FRAMEWORKS!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_listing_a_file_brings_no_framework_along(models: Path) -> None:
    script = f"""
import sys, max_weights
weights = max_weights.load_weights({str(models / "minilm.safetensors")!r})
weights.infos(), repr(weights), weights.pooler.dense.bias.data()
print(sorted({FRAMEWORKS!r} & set(sys.modules)))"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", LAZY_PACKAGES)
def test_lazy_names_are_those_that_type_checkers_see(name: str) -> None:
    package = importlib.import_module(name)
    tree = modules()[name.removeprefix("max_weights").lstrip(".")]
    block = next(node for node in tree.body if is_type_checking(node))
    declared = {
        alias.name: node.module for node in ast.walk(block) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert sorted(declared) == sorted(package.__all__)
    assert set(package.__all__) <= set(dir(package))
    for exported, home in declared.items():
        value = getattr(package, exported)
        module = importlib.import_module(str(home))
        assert value is getattr(module, exported, None) or value is importlib.import_module(f"{home}.{exported}")
    with pytest.raises(AttributeError, match="no_such_name"):
        package.no_such_name  # noqa: B018


def test_imports_run_one_way() -> None:
    rank = {name: i for i, layer in enumerate(LAYERS) for name in layer}
    for name, tree in modules().items():
        for imported in imports(tree, only_at_import=False):
            if imported.startswith("max_weights."):
                target = imported.removeprefix("max_weights.")
                assert rank.get(target, -1) <= rank.get(name, len(LAYERS)), (
                    f"{name} imports {target}, which stands above it"
                )


def test_frameworks_are_imported_inside_functions_or_in_their_own_module() -> None:
    for name, tree in modules().items():
        allowed = {"rich", "typer"} if name.startswith("cli") else {name}
        tops = {imported.split(".")[0] for imported in imports(tree, only_at_import=True)}
        assert not (tops & FRAMEWORKS) - allowed, name


def test_no_source_file_is_longer_than_600_lines() -> None:
    root = PACKAGE.parents[1]
    sources = [
        path
        for folder in ("src", "crates", "python", "tests", "benches", "tools")
        for path in (root / folder).rglob("*")
    ]
    for path in sources:
        if path.suffix in {".rs", ".py", ".pyi"} and "grids" not in path.name and "target" not in path.parts:
            assert len(path.read_text().splitlines()) <= 600, path
