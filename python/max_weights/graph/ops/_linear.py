"""Products, with matrices in packed blocks too, and operations that scale a tensor by the values on its last axis."""

from __future__ import annotations

import max_weights.graph._infer as infer
from max_weights._dim import Dim, StaticDim
from max_weights._dtype import DType
from max_weights._quantization import QuantizationConfig, QuantizationEncoding
from max_weights._shape import Shape, listed
from max_weights.errors import UnsupportedError
from max_weights.graph._stack import graph_error
from max_weights.graph._value import TensorValue, TensorValueLike
from max_weights.graph.ops._creation import constant, range
from max_weights.graph.ops._elementwise import logical_and, rsqrt, where
from max_weights.graph.ops._operands import (
    along,
    converted,
    like,
    operand,
    operands,
    record,
    require_float,
    require_number,
    require_one_device,
)
from max_weights.graph.ops._shaping import unsqueeze


def matmul(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """Compute `lhs @ rhs`, by NumPy's rules.

    Args:
        lhs: `[..., a, k]`, or `[k]`.
        rhs: `[..., k, b]`, or `[k]`; the leading axes are broadcast.

    Returns:
        `[..., a, b]`; an operand of one axis has no axis in the result.
    """
    left, right = operands("matmul", lhs, rhs)
    shape = infer.matmul("matmul", left.shape, right.shape)
    require_number("matmul", left)
    return record("matmul", [left, right], like(left, shape))


def outer(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """Multiply every element of `[a]` by every element of `[b]`: `[a, b]`."""
    left, right = operands("outer", lhs, rhs)
    if left.rank != 1 or right.rank != 1:
        raise graph_error(
            "outer", f"takes two tensors of one axis, found {listed(left.shape)} and {listed(right.shape)}"
        )
    require_number("outer", left)
    return record("outer", [left, right], like(left, left.shape + right.shape))


def band_part(
    x: TensorValueLike, num_lower: int | None = None, num_upper: int | None = None, exclude: bool = False
) -> TensorValue:
    """Set the elements of matrices outside a band about the diagonal to zero.

    Args:
        x: `[..., m, n]`.
        num_lower: The number of diagonals below the main one that are kept; `None` or -1 for all.
        num_upper: The number above it; `None` or -1 for all.
        exclude: Whether the band itself is set to zero, and the rest kept.

    Returns:
        `[..., m, n]`.
    """
    value = operand("band_part", x)
    shape = value.shape
    if len(shape) < 2:
        raise graph_error("band_part", f"takes matrices, [..., m, n], found {listed(shape)}")
    num_lower = None if num_lower == -1 else num_lower
    num_upper = None if num_upper == -1 else num_upper
    for name, count, size in (("num_lower", num_lower, shape[-2]), ("num_upper", num_upper, shape[-1])):
        if count is not None and (count < 0 or (isinstance(size, StaticDim) and size <= count)):
            raise graph_error(
                "band_part",
                f"{name} is {count}; {listed(shape)} has {size} diagonals: give fewer than that, or -1 for all",
            )
    rows = unsqueeze(range(0, shape[-2], device=value.device), 1)
    below = rows - range(0, shape[-1], device=value.device)
    inside = constant(True, device=value.device)
    if num_lower is not None:
        inside = logical_and(inside, below <= num_lower)
    if num_upper is not None:
        inside = logical_and(inside, below >= -num_upper)
    nothing = constant(False if value.dtype is DType.bool else 0, value.dtype, value.device)
    return where(inside, nothing, value) if exclude else where(inside, value, nothing)


_NAMES = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")


def qmatmul(
    encoding: QuantizationEncoding | str, config: QuantizationConfig | None, lhs: TensorValueLike, *rhs: TensorValueLike
) -> TensorValue:
    """Compute `lhs @ m.T`, where `m` is a matrix of floats in packed blocks.

    Args:
        encoding: How they are packed: Q4_0, Q4_1, Q8_0, Q4_K, Q5_K or Q6_K.
        config: Must be `None`; MAX uses it for GPTQ.
        lhs: `[..., k]`, floats, which are converted to float32.
        *rhs: The matrix `[n, k]` as `[n, bytes]` of uint8, where each row is whole blocks.

    Returns:
        `[..., n]`, of the dtype of `lhs`.

    Raises:
        UnsupportedError: GPTQ (a NotImplementedError).
        TypeError: `rhs` is not a matrix of uint8, or a row has no known size.
        GraphError: another encoding, or shapes that do not fit (a ValueError).
    """
    del config
    kind = _kind("qmatmul", encoding)
    value, matrices = operand("qmatmul", lhs), [operand("qmatmul", matrix) for matrix in rhs]
    if len(matrices) != 1:
        raise graph_error("qmatmul", f"a matrix of {kind.value} must be one tensor, found {len(matrices)}")
    (matrix,) = matrices
    require_float("qmatmul", value)
    require_one_device("qmatmul", [value, matrix])
    if matrix.rank != 2:
        raise TypeError(f"qmatmul: the matrix must be [n, bytes], found {matrix.type}")
    columns, shape = _elements("qmatmul", kind, matrix), value.shape
    if not shape or shape[-1] != columns:
        inner = infer.differ(shape[-1], columns) if shape else "a scalar has no axis to sum over"
        raise graph_error(
            "qmatmul",
            f"the shapes {listed(shape)} and {listed(matrix.shape)} do not multiply: a row of {matrix.shape[-1]} bytes "
            f"of {kind.value} is {columns} elements, and {inner}",
        )
    wide = converted(value, DType.float32)
    product = record("qmatmul", [wide, matrix], like(wide, [*shape[:-1], matrix.shape[0]]), encoding=kind.value)
    return converted(product, value.dtype)


def dequantize(encoding: QuantizationEncoding | str, quantized: TensorValueLike) -> TensorValue:
    """Decode the elements of packed blocks.

    Args:
        encoding: How they are packed: Q4_0, Q4_1, Q8_0, Q4_K, Q5_K or Q6_K.
        quantized: `[..., bytes]` of uint8, where each row is whole blocks. To be run, it must be a weight, an input, or
            whole rows of one, taken by `gather` or a slice.

    Returns:
        float32, `[..., bytes / bytes of a block * elements of a block]`.

    Raises:
        UnsupportedError: GPTQ (a NotImplementedError).
        TypeError: the blocks are not uint8, or a row has no known size.
        GraphError: another encoding, or a row that ends within a block (a ValueError).
    """
    kind, value = _kind("dequantize", encoding), operand("dequantize", quantized)
    shape = [*value.shape[:-1], _elements("dequantize", kind, value)]
    return record("dequantize", [value], like(value, shape, DType.float32), encoding=kind.value)


def _kind(op: str, encoding: QuantizationEncoding | str) -> QuantizationEncoding:
    kind = QuantizationEncoding(encoding)
    if kind is QuantizationEncoding.GPTQ:
        raise UnsupportedError(
            f"{op}: GPTQ has its scales and zero points in separate tensors, which this version cannot compute with; "
            f"convert the weights to one of {', '.join(_NAMES)}",
            rule="unsupported.kernel",
        )
    if kind.value not in _NAMES:
        raise graph_error(
            op,
            f"blocks of {kind.value} cannot be computed with, but those of {', '.join(_NAMES)} can; convert them to "
            "floats when they are loaded, with `quantization.dequantize`",
        )
    return kind


def _elements(op: str, kind: QuantizationEncoding, blocks: TensorValue) -> Dim:
    """Return the number of elements in a row of bytes."""
    if blocks.dtype is not DType.uint8 or not blocks.rank:
        raise TypeError(f"{op}: packed blocks must be uint8 bytes, found {blocks.type}")
    size = blocks.shape[-1]
    if not isinstance(size, StaticDim):
        raise TypeError(f"{op}: a row of packed blocks must have a known size, found {listed(blocks.shape)}")
    if size.dim % kind.block_size:
        raise graph_error(
            op,
            f"a block of {kind.value} has {kind.block_size} bytes, and {size} in {listed(blocks.shape)} is not a "
            "multiple",
        )
    return size // kind.block_size * kind.elements_per_block


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
    value, _, axis = along(op, x, axis)
    require_float(op, value)
    return record(op, [value], value.type, axis=axis)


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
