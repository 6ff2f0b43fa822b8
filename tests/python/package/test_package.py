"""The whole package: the cost of its import, the imported modules, its re-exports, and the direction of its imports."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import max_weights
import surface
from refusals import refuses

PACKAGE = Path(max_weights.__file__).parent
# Modules of a framework with other names, or below others.
ENTRY_POINTS = {
    "safetensors.flax": {"jax", "numpy"},
    "safetensors.numpy": {"numpy"},
    "safetensors.torch": {"numpy", "torch"},
}
FRAMEWORKS = {"numpy", "torch", "jax", "ml_dtypes", "safetensors"}
# The Python modules of the command line.
COMMAND_LINE = {"max_weights", "max_weights.__main__", "max_weights._core", "max_weights._facade"}


def modules() -> dict[str, ast.Module]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text())
    return found


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imports(node: ast.AST, only_at_import: bool) -> set[str]:
    """The modules that a syntax tree imports, except for type checkers."""
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
max_weights.infos(weights), repr(weights), weights.pooler.dense.bias.data()
print(sorted({FRAMEWORKS!r} & set(sys.modules)))"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_first_load_imports_no_tables_of_layouts_and_parts(models: Path) -> None:
    script = f"""
import sys, max_weights
max_weights.load_weights({str(models / "minilm.safetensors")!r}).load(dtype="float16", copy=True)
print(sorted(name for name in sys.modules if name.startswith(("max_weights.sharding", "max_weights.conversion"))))"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["ls"], ["versions"]])
def test_the_command_line_imports_nothing_but_the_core(models: Path, arguments: list[str]) -> None:
    script = """
import sys
before = set(sys.modules)
from max_weights.__main__ import main
status = main()
brought = set(sys.modules) - before
print(sorted({name for name in brought if not name.startswith("encodings")}), file=sys.stderr)
sys.exit(status)"""
    paths = [str(models / "minilm.safetensors")] if arguments == ["ls"] else []
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments, *paths], capture_output=True, encoding="utf-8", check=True
    )
    brought = set(ast.literal_eval(done.stderr.splitlines()[-1]))
    ours = {name for name in brought if name.split(".")[0] == "max_weights"}
    assert ours == COMMAND_LINE
    assert {name.split(".")[0] for name in brought} - {"max_weights"} <= sys.stdlib_module_names


def test_numpy_is_the_only_dependency() -> None:
    project = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text())["project"]
    assert [re.split(r"[<>=!~ ]", requested)[0] for requested in project["dependencies"]] == ["numpy"]
    assert project["scripts"] == {"max-weights": "max_weights.__main__:main"}


def test_names_are_imported_when_they_are_first_used() -> None:
    script = """
import sys, max_weights
assert [name for name in sys.modules if name.startswith("max_weights.")] == ["max_weights._facade"]
for name in max_weights.__all__:
    getattr(max_weights, name), max_weights.__dict__[name]"""
    subprocess.run([sys.executable, "-c", script], check=True)
    with refuses(AttributeError):
        max_weights.no_such_name  # noqa: B018


def test_what_follows_from_the_lists_of_names_is_written() -> None:
    assert [path for path, text in surface.written().items() if path.read_text() != text] == []  # tools/surface.py


def test_frameworks_are_imported_inside_functions_or_in_their_own_module() -> None:
    for name, tree in modules().items():
        allowed = ENTRY_POINTS.get(name, {name.split(".")[0]})
        if name.startswith("integrations"):  # plug-ins, each imported by or with its library
            allowed = FRAMEWORKS
        if name.startswith("_ranks."):  # the exchange over torch.distributed, imported where a group is given
            allowed = {"torch"}
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


def test_nothing_of_python_runs_when_an_object_goes() -> None:
    """Python may lose a Ctrl-C that comes meanwhile; the native code has to end."""
    for name, module in modules().items():
        defined = {node.name for node in ast.walk(module) if isinstance(node, ast.FunctionDef)}
        used = {node.attr for node in ast.walk(module) if isinstance(node, ast.Attribute)}
        assert not {"__del__", "finalize"} & (defined | used), name
