"""Complex numbers as tensors whose last axis, of size 2, holds the real and the imaginary part."""

from __future__ import annotations

import max_weights.graph._infer as infer
from max_weights._dim import to_dim
from max_weights._shape import listed
from max_weights.graph._stack import graph_error
from max_weights.graph._value import TensorValue, TensorValueLike
from max_weights.graph.ops._operands import like, operand, operands, record
from max_weights.graph.ops._shaping import stack


def as_interleaved_complex(x: TensorValueLike) -> TensorValue:
    """Turn pairs of numbers into complex ones: `[..., 2 * n]` becomes `[..., n, 2]`."""
    value = operand("as_interleaved_complex", x)
    shape = value.shape
    half = shape[-1] // 2 if shape else to_dim(0)
    if not shape or half * 2 != shape[-1]:
        raise graph_error(
            "as_interleaved_complex", f"the last axis of the shape {listed(shape)} is not known to be even"
        )
    return record("reshape", [value], like(value, [*shape[:-1], half, 2]))


def mul(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """Multiply two tensors of complex numbers, `[..., 2]` each, broadcast together."""
    left, right = operands("complex.mul", lhs, rhs)
    for value in (left, right):
        if not value.rank or not infer.is_size(value.shape[-1], 2):
            raise graph_error("complex.mul", f"the last axis holds the real and the imaginary part, found {value.type}")
    a, b = left[..., 0], left[..., 1]
    c, d = right[..., 0], right[..., 1]
    return stack([a * c - b * d, a * d + b * c], axis=-1)
