"""Lowering of tensors that come only from numbers, dimensions and shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from max_weights._dim import StaticDim
from max_weights.dtype import DType
from max_weights.graph._lowering.dtypes import computed_as
from max_weights.graph._lowering.table import register_lowering

if TYPE_CHECKING:
    from max_weights.graph._lowering.scope import Scope
    from max_weights.graph.value import Node


@register_lowering("constant")
def constant(scope: Scope, node: Node) -> str:
    """Lower a constant to its elements."""
    return scope.constant(node.attributes["value"], node.outputs[0].dtype)


@register_lowering("dim")
def dim(scope: Scope, node: Node) -> str:
    """Lower the size of a dimension to a scalar."""
    size = scope.add("Squeeze", [scope.dim(node.attributes["dim"]), scope.constant([0])])
    return scope.cast(size, DType.int64, node.outputs[0].dtype)


@register_lowering("shape")
def shape(scope: Scope, node: Node) -> str:
    """Lower several sizes to a vector."""
    return scope.dims(node.attributes["dims"])


@register_lowering("range")
def count(scope: Scope, node: Node) -> str:
    """Lower a range; for floats it has the graph's number of elements, as Range rounds when it counts."""
    (made,) = node.outputs
    dtype, (size,) = made.dtype, made.shape
    wide = computed_as("Range", dtype)
    start, stop, step = (scope.cast(name, dtype, wide) for name in scope.inputs(node))
    if not dtype.is_float() or not isinstance(size, StaticDim):
        return scope.stated(scope.cast(scope.add("Range", [start, stop, step]), wide, dtype), made.shape)
    counted = scope.add("Range", [scope.constant(number) for number in (0, int(size), 1)])
    start, step = (scope.cast(name, wide, DType.float64) for name in (start, step))
    steps = scope.add("Mul", [scope.cast(counted, DType.int64, DType.float64), step])
    return scope.cast(scope.add("Add", [steps, start]), DType.float64, dtype)
