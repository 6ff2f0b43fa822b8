"""Lowering of convolutions, of operations on windows and boxes of images, and of resizing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from max_weights._dtype import DType
from max_weights.graph._lowering.table import register_lowering

if TYPE_CHECKING:
    import onnx_ir as ir

    from max_weights.graph._lowering.scope import Scope
    from max_weights.graph._lowering.writer import Attribute
    from max_weights.graph._value import Node

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
    """Lower the sum of overlapping windows."""
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
    """Lower resizing."""
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
    """Lower the selection of the best boxes."""
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
