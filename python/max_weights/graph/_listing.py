"""A graph as text: one line per operation, with its type and the line of the user's code."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from max_weights._core import escape
from max_weights._dim import Dim
from max_weights._shape import listed

if TYPE_CHECKING:
    from max_weights.graph._type import TensorType
    from max_weights.graph._value import Node, TensorValue

_MAX = 40


def listing(nodes: Iterable[Node], outputs: Iterable[TensorValue] | None) -> str:
    """Return every operation as `%3 = add(%1, %2)`, then the results of the graph, if it has them already."""
    numbers: dict[TensorValue, str] = {}
    rows: list[tuple[str, str, str]] = []
    for node in nodes:
        for value in node.outputs:
            numbers[value] = f"%{len(numbers)}"
        results = ", ".join(numbers[value] for value in node.outputs)
        operands = [numbers[value] for value in node.inputs]
        call = f"{node.op}({', '.join(operands + _listed(node.attributes))})"
        types = ", ".join(_type(value.type) for value in node.outputs)
        rows.append((f"{results} = {call}" if results else call, types, os.path.basename(node.location)))
    left = max((len(row[0]) for row in rows), default=0)
    middle = max((len(row[1]) for row in rows), default=0)
    lines = [f"  {call:<{left}}  {types:<{middle}}  {line}".rstrip() for call, types, line in rows]
    if outputs is not None:
        lines.append(f"  output({', '.join(numbers[value] for value in outputs)})")
    return "\n".join(lines)


def _type(kind: TensorType) -> str:
    return f"{kind.dtype!r} {listed(kind.shape)} {kind.device}"


def _listed(attributes: Mapping[str, Any]) -> list[str]:
    texts = []
    for name, value in attributes.items():
        if name == "dims" and "graph" in attributes:
            continue  # the sizes of a call, which the types already show
        if name in ("minimums", "message", "prefix") and not value:
            continue
        if name == "graph":
            texts.append(repr(value.name))
        elif name == "weight":
            texts.append(f"'{escape(value.name)}'")
        elif name == "index" and isinstance(value, tuple):
            texts.append(f"[{', '.join(map(_entry, value))}]")
        elif name == "minimums":
            texts.append(" and ".join(f"{large} >= {small}" for large, small in value))
        else:
            texts.append(f"{name}={_text(value)}")
    return texts


def _entry(entry: object) -> str:
    """Return one entry of an index in Python's notation."""
    if not isinstance(entry, tuple):
        return str(entry)
    start, stop, step = entry
    text = f"{'' if start is None else start}:{'' if stop is None else stop}"
    return text if step == 1 else f"{text}:{step}"


def _text(value: Any) -> str:
    if hasattr(value, "ndim"):  # an array; its type shows the rest
        return "..." if value.size > 8 else " ".join(str(value.tolist()).split())
    text = listed(value) if isinstance(value, tuple) else str(value) if isinstance(value, Dim) else repr(value)
    return text if len(text) <= _MAX else f"{text[: _MAX - 3]}..."
