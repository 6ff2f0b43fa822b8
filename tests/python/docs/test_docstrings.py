"""Every public function documents its arguments, results and errors, with an example that is run here.

The sections are `Args:` with each parameter, `Returns:` or `Yields:` (unless the first sentence begins with "Return" or
"Iterate", or nothing is returned), and `Raises:` where there are parameters.

An example is in the section `Example:` of a docstring, in lines that begin with `>>> `. It runs in a new folder:

- `model.safetensors`: Five tensors of float32. `model.embed_tokens.weight` and `lm_head.weight` are (16, 8),
`model.norm.weight` is (8,), `model.layers.0.self_attn.q_proj.weight` and `model.layers.0.mlp.down_proj.weight` are (8,
8).
- `new.safetensors`: The same names with other values. The same tensors, by `torch.save`, are in `model.pt`.
- `model.gguf`: The tensors are `token_embd.weight` (16, 32) in Q4_0 and `output_norm.weight` (32,) in F32.

These names are there without an import: `max_weights`, `np`, `torch`, the opened `weights` of model.safetensors, and
`model`, a module of torch with its parameters. Examples of `max_weights.graph`, `nn` and `engine` run inside of `with
Graph("g")`. They also have `graph`, `ops`, `nn`, `engine`, every name of `graph.__all__`, `DType`, `CPU` (a DeviceRef),
and `x` (2, 3) and `y` (3, 2) of float32.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

import max_weights
from max_weights import nn
from max_weights.dtype import DType
from max_weights.graph import DeviceRef, Graph, TensorType

# Modules that are exempt, with the reasons.
EXEMPT = {
    "max_weights.safetensors": "the functions of safetensors, with its own documentation",
    "max_weights.integrations": "called by the library that is integrated, and not by people",
}
OF_MAPPINGS = {"get", "items", "keys", "values"}  # methods of every Python mapping, documented by Python
SKIPPED = {"jax": "max_weights.jax needs jax"}
STUBS = Path(max_weights.__file__).with_name("_core")
SECTION = re.compile(r"^(Args|Returns|Yields|Raises|Example|Examples|Attributes|Note):(.*)$")
SHAPES = {
    "model.embed_tokens.weight": (16, 8),
    "model.layers.0.self_attn.q_proj.weight": (8, 8),
    "model.layers.0.mlp.down_proj.weight": (8, 8),
    "model.norm.weight": (8,),
    "lm_head.weight": (16, 8),
}


def exempt(module: str) -> bool:
    return any(part.startswith("_") for part in module.split(".")) or any(
        f"{module}.".startswith(f"{one}.") for one in EXEMPT
    )


def modules() -> Iterator[Any]:
    """The public modules that can be imported here."""
    for name in ["max_weights", *(one.name for one in pkgutil.walk_packages(max_weights.__path__, "max_weights."))]:
        if not exempt(name):
            yield importlib.import_module(name)


def routines() -> dict[str, Any]:
    """Each public function, and each method that a public class defines, under the first of its names."""
    found: dict[int, tuple[str, Any]] = {}
    for module in modules():
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            home = getattr(value, "__module__", None) or ""
            if inspect.isroutine(value):
                found.setdefault(id(value), (f"{module.__name__}.{name}", value))
            elif inspect.isclass(value) and home.startswith("max_weights"):
                for key, member in methods(value):
                    found.setdefault(id(member), (f"{module.__name__}.{name}.{key}", member))
    return dict(found.values())


def methods(kind: type) -> Iterator[tuple[str, Any]]:
    for key, value in vars(kind).items():
        member = getattr(value, "__func__", value)
        if key.startswith("_") or key in OF_MAPPINGS or not (inspect.isroutine(member) and callable(member)):
            continue
        inherited = any(getattr(vars(base).get(key), "__doc__", None) for base in kind.__mro__[1:])
        if member.__doc__ or not inherited:  # documented by a base class
            yield key, member


ROUTINES = routines()


def sections(text: str) -> dict[str, list[str]]:
    """The lines of each section of a docstring; the text before the first section has the key ''."""
    found: dict[str, list[str]] = {"": []}
    name = ""
    for line in text.splitlines():
        if match := SECTION.match(line):
            name, rest = match.groups()
            found[name] = [rest] if rest else []
        else:
            found[name].append(line)
    return found


def explained(lines: list[str]) -> set[str]:
    """The parameters that a section Args names."""
    heads = (re.match(r" {4}\**(\w+)(?: \([^)]*\))?:", line) for line in lines)
    return {head[1] for head in heads if head}


def in_stubs() -> dict[str, str]:
    """The return types of the compiled module's functions, from its stub."""
    found = {}
    for stub in STUBS.glob("*.pyi"):
        for node in ast.walk(ast.parse(stub.read_text())):
            if isinstance(node, ast.FunctionDef) and node.returns is not None:
                found[node.name] = ast.unparse(node.returns)
    return found


RETURNED = in_stubs()


def lacks(routine: Any) -> list[str]:
    """The missing parts of a docstring."""
    text = inspect.getdoc(routine) if routine.__doc__ else None
    if not text:
        return ["a docstring"]
    message = sections(text)
    signature = inspect.signature(routine)
    takes = [name for name in signature.parameters if name not in ("self", "cls") and not name.startswith("_")]
    returns = signature.return_annotation
    if returns is inspect.Signature.empty:
        returns = RETURNED.get(routine.__name__, "")
    missing = [f"Args: {name}" for name in takes if name not in explained(message.get("Args", []))]
    says = {"Returns", "Yields"} & set(message) or text.startswith(
        ("Return ", "Iterate ")
    )  # which need no second mention
    if returns not in (None, "None", "NoReturn", "Never") and not says:
        missing.append("Returns")
    if takes and "Raises" not in message:
        missing.append("Raises")
    if not any(line.lstrip().startswith(">>> ") for line in message.get("Example", [])):
        missing.append("Example")
    return missing


@pytest.mark.parametrize("name", ROUTINES)
def test_a_public_function_says_what_it_takes_gives_and_refuses(name: str) -> None:
    assert lacks(ROUTINES[name]) == []


def test_a_docstring_that_leaves_something_out_is_seen() -> None:
    def whole(a: int, *rest: int) -> int:
        """Add.

        Args:
            a: A number.
            *rest: More.

        Returns:
            The sum.

        Raises:
            TypeError: One is no number.

        Example:
            >>> 1
            1
        """
        return a + sum(rest)

    def nothing(a: int, _own: int = 0) -> None:
        """Add, and say nothing of `a:`, nor of >>> examples."""

    assert lacks(whole) == []
    assert lacks(nothing) == ["Args: a", "Raises", "Example"]
    assert lacks(lambda: 0) == ["a docstring"]
    assert len(ROUTINES) > 250


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the examples, made once."""
    folder = tmp_path_factory.mktemp("examples")
    generator = np.random.default_rng(0)
    for name in ("model", "new"):
        tensors = {key: generator.normal(size=shape).astype("f4") for key, shape in SHAPES.items()}
        max_weights.save_file(tensors, folder / f"{name}.safetensors")
        if name == "model":
            torch.save({key: torch.from_numpy(array) for key, array in tensors.items()}, folder / "model.pt")
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    table = generator.normal(size=(16, 32)).astype("f4")
    q4_0 = gguf.GGMLQuantizationType.Q4_0
    writer.add_tensor("token_embd.weight", gguf.quantize(table, q4_0), raw_dtype=q4_0)
    writer.add_tensor("output_norm.weight", np.ones(32, "f4"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder


def module() -> torch.nn.Module:
    """A module with the parameters of model.safetensors, zeros."""
    made = torch.nn.Module()
    for key, shape in SHAPES.items():
        *path, last = key.split(".")
        inner = made
        for part in path:
            if part not in inner._modules:
                inner.add_module(part, torch.nn.Module())
            inner = inner.get_submodule(part)
        inner.register_parameter(last, torch.nn.Parameter(torch.zeros(shape)))
    return made


def graph_names() -> dict[str, Any]:
    """The additional names of graph examples; the graph is entered."""
    made = Graph("g", input_types=[TensorType(DType.float32, shape, DeviceRef.CPU()) for shape in ((2, 3), (3, 2))])
    x, y = made.inputs
    names = {name: getattr(max_weights.graph, name) for name in max_weights.graph.__all__}
    return {**names, "graph": made, "x": x, "y": y, "nn": nn, "engine": max_weights.engine, "DType": DType,
            "CPU": DeviceRef.CPU()}  # fmt: skip


def examples() -> dict[str, str]:
    """The docstrings with examples: of functions, methods, and public classes."""
    texts = {name: inspect.getdoc(routine) or "" for name, routine in ROUTINES.items()}
    for home in modules():
        for name in getattr(home, "__all__", ()):
            value = getattr(home, name)
            if inspect.isclass(value) and value.__module__.startswith("max_weights"):
                texts.setdefault(f"{value.__module__}.{name}", inspect.getdoc(value) or "")
    return {name: text for name, text in texts.items() if ">>> " in text}


EXAMPLES = examples()


def run(name: str, text: str, names: dict[str, Any]) -> str:
    """Run an example; return its unexpected output, with what was expected."""
    report: list[str] = []
    test = doctest.DocTestParser().get_doctest(text, names, name, None, None)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(test, out=report.append, clear_globs=False)
    return "".join(report)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.filterwarnings("ignore")
def test_the_example_of_a_docstring_runs(
    name: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = EXAMPLES[name]
    for library, reason in SKIPPED.items():
        if re.search(rf"\b{library}\b", text):
            pytest.importorskip(library, reason=reason)
    folder = tmp_path / "folder"
    shutil.copytree(files, folder)
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {"max_weights": max_weights, "np": np, "torch": torch}
    lazy: dict[str, Callable[[], Any]] = {
        "weights": lambda: max_weights.load_weights("model.safetensors"),
        "model": module,
    }
    names |= {key: make() for key, make in lazy.items() if re.search(rf"\b{key}\b", text)}
    if name.startswith(("max_weights.graph", "max_weights.nn", "max_weights.engine")):
        names |= graph_names()
        with names["graph"]:
            assert run(name, text, names) == ""
    else:
        assert run(name, text, names) == ""
    max_weights.unpatch()


def test_an_example_that_is_wrong_fails() -> None:
    assert "Expected:" in run("wrong", ">>> 1 + 1\n3\n", {})
    assert "ZeroDivisionError" in run("raises", ">>> 1 / 0\n", {})
    assert run("right", ">>> print('a', 'and', 'b')\na ... b\n", {}) == ""
