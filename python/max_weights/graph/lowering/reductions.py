"""Lowering of operations along one axis, which stays with size 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from max_weights.dtype import DType
from max_weights.graph.lowering.dtypes import computed_as
from max_weights.graph.lowering.table import lowers

if TYPE_CHECKING:
    from max_weights.graph.lowering.scope import Scope
    from max_weights.graph.value import Node

_REDUCTIONS = {"sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax", "min": "ReduceMin"}
_POSITIONS = {"argmax": "ArgMax", "argmin": "ArgMin"}


@lowers(*_REDUCTIONS)
def reduce(scope: Scope, node: Node) -> str:
    """A number for each row."""
    operator, dtype, (x,) = _REDUCTIONS[node.op], node.outputs[0].dtype, scope.inputs(node)
    wide = computed_as(operator, dtype)
    made = scope.add(operator, [scope.cast(x, dtype, wide), scope.constant([node.attributes["axis"]])])
    return scope.cast(made, wide, dtype)


@lowers(*_POSITIONS)
def position(scope: Scope, node: Node) -> str:
    """Where the extreme element of each row is."""
    return scope.compute(
        _POSITIONS[node.op], scope.inputs(node), node.inputs[0].dtype, made=DType.int64, axis=node.attributes["axis"]
    )
