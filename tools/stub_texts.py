"""Copy the first paragraph of each docstring of the compiled module into its stub, where editors look for it.

`python tools/stub_texts.py` rewrites the files of the stub, `_core/*.pyi`; `ruff format` does the rest.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import max_weights
from max_weights import _core

STUBS = sorted((Path(__file__).resolve().parents[1] / "python" / "max_weights" / "_core").glob("*.pyi"))
WIDTH = 120


def summary(value: Any) -> str:
    """The first paragraph of a documentation string."""
    text = inspect.getdoc(getattr(value, "__func__", value)) or ""
    return " ".join(text.split("\n\n")[0].split())


def requested(body: list[ast.stmt], owner: Any) -> Iterator[tuple[ast.FunctionDef | ast.ClassDef, str]]:
    """The definitions of a stub, with their docstrings at run time."""
    seen = set()
    for node in body:
        if isinstance(node, ast.ClassDef):
            found = getattr(owner, node.name, None)
            if found is not None:
                yield node, summary(found)
                yield from requested(node.body, found)
        elif isinstance(node, ast.FunctionDef) and node.name not in seen:
            if owner is _core and node.name not in max_weights.__all__:
                continue  # only the package calls it
            seen.add(node.name)  # the first overload has the docstring
            setter = any(isinstance(one, ast.Attribute) and one.attr == "setter" for one in node.decorator_list)
            found = inspect.getattr_static(owner, node.name, None)
            if found is not None and not node.name.startswith("_") and not setter:
                yield node, summary(found)


def documented(text: str) -> str:
    """The stub with its texts."""
    lines = text.splitlines()
    for node, paragraph in reversed(list(requested(ast.parse(text).body, _core))):
        first = node.body[0]
        indent = " " * (node.col_offset + 4)
        quoted = textwrap.wrap(f'"""{paragraph}"""', WIDTH - len(indent), break_on_hyphens=False)
        if len(quoted) > 1:
            quoted[-1:] = [quoted[-1].removesuffix('"""'), '"""']
        made = [indent + line for line in quoted if line] if paragraph else []
        start, end = first.lineno - 1, first.end_lineno or first.lineno
        is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        if is_text and isinstance(first.value.value, str):  # type: ignore[attr-defined]
            lines[start:end] = made
        elif is_text and made:  # the dots in place of a body
            head = lines[start][: first.col_offset].rstrip()
            lines[start:end] = [head, *made] if head else made
        elif made:
            decorators = getattr(first, "decorator_list", [])
            start = min([start, *(one.lineno - 1 for one in decorators)])
            lines[start:start] = made
    return "\n".join(lines) + "\n"


def outdated(text: str) -> list[str]:
    """The names whose docstring in the stub differs from that of the compiled module."""
    nodes = requested(ast.parse(text).body, _core)
    return [node.name for node, paragraph in nodes if " ".join((ast.get_docstring(node) or "").split()) != paragraph]


if __name__ == "__main__":
    for stub in STUBS:
        stub.write_text(documented(stub.read_text()))
