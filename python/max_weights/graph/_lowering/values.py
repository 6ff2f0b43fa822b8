"""The values of a graph's weights, and of its inputs, as contiguous host memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from max_weights._buffer import Buffer
from max_weights._core import WeightsNode, escape
from max_weights._shape import listed, matches
from max_weights.graph._errors import GraphError

if TYPE_CHECKING:
    from max_weights.graph._graph import Graph
    from max_weights.graph._weight import Weight

__all__ = ["contiguous", "values_of"]


def contiguous(tensor: object, what: str) -> Buffer:
    """Return a tensor of any library as a contiguous `Buffer` of host memory, over the same memory if possible."""
    if isinstance(tensor, bool | int | float | list):
        import numpy as np

        tensor = np.asarray(tensor)
    buffer = Buffer.of(tensor, what)
    if not buffer.device.is_host:
        buffer = buffer.to("cpu")
    buffer = buffer._contiguous()
    return buffer if buffer.aligned else buffer.copy()


def values_of(graph: Graph, registry: Mapping[str, object] | WeightsNode | None) -> dict[str, Buffer]:
    """Return the value of each weight of a graph, by name."""
    if isinstance(registry, WeightsNode):
        start = len(registry.name) + 1 if registry.name else 0
        registry = {name[start:]: node for name, node in registry.items()}
    missing, values = [], {}
    for name, weight in graph.parameters.items():
        value = weight.value if registry is None else registry.get(name)
        if value is None:
            missing.append(name)
            continue
        values[name] = contiguous(value, f"weight '{escape(name)}'")
        _require_type(graph, name, weight, values[name])
    if missing:
        raise GraphError(_missing(graph, missing, registry))
    return values


def _missing(graph: Graph, missing: Sequence[str], registry: Mapping[str, object] | None) -> str:
    if registry is None:
        cause = "no weights_registry was given, and load_state_dict did not set them"
    else:
        from difflib import get_close_matches

        near = get_close_matches(missing[0], [name for name in registry if name not in graph.parameters], 1)
        cause = f"the weights_registry has {len(registry)} others" + (
            f", '{escape(near[0])}' among them" if near else ""
        )
    what = f"and {len(missing) - 1} more weights have" if len(missing) > 1 else "has"
    return f"graph {graph.name!r}: '{escape(missing[0])}' {what} no value: {cause}"


def _require_type(graph: Graph, name: str, weight: Weight, value: Buffer) -> None:
    if value.dtype is not weight.dtype or not matches(weight.shape, value.shape):
        raise GraphError(
            f"graph {graph.name!r}: weight '{escape(name)}' is {weight.dtype!r} {listed(weight.shape)}, "
            f"but its value is {value.dtype!r} {listed(value.shape)}"
        )
