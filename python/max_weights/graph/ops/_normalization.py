"""Operations that scale a tensor by the values on its last axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import max_weights.graph._infer as infer
from max_weights._shape import Shape, listed
from max_weights.graph._call_site import graph_error
from max_weights.graph._value import TensorValue
from max_weights.graph.ops._elementwise import rsqrt
from max_weights.graph.ops._operands import like, operand, operands, record, require_float, require_one_device

if TYPE_CHECKING:
    from max_weights.graph._value import TensorValueLike


def softmax(value: TensorValueLike, axis: int = -1) -> TensorValue:
    """Compute `exp(x)` divided by its sum along an axis, for floats."""
    return _along("softmax", value, axis)


def logsoftmax(value: TensorValueLike, axis: int = -1) -> TensorValue:
    """Compute the logarithm of `softmax`, for floats."""
    return _along("logsoftmax", value, axis)


def layer_norm(input: TensorValueLike, gamma: TensorValueLike, beta: TensorValueLike, epsilon: float) -> TensorValue:
    """Compute `(x - mean) / sqrt(variance + epsilon) * gamma + beta`, over the last axis.

    Args:
        input: `[..., n]`, floats; `n` is at least 1.
        gamma: `[n]`, of the same dtype.
        beta: `[n]`, of the same dtype.
        epsilon: A positive number.
    """
    value, scale, shift = operands("layer_norm", input, gamma, beta)
    _require_row("layer_norm", value, scale)
    _require_row("layer_norm", value, shift)
    return record(
        "layer_norm",
        [value, scale, shift],
        value.type,
        epsilon=_positive("layer_norm", epsilon),
        minimums=infer.some("layer_norm", value.shape, -1),
    )


def group_norm(
    input: TensorValueLike, gamma: TensorValueLike, beta: TensorValueLike, num_groups: int, epsilon: float
) -> TensorValue:
    """Compute `(x - mean) / sqrt(variance + epsilon) * gamma + beta`, over groups of channels and the axes after them.

    Args:
        input: `[batch, channels, ...]`, floats.
        gamma: `[channels]`, of the same dtype.
        beta: `[channels]`, of the same dtype.
        num_groups: The number of groups of equal size that the channels are split into.
        epsilon: A positive number.

    Returns:
        A tensor of the shape of `input`.
    """
    op = "group_norm"
    value, scale, shift = operands(op, input, gamma, beta)
    require_float(op, value)
    shape = value.shape
    if len(shape) < 2 or scale.shape != shape[1:2] or shift.shape != shape[1:2]:
        shapes = ", ".join(listed(tensor.shape) for tensor in (value, scale, shift))
        raise graph_error(op, f"takes [batch, channels, ...], [channels] and [channels], found {shapes}")
    size = shape[1] // num_groups if num_groups > 0 else shape[1]
    if size * num_groups != shape[1]:
        raise graph_error(
            op, f"the {shape[1]} channels of {listed(shape)} are not split into {num_groups} equal groups"
        )
    rest = infer.product([size, *shape[2:]])
    rows = record("reshape", [value], like(value, [shape[0], num_groups, rest]))
    centered = rows - rows.mean()
    even = centered * rsqrt((centered * centered).mean() + _positive(op, epsilon))
    even = record("reshape", [even], like(value))
    each = Shape([shape[1], *[1] * (len(shape) - 2)])
    return even * scale.reshape(each) + shift.reshape(each)


def rms_norm(
    input: TensorValueLike,
    weight: TensorValueLike,
    epsilon: float,
    weight_offset: float = 0.0,
    multiply_before_cast: bool = False,
) -> TensorValue:
    """Compute `x / sqrt(mean(x * x) + epsilon) * (weight + weight_offset)`, over the last axis.

    Args:
        input: `[..., n]`, floats, where `n` is at least 1; the result has their dtype.
        weight: `[n]`, of any float dtype.
        epsilon: A positive number.
        weight_offset: Added to the weight: 1.0 for models that store the weight less one.
        multiply_before_cast: Whether the product is rounded to the input's dtype, or the normalised input before it.
    """
    value, scale = operand("rms_norm", input), operand("rms_norm", weight)
    require_one_device("rms_norm", [value, scale])
    require_float("rms_norm", scale)
    _require_row("rms_norm", value, scale)
    return record(
        "rms_norm",
        [value, scale],
        value.type,
        epsilon=_positive("rms_norm", epsilon),
        weight_offset=float(weight_offset),
        multiply_before_cast=bool(multiply_before_cast),
        minimums=infer.some("rms_norm", value.shape, -1),
    )


def _along(op: str, x: TensorValueLike, axis: int) -> TensorValue:
    value = operand(op, x)
    require_float(op, value)
    shape = value.shape
    return record(op, [value], value.type, axis=infer.axis_of(op, axis, len(shape), shape))


def _require_row(op: str, value: TensorValue, row: TensorValue) -> None:
    require_float(op, value)
    shape, other = value.shape, row.shape
    if not shape or len(other) != 1:
        raise graph_error(op, f"takes an input [..., n] and a weight [n], found {listed(shape)} and {listed(other)}")
    if shape[-1] != other[0]:
        raise graph_error(
            op,
            f"the shapes {listed(shape)} and {listed(other)} do not fit: {infer.differ(shape[-1], other[0])}"
            + infer.rebind_hint(shape[-1], other[0], shape, other, -1),
        )


def _positive(op: str, epsilon: float) -> float:
    if not epsilon > 0:
        raise graph_error(op, f"epsilon must be positive, not {epsilon!r}")
    return float(epsilon)
