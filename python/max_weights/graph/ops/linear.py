"""Products of matrices and vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import max_weights.graph.infer as infer
from max_weights.graph.call_site import problem
from max_weights.graph.ops.operands import like, operands, record, require_number
from max_weights.graph.value import TensorValue
from max_weights.shape import listed

if TYPE_CHECKING:
    from max_weights.graph.value import TensorValueLike


def matmul(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """`lhs @ rhs`, by NumPy's rules.

    Args:
        lhs: `[..., a, k]`, or `[k]`.
        rhs: `[..., k, b]`, or `[k]`; the leading axes are broadcast.

    Returns:
        `[..., a, b]`; an operand of one axis leaves none in the result.
    """
    left, right = operands("matmul", lhs, rhs)
    shape = infer.matmul("matmul", left.shape, right.shape)
    require_number("matmul", left)
    return record("matmul", [left, right], like(left, shape))


def outer(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """Every element of `[a]` times every element of `[b]`: `[a, b]`."""
    left, right = operands("outer", lhs, rhs)
    if left.rank != 1 or right.rank != 1:
        raise problem("outer", f"takes two tensors of one axis, found {listed(left.shape)} and {listed(right.shape)}")
    require_number("outer", left)
    return record("outer", [left, right], like(left, left.shape + right.shape))
