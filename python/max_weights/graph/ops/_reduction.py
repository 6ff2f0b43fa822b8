"""Operations along one axis. The axis stays, with size 1, so that the result broadcasts against its operand."""

from __future__ import annotations

import max_weights.graph._infer as infer
from max_weights._dtype import DType
from max_weights.graph._value import TensorValue, TensorValueLike
from max_weights.graph.ops._operands import along, converted, like, operand, record, require_number


def max(x: TensorValueLike, axis: int = -1) -> TensorValue:
    """Return the largest element along an axis, which stays with size 1; for bool, whether any is true.

    Args:
        x: `[..., n, ...]`, with n at `axis`, where it must not be empty.
        axis: The axis.
    """
    return _extreme("max", x, axis)


def min(x: TensorValueLike, axis: int = -1) -> TensorValue:
    """Return the smallest element along an axis, which stays with size 1; for bool, whether all are true. See `max`."""
    return _extreme("min", x, axis)


def sum(x: TensorValueLike, axis: int = -1) -> TensorValue:
    """Compute the sum along an axis, which stays with size 1, in the operand's dtype; small integers may wrap."""
    return _reduce("sum", operand("sum", x), axis)


def prod(x: TensorValueLike, axis: int = -1) -> TensorValue:
    """Compute the product along an axis, which stays with size 1, in the operand's dtype, so that integers may wrap."""
    return _reduce("prod", operand("prod", x), axis)


def mean(x: TensorValueLike, axis: int = -1) -> TensorValue:
    """Compute the mean along an axis, which stays with size 1, in the operand's dtype; integers round toward 0."""
    return _reduce("mean", operand("mean", x), axis)


def cumsum(x: TensorValueLike, axis: int = -1, exclusive: bool = False, reverse: bool = False) -> TensorValue:
    """Compute the running sums along an axis; the shape stays.

    Args:
        x: `[..., n, ...]`, with n at `axis`.
        axis: The axis.
        exclusive: Whether each sum excludes its element, so that the first one is 0.
        reverse: Whether the sums begin at the end.
    """
    value, _, axis = along("cumsum", x, axis)
    require_number("cumsum", value)
    return record("cumsum", [value], value.type, axis=axis, exclusive=bool(exclusive), reverse=bool(reverse))


def argmax(x: TensorValueLike, axis: int = -1) -> TensorValue:
    """Return the position of the largest element along an axis, which stays with size 1; the first of equal ones.

    Positions are int64.
    """
    return _reduce("argmax", _number(operand("argmax", x)), axis, DType.int64, may_be_empty=False)


def argmin(x: TensorValueLike, axis: int = -1) -> TensorValue:
    """Return the position of the smallest element along an axis, which stays with size 1; the first of equal ones.

    Positions are int64.
    """
    return _reduce("argmin", _number(operand("argmin", x)), axis, DType.int64, may_be_empty=False)


def _extreme(op: str, x: TensorValueLike, axis: int) -> TensorValue:
    value = operand(op, x)
    return converted(_reduce(op, _number(value), axis, may_be_empty=False), value.dtype)


def _number(value: TensorValue) -> TensorValue:
    """Return the value itself, or 0 and 1 instead of false and true."""
    return converted(value, DType.int32) if value.dtype is DType.bool else value


def _reduce(
    op: str, value: TensorValue, axis: int, dtype: DType | None = None, may_be_empty: bool = True
) -> TensorValue:
    require_number(op, value)
    shape = value.shape
    axis = infer.axis_of(op, axis, len(shape), shape)
    minimums = () if may_be_empty else infer.some(op, shape, axis)
    shape[axis] = 1
    return record(op, [value], like(value, shape, dtype), axis=axis, minimums=minimums)
