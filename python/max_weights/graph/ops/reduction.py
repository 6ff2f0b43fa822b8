"""Operations along one axis. The axis stays, with size 1, so that the result broadcasts against its operand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import max_weights.graph.infer as infer
from max_weights.dim import StaticDim, to_dim
from max_weights.dtype import DType
from max_weights.graph.call_site import problem
from max_weights.graph.ops.operands import converted, like, operand, record, require_number
from max_weights.graph.value import TensorValue
from max_weights.shape import listed

if TYPE_CHECKING:
    from max_weights.graph.value import TensorValueLike


def max(x: TensorValueLike, axis: int = -1) -> TensorValue:
    """The largest element along an axis, which stays with size 1; of bool, whether any is true.

    Args:
        x: `[..., n, ...]`, the n being at `axis`; not empty there.
        axis: The axis.
    """
    return _extreme("max", x, axis)


def min(x: TensorValueLike, axis: int = -1) -> TensorValue:
    """The smallest element along an axis, which stays with size 1; of bool, whether all are true. See `max`."""
    return _extreme("min", x, axis)


def sum(x: TensorValueLike, axis: int = -1) -> TensorValue:
    """The sum along an axis, which stays with size 1; of the operand's dtype, so that small integers may wrap."""
    return _reduce("sum", operand("sum", x), axis)


def prod(x: TensorValueLike, axis: int = -1) -> TensorValue:
    """The product along an axis, which stays with size 1; of the operand's dtype, so that integers may wrap."""
    return _reduce("prod", operand("prod", x), axis)


def mean(x: TensorValueLike, axis: int = -1) -> TensorValue:
    """The mean along an axis, which stays with size 1; of the operand's dtype, and among integers rounded toward 0."""
    return _reduce("mean", operand("mean", x), axis)


def cumsum(x: TensorValueLike, axis: int = -1, exclusive: bool = False, reverse: bool = False) -> TensorValue:
    """The sums of what comes up to each element along an axis; the shape stays.

    Args:
        x: `[..., n, ...]`, the n being at `axis`.
        axis: The axis.
        exclusive: Whether each element is left out of its own sum, so that the first one is 0.
        reverse: Whether it is summed from the end.
    """
    value = operand("cumsum", x)
    require_number("cumsum", value)
    axis = infer.axis_of("cumsum", axis, value.rank, value.shape)
    return record("cumsum", [value], value.type, axis=axis, exclusive=bool(exclusive), reverse=bool(reverse))


def argmax(x: TensorValueLike, axis: int = -1) -> TensorValue:
    """Where along an axis the largest element is, the first of equal ones, as int64; the axis stays with size 1."""
    return _reduce("argmax", _number(operand("argmax", x)), axis, DType.int64, may_be_empty=False)


def argmin(x: TensorValueLike, axis: int = -1) -> TensorValue:
    """Where along an axis the smallest element is, the first of equal ones, as int64; the axis stays with size 1."""
    return _reduce("argmin", _number(operand("argmin", x)), axis, DType.int64, may_be_empty=False)


def _extreme(op: str, x: TensorValueLike, axis: int) -> TensorValue:
    value = operand(op, x)
    return converted(_reduce(op, _number(value), axis, may_be_empty=False), value.dtype)


def _number(value: TensorValue) -> TensorValue:
    """The value itself, or 0 and 1 in the place of false and true."""
    return converted(value, DType.int32) if value.dtype is DType.bool else value


def _reduce(
    op: str, value: TensorValue, axis: int, dtype: DType | None = None, may_be_empty: bool = True
) -> TensorValue:
    require_number(op, value)
    shape = value.shape
    axis = infer.axis_of(op, axis, len(shape), shape)
    size = shape[axis]
    if infer.is_size(size, 0) and not may_be_empty:
        raise problem(op, f"the shape {listed(shape)} has no elements on axis {axis}")
    needs = () if may_be_empty or isinstance(size, StaticDim) else ((size, to_dim(1)),)
    shape[axis] = 1
    return record(op, [value], like(value, shape, dtype), axis=axis, at_least=needs)
