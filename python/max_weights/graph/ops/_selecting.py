"""The largest and smallest elements along an axis, and the order of all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import max_weights.graph._infer as infer
from max_weights._dim import Dim, DimLike, StaticDim, to_dim
from max_weights._dtype import DType
from max_weights._shape import listed
from max_weights.graph._call_site import graph_error
from max_weights.graph._stack import current
from max_weights.graph._value import TensorValue
from max_weights.graph.ops._operands import converted, like, operand

if TYPE_CHECKING:
    from max_weights.graph._value import TensorValueLike


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
