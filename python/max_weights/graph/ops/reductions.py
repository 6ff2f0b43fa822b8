"""Operations along one axis. The axis stays, with size 1, so that the result broadcasts against its operand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import max_weights.graph.infer as infer
from max_weights.dtype import DType
from max_weights.graph.call_site import problem
from max_weights.graph.ops.elementwise import arithmetic
from max_weights.graph.ops.operands import converted, like, operand, record, require_number
from max_weights.graph.value import TensorValue
from max_weights.shape import listed

if TYPE_CHECKING:
    from max_weights.graph.value import TensorValueLike


def max(x: TensorValueLike, y: TensorValueLike | None = None, *, axis: int | None = None) -> TensorValue:
    """The largest element along an axis; of two tensors, the larger of each pair of elements.

    Args:
        x: `[..., n, ...]`, the n being at `axis`; not empty there.
        y: A second tensor, broadcast with the first; then there is no axis.
        axis: The axis, the last one by default. The result has size 1 there.
    """
    return _extreme("max", x, y, axis)


def min(x: TensorValueLike, y: TensorValueLike | None = None, *, axis: int | None = None) -> TensorValue:
    """The smallest element along an axis; of two tensors, the smaller of each pair of elements. See `max`."""
    return _extreme("min", x, y, axis)


def sum(x: TensorValueLike, axis: int = -1) -> TensorValue:
    """The sum along an axis, which stays with size 1; of the operand's dtype, so that small integers may wrap."""
    return _reduce("sum", operand("sum", x), axis)


def mean(x: TensorValueLike, axis: int = -1) -> TensorValue:
    """The mean along an axis, which stays with size 1; float64 for integers, as in NumPy."""
    value = operand("mean", x)
    return _reduce("mean", converted(value, DType.float64) if value.dtype.is_integral() else value, axis)


def argmax(x: TensorValueLike, axis: int = -1) -> TensorValue:
    """Where along an axis the largest element is, the first of equal ones, as int64; the axis stays with size 1."""
    return _reduce("argmax", operand("argmax", x), axis, DType.int64, may_be_empty=False)


def argmin(x: TensorValueLike, axis: int = -1) -> TensorValue:
    """Where along an axis the smallest element is, the first of equal ones, as int64; the axis stays with size 1."""
    return _reduce("argmin", operand("argmin", x), axis, DType.int64, may_be_empty=False)


def _extreme(op: str, x: TensorValueLike, y: TensorValueLike | None, axis: int | None) -> TensorValue:
    if y is None:
        return _reduce(op, operand(op, x), -1 if axis is None else axis, may_be_empty=False)
    if axis is not None:
        raise problem(op, "either two tensors or one and an axis, not both")
    return arithmetic(f"{op}imum", x, y)


def _reduce(
    op: str, value: TensorValue, axis: int, dtype: DType | None = None, may_be_empty: bool = True
) -> TensorValue:
    require_number(op, value)
    shape = value.shape
    axis = infer.axis_of(op, axis, len(shape), shape)
    if infer.is_size(shape[axis], 0) and not may_be_empty:
        raise problem(op, f"the shape {listed(shape)} has no elements on axis {axis}")
    shape[axis] = 1
    return record(op, [value], like(value, shape, dtype), axis=axis)
