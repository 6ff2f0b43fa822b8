"""Operations with boolean results, and the selection by a condition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import max_weights.graph._infer as infer
from max_weights._dtype import DType
from max_weights.graph._call_site import graph_error
from max_weights.graph._value import TensorValue
from max_weights.graph.ops._operands import converted, like, operand, operands, record, require_one_device

if TYPE_CHECKING:
    from max_weights.graph._value import TensorValueLike


def equal(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """Compute `lhs == rhs`, element by element."""
    return _compare("equal", lhs, rhs)


def not_equal(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """Compute `lhs != rhs`, element by element."""
    return _compare("not_equal", lhs, rhs)


def less(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """Compute `lhs < rhs`, element by element."""
    return _compare("less", lhs, rhs, ordered=True)


def less_equal(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """Compute `lhs <= rhs`, element by element."""
    return _compare("less_equal", lhs, rhs, ordered=True)


def greater(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """Compute `lhs > rhs`, element by element."""
    return _compare("greater", lhs, rhs, ordered=True)


def greater_equal(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """Compute `lhs >= rhs`, element by element."""
    return _compare("greater_equal", lhs, rhs, ordered=True)


def logical_and(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """Compute `lhs & rhs`, for bool."""
    return _logical("logical_and", lhs, rhs)


def logical_or(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """Compute `lhs | rhs`, for bool."""
    return _logical("logical_or", lhs, rhs)


def logical_xor(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """Compute `lhs ^ rhs`, for bool."""
    return _logical("logical_xor", lhs, rhs)


def logical_not(x: TensorValueLike) -> TensorValue:
    """Compute `~x`, for bool."""
    value = operand("logical_not", x)
    _require_bool("logical_not", value)
    return record("logical_not", [value], value.type)


def where(condition: TensorValueLike, x: TensorValueLike, y: TensorValueLike) -> TensorValue:
    """Return the elements of `x` where the condition is true, else those of `y`; all three are broadcast together.

    Args:
        condition: A tensor of bool.
        x: A tensor or a number, with a common dtype with `y`.
        y: A tensor or a number.
    """
    chooser = operand("where", condition)
    _require_bool("where", chooser)
    left, right = operands("where", x, y)
    require_one_device("where", [chooser, left, right])
    shape = infer.broadcast("where", infer.broadcast("where", left.shape, right.shape), chooser.shape)
    return record("where", [chooser, left, right], like(left, shape))


def _compare(op: str, lhs: TensorValueLike, rhs: TensorValueLike, ordered: bool = False) -> TensorValue:
    left, right = operands(op, lhs, rhs)
    if ordered and left.dtype is DType.bool:  # false is less than true
        left, right = converted(left, DType.int32), converted(right, DType.int32)
    shape = infer.broadcast(op, left.shape, right.shape)
    return record(op, [left, right], like(left, shape, DType.bool))


def _logical(op: str, lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    left, right = operands(op, lhs, rhs)
    _require_bool(op, left)
    shape = infer.broadcast(op, left.shape, right.shape)
    return record(op, [left, right], like(left, shape))


def _require_bool(op: str, value: TensorValue) -> None:
    if value.dtype is not DType.bool:
        raise graph_error(op, f"needs bool, found {value.type}; compare it, as in `x != 0`")
