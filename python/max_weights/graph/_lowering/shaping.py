"""Lowering of the same elements in another shape or order, and of tensors that come only from numbers and shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from max_weights._dim import StaticDim
from max_weights._dtype import DType
from max_weights.graph._lowering.dtypes import computed_as
from max_weights.graph._lowering.table import register_lowering

if TYPE_CHECKING:
    import onnx_ir as ir

    from max_weights.graph._lowering.scope import Scope
    from max_weights.graph._value import Node


@register_lowering("reshape")
def lower_reshape(scope: Scope, node: Node) -> ir.Value:
    """Lower a change of shape."""
    return scope.reshape(scope.inputs(node)[0], node.outputs[0].shape, node.inputs[0].shape)


@register_lowering("rebind")
def lower_rebind(scope: Scope, node: Node) -> ir.Value:
    """Lower new names for dimensions. They are checked before a run, as far as that follows from the inputs."""
    return scope.inputs(node)[0]


@register_lowering("permute")
def lower_permute(scope: Scope, node: Node) -> ir.Value:
    """Lower a new order of axes."""
    return scope.add("Transpose", scope.inputs(node), perm=node.attributes["dims"])


@register_lowering("broadcast_to")
def lower_broadcast_to(scope: Scope, node: Node) -> ir.Value:
    """Lower repetition to a shape."""
    x, *shape = scope.inputs(node)
    to = node.outputs[0]
    if StaticDim(0) in to.shape:  # ONNX Runtime ignores an Expand to a constant 0
        return scope.cast(scope.add("ConstantOfShape", [scope.dims(to.shape)]), DType.float32, to.dtype)
    result = scope.compute("Expand", [x], to.dtype, extra_inputs=shape or [scope.dims(to.shape)])
    return scope.check_shape(result, to.shape) if shape else result


@register_lowering("tile")
def lower_tile(scope: Scope, node: Node) -> ir.Value:
    """Lower repetition of a whole tensor."""
    repeats = scope.dims(node.attributes["repeats"])
    return scope.compute("Tile", scope.inputs(node), node.outputs[0].dtype, extra_inputs=[repeats])


@register_lowering("constant")
def lower_constant(scope: Scope, node: Node) -> ir.Value:
    """Lower a constant to its elements."""
    return scope.constant(node.attributes["value"], node.outputs[0].dtype)


@register_lowering("dim")
def lower_dim(scope: Scope, node: Node) -> ir.Value:
    """Lower the size of a dimension to a scalar."""
    size = scope.add("Squeeze", [scope.dim(node.attributes["dim"]), scope.constant([0])])
    return scope.cast(size, DType.int64, node.outputs[0].dtype)


@register_lowering("shape")
def lower_shape(scope: Scope, node: Node) -> ir.Value:
    """Lower several sizes to a vector."""
    return scope.dims(node.attributes["dims"])


@register_lowering("range")
def lower_range(scope: Scope, node: Node) -> ir.Value:
    """Lower a range; for floats it has the graph's number of elements, as Range rounds when it counts."""
    (result,) = node.outputs
    dtype, (size,) = result.dtype, result.shape
    wide = computed_as("Range", dtype)
    start, stop, step = (scope.cast(name, dtype, wide) for name in scope.inputs(node))
    if not dtype.is_float() or not isinstance(size, StaticDim):
        return scope.check_shape(scope.cast(scope.add("Range", [start, stop, step]), wide, dtype), result.shape)
    numbers = scope.add("Range", [scope.constant(number) for number in (0, int(size), 1)])
    start, step = (scope.cast(name, wide, DType.float64) for name in (start, step))
    steps = scope.add("Mul", [scope.cast(numbers, DType.int64, DType.float64), step])
    return scope.cast(scope.add("Add", [steps, start]), DType.float64, dtype)
