"""The table of the functions that lower operations, and a graph lowered by them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from max_weights.errors import UnsupportedError

if TYPE_CHECKING:
    import onnx_ir as ir

    from max_weights.graph._graph import Graph
    from max_weights.graph._lowering.scope import Scope
    from max_weights.graph._value import Node

__all__ = ["LOWERINGS", "Lowering", "lower_nodes", "register_lowering"]

Lowering: TypeAlias = "Callable[[Scope, Node], ir.Value | Sequence[ir.Value]]"
"""Writes an operation to a scope, and returns its results."""

_LOWERINGS: dict[str, Lowering] = {}
LOWERINGS: Mapping[str, Lowering] = MappingProxyType(_LOWERINGS)
"""The functions by the names of the operations; `input` and `weight` have none, as the model gets them."""


def register_lowering(*ops: str) -> Callable[[Lowering], Lowering]:
    """Register a function as the one that lowers the operations of these names."""

    def add(lowering: Lowering) -> Lowering:
        for op in ops:
            if op in _LOWERINGS:
                raise RuntimeError(f"the operation {op!r} has two lowerings")
            _LOWERINGS[op] = lowering
        return lowering

    return add


def lower_nodes(scope: Scope, graph: Graph) -> None:
    """Write all operations of a graph, whose inputs and weights are bound in the scope."""
    scope.count_uses(graph)
    for node in graph.nodes:
        if node.op in ("input", "weight"):
            continue
        lowering = _LOWERINGS.get(node.op)
        if lowering is None:
            raise UnsupportedError(
                f"{node.op} cannot be run: ONNX has no equivalent (at {node.location})", rule="unsupported.operation"
            )
        scope.node = node
        results = lowering(scope, node)
        for value, result in zip(node.outputs, results if isinstance(results, Sequence) else [results], strict=True):
            scope.bind(value, result)
    scope.node = None
