"""Generate code from the lists of public names: `python tools/surface.py`. A test fails if the output is out of date.

The imports of `python/max_weights/__init__.py`, and of the other packages in LAZY, are the only lists of names.
`__all__` and the table of lazy imports are generated from them. The modules of MAX's dotted paths are generated from
the table below.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1] / "python" / "max_weights"

_DEVICES = """CPU Accelerator Device DeviceSpec accelerator_api accelerator_count devices_exist is_virtual_device_mode
    load_devices scan_available_devices virtual_devices"""
_LAYERS = {
    "nn._base_layer": "Layer add_layer_hook clear_hooks",
    "nn._layer_v2": "LayerV2",
    "nn._module": "LayerList MissingLayer Module Shardable recursive_named_layers",
}
# The dotted paths of MAX, each with its source modules and their names: all public names if none are given, and
# `old=new` for another name. The module with advice on names of MAX that do not exist here is `?`.
PATHS: dict[str, dict[str, str]] = {
    "driver": {"_buffer": "Buffer DLPackArray Buffer=Tensor", "_core": "__version__", "_devices": _DEVICES},
    "driver.tensor": {"_buffer": "DLPackArray"},
    "dtype": {"_dtype": ""},
    "graph.buffer_utils": {"graph._buffer_utils": ""},
    "graph.dim": {"_dim": "AlgebraicDim Dim DimLike StaticDim SymbolicDim"},
    "graph.quantization": {"_quantization": "BlockParameters QuantizationConfig QuantizationEncoding"},
    "graph.shape": {"_shape": "Shape ShapeLike"},
    "graph.type": {"_devices": "DeviceRef", "_shape": "Shape", "graph._type": ""},
    "graph.value": {"graph._value": "BufferValue TensorValue TensorValueLike Value"},
    "graph.weight": {
        "graph._weight": "Weight",
        "sharding._functions": "",
        "sharding._rules": "Segment",
        "sharding._strategies": "ShardingStrategy",
    },
    "graph.weights": {
        "_weight_data": "WeightData",
        "_weights": "RESERVED GGUFWeights PytorchWeights SafetensorWeights WeightsAdapter load_weights",
        "_weights_format": "WeightsFormat weights_format",
        "_weights_protocol": "Weights",
        "?": """_unsupported import unsupported_names:,
    RandomWeights="Module.state_dict() gives zeros, and load_state_dict() takes random arrays of NumPy",
""",
    },
    "graph.weights.format": {"_weights_format": "WeightsFormat weights_format"},
    "graph.weights.load": {"_weights": "load_weights"},
    "graph.weights.weights": {
        "_shape": "Shape ShapeLike",
        "_weight_data": "WeightData",
        "_weights": "WeightsAdapter",
        "_weights_protocol": "Weights",
    },
    "nn.activation": {"nn._linear": "Activation activation_function_from_name clamp"},
    "nn.attention": {"nn._attention": "", "?": "nn._unsupported_layers import unsupported_layers"},
    "nn.conv": {"nn._conv": "", "?": "nn._unsupported_layers import unsupported_layers"},
    "nn.embedding": {"nn._linear": "Embedding", "?": "nn._unsupported_layers import unsupported_layers"},
    "nn.hooks": {
        "nn._base_layer": "LayerHook add_layer_hook clear_hooks",
        "nn._print_hook": "PrintHook",
    },
    "nn.hooks.print_hook": {"nn._print_hook": "PrintHook"},
    "nn.identity": {"nn._linear": "Identity"},
    "nn.layer": _LAYERS,
    "nn.layer.layer": _LAYERS,
    "nn.linear": {
        "nn._linear": "Linear MLP require_no_quant_config",
        "?": "nn._unsupported_layers import unsupported_layers",
    },
    "nn.norm": {"nn._norm": "", "?": "nn._unsupported_layers import unsupported_layers"},
    "nn.quant_config": {"?": "nn._unsupported_layers import unsupported_layers"},
    "nn.rotary_embedding": {"nn._rotary_embedding": "", "?": "nn._unsupported_layers import unsupported_layers"},
    "nn.sequential": {"nn._module": "Sequential"},
    "pipelines": {},
    "pipelines.nn": _LAYERS,
    "pipelines.nn.layer": _LAYERS,
}
REFERENCE = PACKAGE.parents[1] / "docs" / "reference"
# The reference page of a module's names that `max_weights` or `max_weights.types` exports, and of a public module.
PAGES = {
    "index": "_core _fingerprint_cache _versions",
    "weights": """_benching _checkpoints _fingerprint _fingerprint_record _lazy _load_request _loading _planning
        _progress _quantized_weights _read_options _remote _renaming _rows _selection _streaming _weight_data
        _weights _weights_format _weights_protocol conversion delta remote types""",
    "tensors": "_buffer _devices _dtype _quantization",
    "saving": "_resharding _saving _saving_gguf",
    "frameworks": "_load_report _torch_verbs jax numpy torch",
    "dropin": "_dropin integrations safetensors",
    "validation": "_checking _difference _finding _result _weight_statistics tasks",
    "sharding": "sharding",
    "modules": "nn",
    "graph": "engine graph",
    "errors": "errors",
    "max_paths": "driver dtype",
}
LAZY = ("", "integrations", "nn")
"""The packages with lazily imported names."""
_INDENTED: Any = {"initial_indent": "    ", "subsequent_indent": "    "}
_MARK = "# Written by tools/surface.py from the imports above: run it after each change of them.\n"


def file_of(path: str) -> Path:
    """Return the file of a dotted path of MAX."""
    place = PACKAGE.joinpath(*path.split("."))
    return place / "__init__.py" if has_more(path) else place.with_suffix(".py")


def has_more(path: str) -> bool:
    """Whether a path has subpaths."""
    return any(other.startswith(f"{path}.") for other in PATHS)


def all_of(module: str) -> list[str]:
    """Return the `__all__` that a module states."""
    tree = ast.parse(PACKAGE.joinpath(*module.split(".")).with_suffix(".py").read_text())
    stated = (
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node).startswith("__all__")
    )
    return list(ast.literal_eval(next(stated)))


def filled(start: str, words: list[str], brackets: str) -> str:
    """Return words in lines of 120 characters, between brackets; an import that fits in one line has no brackets."""
    opened, closed = brackets[0], brackets[1]
    line = f"{start}{', '.join(words)}" if opened == "(" else f"{start}{opened}{', '.join(words)}{closed}"
    if len(line) <= 120:
        return f"{line}\n"
    body = textwrap.fill(f"{', '.join(words)},", 120, **_INDENTED)
    return f"{start}{opened}\n{body}\n{closed}\n"


def facade(path: str) -> str:
    """Return the text of the module of a dotted path of MAX."""
    homes = dict(PATHS[path])
    advice = homes.pop("?", "_unsupported import unsupported_names" if has_more(path) else "")
    exported: list[str] = []
    imports = ""
    for home, names in sorted(homes.items()):
        pairs = [name.partition("=")[::2] for name in names.split() or all_of(home)]
        exported += [new or old for old, new in pairs]
        imports += filled(
            f"from max_weights.{home} import ", [f"{old} as {new}" if new else old for old, new in sorted(pairs)], "()"
        )
    after = ""
    if advice:
        module, _, arguments = advice.partition(":")
        imports += f"from max_weights.{module} as _unsupported\n"
        after = f"\n__getattr__ = _unsupported(__name__{arguments})\n"
    listed = filled("__all__ = ", [f'"{name}"' for name in sorted(exported, key=by_kind)], "[]")
    text = f'# fmt: off\n# ruff: noqa: I001, RUF100\n"""The dotted path `max.{path}` of MAX."""\n'
    return text + (f"\n{imports}" if imports else "") + (f"\n{listed}" if exported else "") + after


def by_kind(name: str) -> tuple[bool, bool, str]:
    """Return ruff's sort key of a name: constants, classes, others."""
    return not name.isupper(), not name[:1].isupper(), name


def lists_of(source: str) -> str:
    """Return an `__init__.py` with `__all__` and the table of homes that follow from its imports."""
    before, _, rest = source.partition(_MARK)
    _, _, after = rest.partition("# fmt: on\n")
    block = next(node for node in ast.parse(before).body if isinstance(node, ast.If))
    homes: dict[str, list[str]] = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        assert node.module
        if node.module == "collections.abc":
            continue
        homes.setdefault(node.module.removeprefix("max_weights").removeprefix("."), []).extend(
            alias.name for alias in node.names
        )
    names = [f'"{name}"' for name in sorted((name for there in homes.values() for name in there), key=by_kind)]
    rows = "".join(
        textwrap.fill(f'"{home}": {quote}{" ".join(sorted(there))}{quote},', 120, **_INDENTED) + "\n"
        for home, there in sorted(homes.items())
        for quote in ['"' if len(" ".join(there)) + len(home) < 100 else '"' * 3]
    )
    return f"{before}{_MARK}# fmt: off\n{filled('__all__ = ', names, '[]')}_NAMES = {{\n{rows}}}\n# fmt: on\n{after}"


def homes_of(module: str) -> dict[str, str]:
    """Return the module of each name that a module imports; for the package, also its submodules."""
    block: ast.AST = ast.parse((PACKAGE / module).read_text())
    return {
        alias.name: (node.module or "").removeprefix("max_weights").removeprefix(".") or alias.name
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("max_weights")
        for alias in node.names
        if not (alias.asname or alias.name).startswith("_") or alias.name == "__version__"
    }


def reference() -> dict[Path, str]:
    """Return the pages of the reference, with the names that follow from the lists."""
    page_of = {home: page for page, homes in PAGES.items() for home in homes.split()}
    listed = {"max_weights": homes_of("__init__.py"), "max_weights.types": homes_of("types.py")}
    pages = {}
    for page in PAGES:
        text = (REFERENCE / f"{page}.md").read_text()
        for module, homes in listed.items():
            own = sorted(name for name, home in homes.items() if home.startswith("_") and page_of[home] == page)
            if module == "max_weights.types":
                own = [name for name in own if name not in listed["max_weights"]]
            text = re.sub(rf"(?m)^(::: {module}\n    options:\n      members: ).*$", rf"\1[{', '.join(own)}]", text)
        if page == "index":
            text = re.sub(r"(?ms)^\| names of .*?(?=\n\n)", table(page_of, listed["max_weights"]), text)
        pages[REFERENCE / f"{page}.md"] = text
    return pages


def shown(home: str) -> str:
    """Return below which module the reference shows the names of a module."""
    return "" if home.startswith("_") else f"{home}."


def table(page_of: dict[str, str], homes: dict[str, str]) -> str:
    """Return the table of the names of `max_weights`, and their pages."""
    rows = ["| names of `max_weights` | page |", "|---|---|"]
    for page in PAGES:
        names = sorted(name for name, home in homes.items() if page_of.get(home) == page)
        links = [
            f"[`{name}`]({page}.md)"
            if (home := homes[name]) == name
            else f"[`{name}`][max_weights.{shown(home)}{name}]"
            for name in names
        ]
        title = "below" if page == "index" else f"[{page.replace('_', ' ')}]({page}.md)"
        rows += [f"| {', '.join(links)} | {title} |"] if links else []
    return "\n".join(rows)


def written() -> dict[Path, str]:
    """Return the text of each file that this writes."""
    packages = [PACKAGE / folder / "__init__.py" for folder in LAZY]
    lists = {package: lists_of(package.read_text()) for package in packages}
    return lists | {file_of(path): facade(path) for path in PATHS} | reference()


def main() -> None:
    """Write the changed files."""
    for path, text in written().items():
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(path.relative_to(PACKAGE.parents[1]), file=sys.stderr)


if __name__ == "__main__":
    main()
