"""Lowering of operations by positions: elements that tensors point at, the order of elements, and padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from max_weights._dtype import DType
from max_weights.graph._lowering.dtypes import computed_as
from max_weights.graph._lowering.reductions import from_ordered, to_ordered
from max_weights.graph._lowering.table import register_lowering

if TYPE_CHECKING:
    import onnx_ir as ir

    from max_weights.graph._lowering.scope import Scope
    from max_weights.graph._value import Node


@register_lowering("gather_nd")
def lower_gather_nd(scope: Scope, node: Node) -> ir.Value:
    """Lower reading of elements and slices, by positions as int64."""
    x, places = scope.inputs(node)
    places = scope.cast(places, node.inputs[1].dtype, DType.int64)
    dtype, axes = node.outputs[0].dtype, node.attributes["batch_dims"]
    return scope.compute("GatherND", [x], dtype, extra_inputs=[places], batch_dims=axes)


@register_lowering("scatter")
def lower_scatter(scope: Scope, node: Node) -> ir.Value:
    """Lower writing of elements along an axis."""
    return _write_scatter(scope, node, "ScatterElements", scope.inputs(node)[1], axis=node.attributes["axis"])


@register_lowering("scatter_nd")
def lower_scatter_nd(scope: Scope, node: Node) -> ir.Value:
    """Lower writing of elements and slices, by positions as int64."""
    places = scope.cast(scope.inputs(node)[1], node.inputs[1].dtype, DType.int64)
    return _write_scatter(scope, node, "ScatterND", places)


def _write_scatter(scope: Scope, node: Node, operator: str, places: ir.Value, **attributes: int) -> ir.Value:
    dtype, reduction = node.outputs[0].dtype, node.attributes["reduction"]
    if reduction == "none":
        wide = computed_as(operator, dtype)
        x, _, updates = (scope.cast(name, dtype, wide) for name in scope.inputs(node))
    elif reduction in ("max", "min"):
        x, _, updates = scope.inputs(node)
        (x, wide), (updates, _) = (to_ordered(scope, name, dtype, reduction) for name in (x, updates))
    else:
        wide = computed_as(reduction, dtype)
        x, _, updates = scope.inputs(node)
        x, updates = scope.cast(x, dtype, wide), scope.cast(updates, dtype, wide)
    result = scope.add(operator, [x, places, updates], domain="", reduction=reduction, **attributes)
    return from_ordered(scope, result, dtype, wide) if reduction in ("max", "min") else scope.cast(result, wide, dtype)


@register_lowering("nonzero")
def lower_nonzero(scope: Scope, node: Node) -> ir.Value:
    """Lower the positions of nonzero elements, with one row for each axis.

    There is no kernel for float64, and as float32 the smallest numbers would be 0.
    """
    dtype, (x,) = node.inputs[0].dtype, scope.inputs(node)
    if dtype is DType.float64:
        dtype, x = DType.bool, scope.add("Not", [scope.add("Equal", [x, scope.constant(0, dtype)])])
    result = scope.compute("NonZero", [x], dtype, result_dtype=DType.int64)
    return scope.check_shape(result, node.outputs[0].shape)


@register_lowering("top_k")
def lower_top_k(scope: Scope, node: Node) -> Sequence[ir.Value]:
    """Lower the selection of the largest and smallest to the elements in order, and their positions."""
    dtype, (x,) = node.inputs[0].dtype, scope.inputs(node)
    x, wide = to_ordered(scope, x, dtype, "TopK")
    operands = [x, scope.dim(node.attributes["k"])]
    largest = int(node.attributes["largest"])
    result, places = scope.add_several("TopK", operands, 2, axis=node.attributes["axis"], largest=largest)
    return [from_ordered(scope, result, dtype, wide), places]


@register_lowering("pad")
def lower_pad(scope: Scope, node: Node) -> ir.Value:
    """Lower padding before and after each axis."""
    dtype, pairs = node.outputs[0].dtype, node.attributes["paddings"]
    wide = computed_as("Pad", dtype)
    x, *fill = (scope.cast(name, dtype, wide) for name in scope.inputs(node))
    counts = scope.constant([*pairs[::2], *pairs[1::2]])
    return scope.cast(scope.add("Pad", [x, counts, *fill], mode=node.attributes["mode"]), wide, dtype)


@register_lowering("slice_between")
def lower_slice_between(scope: Scope, node: Node) -> ir.Value:
    """Lower a slice whose bounds are scalars."""
    x, *bounds = scope.inputs(node)
    rows = [scope.add("Unsqueeze", [bound, scope.constant([0])]) for bound in bounds]
    others = [scope.constant([node.attributes[name]]) for name in ("axis", "step")]
    (result,) = node.outputs
    return scope.check_shape(scope.compute("Slice", [x], result.dtype, extra_inputs=[*rows, *others]), result.shape)
