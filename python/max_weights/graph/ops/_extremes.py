"""`max` and `min` of one tensor along an axis, or of two tensors element by element."""

from __future__ import annotations

from typing import TYPE_CHECKING

import max_weights.graph.ops._elementwise as elementwise
import max_weights.graph.ops._reduction as reduction
from max_weights.graph._call_site import graph_error
from max_weights.graph._value import TensorValue

if TYPE_CHECKING:
    from max_weights.graph._value import TensorValueLike


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
