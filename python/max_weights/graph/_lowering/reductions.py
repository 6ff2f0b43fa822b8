"""Lowering of operations along an axis, of convolutions, and of operations on windows and boxes of images."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from max_weights._dim import StaticDim
from max_weights._dtype import DType
from max_weights.graph._lowering.division import choose
from max_weights.graph._lowering.dtypes import computed_as
from max_weights.graph._lowering.table import register_lowering

if TYPE_CHECKING:
    import onnx_ir as ir

    from max_weights.graph._lowering.scope import Scope
    from max_weights.graph._lowering.writer import Attribute
    from max_weights.graph._value import Node


_EXTREMES = {"max": "ReduceMax", "min": "ReduceMin"}
_POSITIONS = {"argmax": "ArgMax", "argmin": "ArgMin"}
_LOWEST = -(2**63)


@register_lowering("sum")
def lower_sum(scope: Scope, node: Node) -> ir.Value:
    """Lower the sum of each row. ReduceSum adds integers as float64, which is exact for those of 32 bits."""
    dtype, (x,), axis = node.outputs[0].dtype, scope.inputs(node), node.attributes["axis"]
    wide = DType.int64 if dtype.is_integral() else computed_as("ReduceSum", dtype)
    x = scope.cast(x, dtype, wide)
    if dtype.size_in_bits == 64 and dtype.is_integral():
        return scope.cast(_sum_of_integers(scope, x, axis, node.inputs[0].rank), wide, dtype)
    return scope.cast(scope.add("ReduceSum", [x, scope.constant([axis])]), wide, dtype)


def _sum_of_integers(scope: Scope, x: ir.Value, axis: int, rank: int) -> ir.Value:
    """Write the product with a column of ones, which wraps as integers do."""
    order = [*range(axis), *range(axis + 1, rank), axis]
    back = [order.index(number) for number in range(rank)]
    size = scope.add("Shape", [x], start=axis, end=axis + 1)
    column = scope.add("Expand", [scope.constant([[1]]), scope.add("Concat", [size, scope.constant([1])], axis=0)])
    result = scope.add("MatMul", [scope.add("Transpose", [x], perm=order), column])
    return scope.add("Transpose", [result], perm=back)


@register_lowering("prod")
def lower_prod(scope: Scope, node: Node) -> ir.Value:
    """Lower the product of each row; integers as float64, exact up to 2**53."""
    dtype, (x,) = node.outputs[0].dtype, scope.inputs(node)
    wide = DType.int64 if dtype.is_integral() else computed_as("ReduceProd", dtype)
    result = scope.add("ReduceProd", [scope.cast(x, dtype, wide), scope.constant([node.attributes["axis"]])])
    return scope.cast(result, wide, dtype)


@register_lowering("cumsum")
def lower_cumsum(scope: Scope, node: Node) -> ir.Value:
    """Lower running sums; those of float32 are added as float64, because ONNX Runtime adds sequentially."""
    dtype, options, (x,) = node.outputs[0].dtype, node.attributes, scope.inputs(node)
    exclusive, reverse, axis = int(options["exclusive"]), int(options["reverse"]), scope.constant(options["axis"])
    wide = DType.float64 if dtype is DType.float32 else dtype
    x = scope.cast(x, dtype, wide)
    result = scope.compute("CumSum", [x], wide, extra_inputs=[axis], exclusive=exclusive, reverse=reverse)
    return scope.cast(result, wide, dtype)


@register_lowering("mean")
def lower_mean(scope: Scope, node: Node) -> ir.Value:
    """Lower the mean to the sum through the size; ReduceMean gives 0 for no elements, and adds integers as it likes."""
    dtype, (x,), axis = node.outputs[0].dtype, scope.inputs(node), node.attributes["axis"]
    if dtype.is_integral():
        wide = DType.uint64 if dtype is DType.uint64 else DType.int64
        x = scope.cast(x, dtype, DType.int64)
        number = scope.add("Max", [scope.add("Shape", [x], start=axis, end=axis + 1), scope.constant([1])])
        total = _sum_of_integers(scope, x, axis, node.inputs[0].rank)
        share = scope.add("Div", [scope.cast(name, DType.int64, wide) for name in (total, number)])
        return scope.cast(share, wide, dtype)
    wide = computed_as("ReduceMean", dtype)
    x, axes = scope.cast(x, dtype, wide), scope.constant([axis])
    size = node.inputs[0].shape[axis]
    if isinstance(size, StaticDim) and int(size):
        return scope.cast(scope.add("ReduceMean", [x, axes]), wide, dtype)
    number = scope.cast(scope.add("Shape", [x], start=axis, end=axis + 1), DType.int64, wide)
    return scope.cast(scope.add("Div", [scope.add("ReduceSum", [x, axes]), number]), wide, dtype)


@register_lowering(*_EXTREMES)
def lower_extreme(scope: Scope, node: Node) -> ir.Value:
    """Lower the extreme element of each row; NaN where there is one, as in NumPy, which the operator does not give."""
    dtype, (x,) = node.outputs[0].dtype, scope.inputs(node)
    x, wide = to_ordered(scope, x, dtype, _EXTREMES[node.op])
    axes = scope.constant([node.attributes["axis"]])
    result = scope.add(_EXTREMES[node.op], [x, axes])
    if wide.is_float():
        unordered = scope.add("ReduceMax", [scope.add("IsNaN", [x]), axes])
        result = choose(scope, unordered, scope.constant(math.nan, wide), result, wide)
    return from_ordered(scope, result, dtype, wide)


@register_lowering(*_POSITIONS)
def lower_position(scope: Scope, node: Node) -> ir.Value:
    """Lower the position of the extreme element of each row, or of the first NaN."""
    axis, (x,) = node.attributes["axis"], scope.inputs(node)
    x, wide = to_ordered(scope, x, node.inputs[0].dtype, _POSITIONS[node.op])
    result = scope.add(_POSITIONS[node.op], [x], axis=axis)
    if wide.is_float():
        unordered = scope.add("IsNaN", [x])
        first = scope.add("ArgMax", [scope.cast(unordered, DType.bool, DType.int32)], axis=axis)
        result = choose(scope, scope.add("ReduceMax", [unordered, scope.constant([axis])]), first, result, DType.int64)
    return result


def to_ordered(scope: Scope, x: ir.Value, dtype: DType, operator: str) -> tuple[ir.Value, DType]:
    """Return a tensor as a dtype that an operator has a kernel for, in the same order: uint64 as int64, less 2**63."""
    wide = computed_as(operator, dtype)
    x = scope.cast(x, dtype, wide)
    if dtype is DType.uint64:
        x = scope.add("Add", [x, scope.constant(_LOWEST)])
    return x, wide


def from_ordered(scope: Scope, x: ir.Value, dtype: DType, wide: DType) -> ir.Value:
    """Convert back from the result of `to_ordered`."""
    if dtype is DType.uint64:
        x = scope.add("Add", [x, scope.constant(_LOWEST)])
    return scope.cast(x, wide, dtype)


@register_lowering("layer_norm")
def lower_layer_norm(scope: Scope, node: Node) -> ir.Value:
    epsilon = node.attributes["epsilon"]
    return scope.compute("LayerNormalization", scope.inputs(node), node.outputs[0].dtype, axis=-1, epsilon=epsilon)


@register_lowering("rms_norm")
def lower_rms_norm(scope: Scope, node: Node) -> ir.Value:
    """Lower RMS normalisation over the last axis; computed as float32 at least."""
    x, scale = scope.inputs(node)
    dtype, scale_dtype = node.outputs[0].dtype, node.inputs[1].dtype
    wide = DType.float64 if dtype is DType.float64 else DType.float32
    epsilon = node.attributes["epsilon"]
    x = scope.cast(x, dtype, wide)
    scale = scope.cast(scale, scale_dtype, wide)
    if node.attributes["weight_offset"]:
        scale = scope.add("Add", [scale, scope.constant(node.attributes["weight_offset"], wide)])
    if node.attributes["multiply_before_cast"] or dtype is wide:
        result = scope.add("RMSNormalization", [x, scale], axis=-1, epsilon=epsilon)
        return scope.cast(result, wide, dtype)
    ones = scope.add("Expand", [scope.constant(1, wide), scope.add("Shape", [scale])])
    result = scope.cast(scope.add("RMSNormalization", [x, ones], axis=-1, epsilon=epsilon), wide, dtype)
    return scope.compute("Mul", [result, scope.cast(scale, wide, dtype)], dtype)


_COORDINATES = {"half_pixel_1d": "pytorch_half_pixel"}
_ROUNDINGS = {"half_down": "round_prefer_floor", "half_up": "round_prefer_ceil"}


@register_lowering("avg_pool2d", "max_pool2d")
def lower_pool(scope: Scope, node: Node) -> ir.Value:
    """Lower pooling to one number for each window; padding has been added before."""
    return scope.compute(
        "AveragePool" if node.op == "avg_pool2d" else "MaxPool",
        scope.inputs(node),
        node.outputs[0].dtype,
        kernel_shape=node.attributes["kernel_size"],
        strides=node.attributes["stride"],
        dilations=node.attributes["dilation"],
    )


@register_lowering("fold")
def lower_fold(scope: Scope, node: Node) -> ir.Value:
    dtype, (x,) = node.outputs[0].dtype, scope.inputs(node)
    wide = DType.float32
    window = scope.constant(node.attributes["kernel_size"])
    result = scope.add(
        "Col2Im",
        [scope.cast(x, dtype, wide), scope.dims(node.outputs[0].shape[2:]), window],
        strides=node.attributes["stride"],
        dilations=node.attributes["dilation"],
        pads=node.attributes["padding"] * 2,
    )
    return scope.cast(result, wide, dtype)


@register_lowering("resize")
def lower_resize(scope: Scope, node: Node) -> ir.Value:
    dtype, (x,) = node.outputs[0].dtype, scope.inputs(node)
    options = node.attributes
    attributes: dict[str, Attribute] = {"antialias": 1, "exclude_outside": 1} if options.get("antialias") else {}
    if "rounding" in options:
        attributes["nearest_mode"] = _ROUNDINGS.get(options["rounding"], options["rounding"])
    wide = DType.float32
    result = scope.add(
        "Resize",
        [scope.cast(x, dtype, wide), None, None, scope.dims(node.outputs[0].shape)],
        mode=options["mode"],
        coordinate_transformation_mode=_COORDINATES.get(options["coordinates"], options["coordinates"]),
        domain="",
        **attributes,
    )
    return scope.cast(result, wide, dtype)


@register_lowering("non_maximum_suppression")
def lower_non_maximum_suppression(scope: Scope, node: Node) -> ir.Value:
    boxes, scores, *limits = scope.inputs(node)
    dtype = node.inputs[0].dtype
    boxes, scores = (scope.cast(name, dtype, DType.float32) for name in (boxes, scores))
    return scope.check_shape(scope.add("NonMaxSuppression", [boxes, scores, *limits]), node.outputs[0].shape)


@register_lowering("conv2d")
def lower_conv2d(scope: Scope, node: Node) -> ir.Value:
    """Lower a convolution to Conv, which has channels before height and width; other orders of axes are converted."""
    x, filter, *bias = scope.inputs(node)
    above, below, left, right = node.attributes["padding"]
    channels_last = node.attributes["input_layout"] == "NHWC"
    if channels_last:
        x = scope.add("Transpose", [x], perm=[0, 3, 1, 2])
    if node.attributes["filter_layout"] == "RSCF":
        filter = scope.add("Transpose", [filter], perm=[3, 2, 0, 1])
    result = scope.compute(
        "Conv",
        [x, filter, *bias],
        node.outputs[0].dtype,
        strides=node.attributes["stride"],
        dilations=node.attributes["dilation"],
        pads=[above, left, below, right],
        group=node.attributes["groups"],
    )
    return scope.add("Transpose", [result], perm=[0, 2, 3, 1]) if channels_last else result
