"""Lowering of other shapes and orders of the same elements, of parts of them, and of elements at positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from max_weights._dim import Dim, StaticDim, to_dim
from max_weights._dtype import DType
from max_weights.graph._lowering.dtypes import computed_as
from max_weights.graph._lowering.reductions import from_ordered, to_ordered
from max_weights.graph._lowering.table import register_lowering
from max_weights.graph.ops._indexing import size_of_slice

if TYPE_CHECKING:
    import onnx_ir as ir

    from max_weights.graph._lowering.scope import Scope
    from max_weights.graph._value import Node


@register_lowering("reshape")
def lower_reshape(scope: Scope, node: Node) -> ir.Value:
    return scope.reshape(scope.inputs(node)[0], node.outputs[0].shape, node.inputs[0].shape)


@register_lowering("permute")
def lower_permute(scope: Scope, node: Node) -> ir.Value:
    return scope.add("Transpose", scope.inputs(node), perm=node.attributes["dims"])


@register_lowering("broadcast_to")
def lower_broadcast_to(scope: Scope, node: Node) -> ir.Value:
    x, *shape = scope.inputs(node)
    to = node.outputs[0]
    if StaticDim(0) in to.shape:  # ONNX Runtime ignores an Expand to a constant 0
        return scope.cast(scope.add("ConstantOfShape", [scope.dims(to.shape)]), DType.float32, to.dtype)
    result = scope.compute("Expand", [x], to.dtype, extra_inputs=shape or [scope.dims(to.shape)])
    return scope.check_shape(result, to.shape) if shape else result


@register_lowering("tile")
def lower_tile(scope: Scope, node: Node) -> ir.Value:
    repeats = scope.dims(node.attributes["repeats"])
    return scope.compute("Tile", scope.inputs(node), node.outputs[0].dtype, extra_inputs=[repeats])


@register_lowering("constant")
def lower_constant(scope: Scope, node: Node) -> ir.Value:
    return scope.constant(node.attributes["value"], node.outputs[0].dtype)


@register_lowering("dim")
def lower_dim(scope: Scope, node: Node) -> ir.Value:
    size = scope.add("Squeeze", [scope.dim(node.attributes["dim"]), scope.constant([0])])
    return scope.cast(size, DType.int64, node.outputs[0].dtype)


@register_lowering("shape")
def lower_shape(scope: Scope, node: Node) -> ir.Value:
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


_END = 2**63 - 1


@register_lowering("stack")
def lower_stack(scope: Scope, node: Node) -> ir.Value:
    dtype, axis = node.outputs[0].dtype, node.attributes["axis"]
    places = [scope.constant([axis])]
    parts = [scope.compute("Unsqueeze", [name], dtype, extra_inputs=places) for name in scope.inputs(node)]
    return scope.compute("Concat", parts, dtype, axis=axis)


@register_lowering("split")
def lower_split(scope: Scope, node: Node) -> Sequence[ir.Value]:
    sizes = scope.dims(node.attributes["sizes"])
    dtype, (x,) = node.inputs[0].dtype, scope.inputs(node)
    wide = computed_as("Split", dtype)
    result = scope.add_several(
        "Split", [scope.cast(x, dtype, wide), sizes], len(node.outputs), axis=node.attributes["axis"]
    )
    return [scope.cast(name, wide, dtype) for name in result]


@register_lowering("gather")
def lower_gather(scope: Scope, node: Node) -> ir.Value:
    return write_gather(scope, node, scope.inputs(node)[0])


def write_gather(scope: Scope, node: Node, x: ir.Value) -> ir.Value:
    """Write the slices of a tensor at the positions of `node`, which ONNX takes as integers of 32 or 64 bits."""
    positions, dtype = scope[node.inputs[1]], node.inputs[1].dtype
    if dtype not in (DType.int32, DType.int64):
        positions = scope.cast(positions, dtype, DType.int64)
    return scope.compute("Gather", [x], node.outputs[0].dtype, extra_inputs=[positions], axis=node.attributes["axis"])


@register_lowering("slice_tensor")
def lower_slice_tensor(scope: Scope, node: Node) -> ir.Value:
    return write_slice(scope, node, scope.inputs(node)[0], node.outputs[0].shape)


def write_slice(scope: Scope, node: Node, x: ir.Value, dims: Sequence[Dim]) -> ir.Value:
    """Write the slices of a tensor with the index of `node` as Slice; ints and new axes as Reshape to `dims`.

    Reshape also takes a size that is stated, and fails if it is another.
    """
    shape, (result,) = node.inputs[0].shape, node.outputs
    starts: list[int | Dim] = []
    ends: list[int | Dim] = []
    axes, steps = [], []
    axis, place = 0, 0  # of the operand, of the result
    has_other_axes = is_stated = False
    for entry in node.attributes["index"]:
        if entry is None:
            has_other_axes, place = True, place + 1
            continue
        if isinstance(entry, tuple):
            start, stop, step = entry
            is_stated = is_stated or size_of_slice(entry, shape[axis], shape) != result.shape[place]
            if (start, stop, step) != (None, None, 1):
                forward = step > 0
                starts.append((0 if forward else _END) if start is None else start)
                ends.append((_END if forward else -_END) if stop is None else stop)
                axes.append(axis)
                steps.append(step)
            place += 1
        else:
            has_other_axes = True
            starts.append(entry)
            ends.append(_END if entry == -1 else entry + 1)
            axes.append(axis)
            steps.append(1)
        axis += 1
    if axes:
        bounds = [_bounds(scope, starts), _bounds(scope, ends), scope.constant(axes), scope.constant(steps)]
        x = scope.compute("Slice", [x], result.dtype, extra_inputs=bounds)
    if has_other_axes:
        x = scope.reshape(x, dims)
    return scope.check_shape(x, dims) if is_stated else x


def _bounds(scope: Scope, bounds: Sequence[int | Dim]) -> ir.Value:
    if all(isinstance(bound, int) for bound in bounds):
        return scope.constant(bounds)
    parts = [scope.dim(to_dim(bound)) if isinstance(bound, Dim) else scope.constant([bound]) for bound in bounds]
    return scope.add("Concat", parts, axis=0)


@register_lowering("gather_nd")
def lower_gather_nd(scope: Scope, node: Node) -> ir.Value:
    """Lower reading of elements and slices, by positions as int64."""
    x, places = scope.inputs(node)
    places = scope.cast(places, node.inputs[1].dtype, DType.int64)
    dtype, axes = node.outputs[0].dtype, node.attributes["batch_dims"]
    return scope.compute("GatherND", [x], dtype, extra_inputs=[places], batch_dims=axes)


@register_lowering("scatter")
def lower_scatter(scope: Scope, node: Node) -> ir.Value:
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
    dtype, pairs = node.outputs[0].dtype, node.attributes["paddings"]
    wide = computed_as("Pad", dtype)
    x, *fill = (scope.cast(name, dtype, wide) for name in scope.inputs(node))
    counts = scope.constant([*pairs[::2], *pairs[1::2]])
    return scope.cast(scope.add("Pad", [x, counts, *fill], mode=node.attributes["mode"]), wide, dtype)


@register_lowering("slice_between")
def lower_slice_between(scope: Scope, node: Node) -> ir.Value:
    x, *bounds = scope.inputs(node)
    rows = [scope.add("Unsqueeze", [bound, scope.constant([0])]) for bound in bounds]
    others = [scope.constant([node.attributes[name]]) for name in ("axis", "step")]
    (result,) = node.outputs
    return scope.check_shape(scope.compute("Slice", [x], result.dtype, extra_inputs=[*rows, *others]), result.shape)
