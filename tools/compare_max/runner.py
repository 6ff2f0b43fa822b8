"""Run the programs with one package and write the results as JSON: `runner.py PACKAGE [PROGRAM...]`.

A program is a script written for MAX. Each expression statement is a fact. Its key is its line (in a loop, also the
loop's current item); its value is the result, or the kind of exception raised. For another package, only the name in
the imports changes, as for a user.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import enum
import importlib
import json
import math
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from given import digest

PROGRAMS = Path(__file__).parent / "programs"
ORIGINAL = "max"
PATIENCE = 60
"""Timeout of a fact in seconds: an endless loop becomes a TimeoutError."""
MAX = 1_000
"""Maximum characters of a value that is stored unchanged."""
Facts = dict[str, Any]


class Rewrite(ast.NodeTransformer):
    """Puts the package's name into the imports, and makes facts of expressions outside functions and classes."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.loop: list[ast.expr] = []

    def renamed(self, module: str | None) -> str | None:
        """Return the module under the package's name, if it is one of MAX's."""
        if module == ORIGINAL or (module or "").startswith(ORIGINAL + "."):
            return self.package + (module or "")[len(ORIGINAL) :]
        return module

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        """`from max.graph import Weight`."""
        node.module = self.renamed(node.module)
        return node

    def visit_Import(self, node: ast.Import) -> ast.AST:
        """`import max.driver as driver`."""
        for alias in node.names:
            alias.name = self.renamed(alias.name) or alias.name
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """A function: its body has no facts."""
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """A class: its methods are written for MAX, and have no facts."""
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        """A loop: its first target distinguishes its facts."""
        target = node.target.elts[0] if isinstance(node.target, ast.Tuple) else node.target
        self.loop.append(ast.Name(target.id, ast.Load()) if isinstance(target, ast.Name) else ast.Constant(""))
        self.generic_visit(node)
        self.loop.pop()
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """An expression: `fact(line, lambda: expression)`, in a loop with the loop's current item."""
        if isinstance(node.value, ast.Constant):
            return node  # the docstring
        body = ast.Lambda(ast.arguments([], [], None, [], [], None, []), node.value)
        call = ast.Call(ast.Name("__fact__", ast.Load()), [ast.Constant(node.lineno), body, *self.loop[-1:]], [])
        return ast.copy_location(ast.Expr(call), node)


def run(path: Path, package: str) -> Facts:
    """The facts of one program."""
    facts: Facts = {}
    text = path.read_text(encoding="utf-8")

    def fact(line: int, value: Callable[[], object], item: object = None) -> None:
        key = f"{line}" if item is None else f"{line} {item}"
        signal.alarm(PATIENCE)
        try:
            facts[key] = brief(plain(value()))
        except Exception as error:
            facts[key] = raised(error)
        finally:
            signal.alarm(0)

    names = {"__name__": path.stem, "__fact__": fact}
    for statement, item in statements(ast.parse(text)):
        key = f"{statement.lineno} {item}".rstrip()
        module = ast.fix_missing_locations(ast.Module([Rewrite(package).visit(statement)], []))
        try:
            exec(compile(module, str(path), "exec"), names)
        except Exception as error:
            facts[key] = raised(error)
    return facts


def statements(program: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    """Return the statements of a program. Each imported name is a separate statement: a missing name does not affect
    others.
    """
    for statement in program.body:
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                single = ast.ImportFrom(statement.module, [alias], statement.level)
                yield ast.copy_location(single, statement), alias.name
        else:
            yield statement, ""


def interrupt(*_: object) -> None:
    """End a fact that takes too long."""
    raise TimeoutError(f"more than {PATIENCE} s")


def raised(error: BaseException) -> Facts:
    """Return the built-in classes that catch an exception, the nearest first."""
    kinds = [kind.__name__ for kind in type(error).__mro__ if getattr(builtins, kind.__name__, None) is kind]
    shown = f"{type(error).__name__}: {error}".splitlines()
    print(f"    {shown[0][:300] if shown else type(error).__name__}", file=sys.stderr)
    return {"raises": kinds[: kinds.index("Exception")] or ["Exception"]}


def plain(value: Any) -> Any:
    """Return a value as JSON, without anything specific to one of the packages."""
    name = type(value).__name__
    if value is None or (isinstance(value, bool | int | str) and not isinstance(value, enum.Enum)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return {"bytes": len(value), "digest": digest(value)}
    if name == "DType" or isinstance(value, enum.Enum):
        return f"{name}.{value.name}"
    if isinstance(value, type):
        return f"class {value.__name__}"
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if name in ("Weight", "TensorValue", "TensorType", "BufferType"):
        return described(value)
    if name == "WeightData":
        return {"name": value.name, **tensor(value), "encoding": plain(value.quantization_encoding)}
    if hasattr(value, "__dlpack__") and name not in ("Weight", "WeightShard"):
        return tensor(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(plain(item) for item in value)
    if name.endswith("Dim") or name in ("DeviceRef", "Device"):
        return str(value)
    return f"a {name}"


def brief(value: Any) -> Any:
    """Return the stored form of a value: a fingerprint for a long one."""
    text = json.dumps(value, sort_keys=True)
    return value if len(text) <= MAX else {"long": len(text), "digest": digest(text.encode())}


def described(value: Any) -> Facts:
    """Return the attributes of a value of a graph or of a type."""
    members = ("name", "dtype", "shape", "device", "quantization_encoding", "shard_idx")
    return {member: plain(getattr(value, member)) for member in members if hasattr(value, member)}


def tensor(value: Any) -> Facts:
    """A tensor: dtype, shape and bytes. Read through the package's own `Buffer`, which takes every dtype."""
    import numpy as np

    if isinstance(value, np.ndarray | np.generic):
        return {"dtype": f"DType.{value.dtype.name}", "shape": list(value.shape), "digest": digest(value.tobytes())}
    package = type(value).__module__.partition(".")[0]
    driver = importlib.import_module(f"{package}.driver")
    uint8 = importlib.import_module(f"{package}.dtype").DType.uint8
    held = value.data if hasattr(value, "quantization_encoding") else value
    if isinstance(held, np.ndarray):
        return {**tensor(held), "dtype": plain(value.dtype), "shape": plain(list(value.shape))}
    buffer = held if isinstance(held, driver.Buffer) else driver.Buffer.from_dlpack(held)
    size = buffer.num_elements * buffer.dtype.size_in_bytes
    content = buffer.contiguous().view(uint8, [size]).to_numpy().tobytes() if size else b""
    return {"dtype": plain(value.dtype), "shape": [plain(dim) for dim in value.shape], "digest": digest(content)}


def main() -> None:
    """Run the named programs, or all."""
    package, *requested = sys.argv[1:]
    signal.signal(signal.SIGALRM, interrupt)
    result = {}
    with contextlib.redirect_stdout(sys.stderr):
        for path in sorted(PROGRAMS.glob("*.py")):
            if not requested or path.stem in requested:
                print(f"{package}: {path.stem}", file=sys.stderr)
                result[path.stem] = run(path, package)
    json.dump(result, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
