"""The largest and smallest elements, of two tensors or along an axis, and the order of all."""

from __future__ import annotations

import max_weights.graph._infer as infer
import max_weights.graph.ops._elementwise as elementwise
import max_weights.graph.ops._reduction as reduction
from max_weights._dim import Dim, DimLike, StaticDim, to_dim
from max_weights._dtype import DType
from max_weights._shape import listed
from max_weights.graph._stack import current, graph_error
from max_weights.graph._value import TensorValue, TensorValueLike
from max_weights.graph.ops._operands import converted, like, operand


def max(x: TensorValueLike, y: TensorValueLike | None = None, /, axis: int | None = None) -> TensorValue:
    """Return the largest element along an axis; for two tensors, the larger of each pair of elements.

    Args:
        x: `[..., n, ...]`, with n at `axis`, where it must not be empty.
        y: A second tensor, broadcast with the first; then there is no axis.
        axis: The axis, the last one by default. The result has size 1 there.
    """
    if y is None:
        return reduction.max(x, -1 if axis is None else axis)
    _require_no_axis("max", axis)
    return elementwise.max(x, y)


def min(x: TensorValueLike, y: TensorValueLike | None = None, /, axis: int | None = None) -> TensorValue:
    """Return the smallest element along an axis; for two tensors, the smaller of each pair of elements. See `max`."""
    if y is None:
        return reduction.min(x, -1 if axis is None else axis)
    _require_no_axis("min", axis)
    return elementwise.min(x, y)


def _require_no_axis(op: str, axis: int | None) -> None:
    if axis is not None:
        raise graph_error(op, "give either two tensors, or one and an axis, not both")


def top_k(input: TensorValueLike, k: DimLike, axis: int = -1) -> tuple[TensorValue, TensorValue]:
    """Return the `k` largest elements along an axis, and their positions.

    Args:
        input: `[..., n, ...]`, with n at `axis`.
        k: The number of elements, 0 to n; an int or a `Dim`.
        axis: The axis.

    Returns:
        The elements, the largest first, and their positions as int64, the first of equal ones first; both `[..., k,
        ...]`.
    """
    return _extremes("top_k", input, k, axis, largest=True)


def bottom_k(input: TensorValueLike, k: DimLike, axis: int = -1) -> tuple[TensorValue, TensorValue]:
    """Return the `k` smallest elements along an axis, the smallest first, and their positions. See `top_k`."""
    return _extremes("bottom_k", input, k, axis, largest=False)


def argsort(x: TensorValueLike, ascending: bool = True) -> TensorValue:
    """Return the positions of the elements in sorted order, as int64; of equal ones the first comes first.

    Args:
        x: `[n]`.
        ascending: From the smallest to the largest, or the other way.

    Returns:
        `[n]`.
    """
    value = operand("argsort", x)
    if value.rank != 1:
        raise graph_error("argsort", f"takes a tensor of one axis, found {value.type}; see `top_k` for others")
    return _extremes("argsort", value, value.shape[0], 0, largest=not ascending)[1]


def _extremes(op: str, x: TensorValueLike, k: DimLike, axis: int, largest: bool) -> tuple[TensorValue, TensorValue]:
    value, count = operand(op, x), to_dim(k)
    if value.dtype is DType.bool:
        values, places = _extremes(op, converted(value, DType.int32), k, axis, largest)
        return converted(values, DType.bool), places
    shape = value.shape
    axis = infer.axis_of(op, axis, len(shape), shape)
    size = shape[axis]
    if isinstance(size, StaticDim) and isinstance(count, StaticDim) and size < count:
        raise graph_error(
            op, f"{count} elements are asked for, but the shape {listed(shape)} has {size} on axis {axis}"
        )
    minimums: tuple[tuple[Dim, Dim], ...] = ()
    if size != count and not (isinstance(size, StaticDim) and isinstance(count, StaticDim)):
        minimums = ((size, count),)
    shape[axis] = count
    attributes = {"k": count, "axis": axis, "largest": largest, "minimums": minimums}
    values, places = (
        current(op).record("top_k", [value], [like(value, shape), like(value, shape, DType.int64)], attributes).outputs
    )
    return values, places
