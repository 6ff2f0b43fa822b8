"""Products of matrices and vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import max_weights.graph._infer as infer
from max_weights._dim import StaticDim
from max_weights._dtype import DType
from max_weights._shape import listed
from max_weights.graph._call_site import graph_error
from max_weights.graph._value import TensorValue
from max_weights.graph.ops._comparison import logical_and, where
from max_weights.graph.ops._creation import constant, range
from max_weights.graph.ops._operands import like, operand, operands, record, require_number
from max_weights.graph.ops._shaping import unsqueeze

if TYPE_CHECKING:
    from max_weights.graph._value import TensorValueLike


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
