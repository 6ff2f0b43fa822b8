"""Repetition of elements."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import max_weights.graph._infer as infer
from max_weights._dim import DimLike
from max_weights._dtype import DType
from max_weights.graph._call_site import graph_error
from max_weights.graph._value import TensorValue
from max_weights.graph.ops._creation import range
from max_weights.graph.ops._indexing import gather
from max_weights.graph.ops._operands import converted, operand
from max_weights.graph.ops._reduction import cumsum, sum
from max_weights.graph.ops._shaping import broadcast_to, flatten, squeeze, unsqueeze

if TYPE_CHECKING:
    from max_weights.graph._value import TensorValueLike


def repeat_interleave(
    x: TensorValueLike, repeats: int | TensorValue, axis: int | None = None, out_dim: DimLike | None = None
) -> TensorValue:
    """Repeat each element of an axis several times in succession.

    Args:
        x: `[..., n, ...]`, with n at `axis`.
        repeats: The number of repetitions: an int of 0 or more, or integers of shape `[]`, `[1]` or `[n]`.
        axis: The axis; `None` for all elements as one row.
        out_dim: The number of elements in the result; needed if `repeats` is a tensor, and only then.

    Returns:
        `[..., n * repeats, ...]`, or `[..., out_dim, ...]`.
    """
    op = "repeat_interleave"
    value = flatten(x) if axis is None else operand(op, x)
    shape = value.shape
    axis = infer.axis_of(op, 0 if axis is None else axis, len(shape), shape)
    if isinstance(repeats, TensorValue):
        return _repeated(op, value, axis, operand(op, repeats), out_dim)
    times = operator.index(repeats)
    if times < 0:
        raise graph_error(op, f"the number of repeats must be 0 or more, not {times}")
    wide = broadcast_to(unsqueeze(value, axis + 1), [*shape[: axis + 1], times, *shape[axis + 1 :]])
    return flatten(wide, axis, axis + 1)


def _repeated(op: str, value: TensorValue, axis: int, repeats: TensorValue, out_dim: DimLike | None) -> TensorValue:
    """Repeat as a tensor says: a position in the result comes from the first element that ends after it."""
    if out_dim is None:
        raise graph_error(op, "the number of elements is unknown; give it as out_dim")
    if not repeats.dtype.is_integral() or repeats.rank > 1:
        raise graph_error(op, f"the repeats must be integers along one axis, found {repeats.type}")
    counts = broadcast_to(converted(repeats, DType.int64), [value.shape[axis]])
    host = counts.to("cpu")
    places = range(0, squeeze(sum(host), 0), 1, out_dim, device=value.device)
    ends = cumsum(counts)
    sources = squeeze(sum(converted(unsqueeze(ends, 0) <= unsqueeze(places, 1), DType.int64)), 1)
    return gather(value, sources, axis)
