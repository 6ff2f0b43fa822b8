"""Join several tensors into one, and split one into several."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

import max_weights.graph._infer as infer
from max_weights._dim import DimLike, to_dim
from max_weights._shape import listed
from max_weights.graph._call_site import graph_error
from max_weights.graph._promote import same_dtype
from max_weights.graph._stack import current
from max_weights.graph._value import TensorValue
from max_weights.graph.ops._operands import like, operand, operands, record
from max_weights.sharding._shape_only import ShapeOnly
from max_weights.sharding._shape_only import concat as join_slices

if TYPE_CHECKING:
    from max_weights.graph._value import TensorValueLike


def concat(original_vals: Iterable[TensorValueLike], axis: int = 0) -> TensorValue:
    """Join tensors one after the other along an axis.

    Args:
        original_vals: One or more, `[..., n_i, ...]`, equal except along the axis, and of one dtype: nothing is
            converted.
        axis: The axis on which the result has the sum of the sizes.

    In a sharding function of your own, it joins slices of the stand-in that the function is given.
    """
    if not isinstance(original_vals, TensorValue):
        original_vals = list(original_vals)
        if any(isinstance(value, ShapeOnly) for value in original_vals):
            return cast("TensorValue", join_slices(cast("list[ShapeOnly]", original_vals), axis))
    values = _several("concat", original_vals)
    shapes = [value.shape for value in values]
    axis = infer.axis_of("concat", axis, len(shapes[0]), shapes[0])
    infer.same("concat", shapes, axis)
    shape, total = shapes[0], to_dim(0)
    for other in shapes:
        total = total + other[axis]
    shape[axis] = total
    return record("concat", values, like(values[0], shape), axis=axis)


def stack(values: Iterable[TensorValueLike], axis: int = 0) -> TensorValue:
    """Join tensors of one shape and dtype along a new axis, which is `axis` in the result."""
    parts = _several("stack", values)
    shapes = [value.shape for value in parts]
    infer.same("stack", shapes, None)
    shape = shapes[0]
    axis = infer.axis_of("stack", axis, len(shape) + 1, shape)
    return record("stack", parts, like(parts[0], [*shape[:axis], len(parts), *shape[axis:]]), axis=axis)


def split(x: TensorValueLike, split_sizes: Iterable[DimLike], axis: int = 0) -> list[TensorValue]:
    """Split a tensor into pieces along an axis.

    Args:
        x: `[..., n, ...]`.
        split_sizes: The size of each piece; their sum is `n`.
        axis: The axis.
    """
    value = operand("split", x)
    shape = value.shape
    axis = infer.axis_of("split", axis, len(shape), shape)
    sizes = [to_dim(size) for size in split_sizes]
    total = to_dim(0)
    for size in sizes:
        total = total + size
    if total != shape[axis]:
        raise graph_error(
            "split",
            f"the sizes {listed(sizes)} sum to {total}, but the shape {listed(shape)} has {shape[axis]} on axis {axis}",
        )
    types = [like(value, [*shape[:axis], size, *shape[axis + 1 :]]) for size in sizes]
    return list(current("split").record("split", [value], types, {"sizes": tuple(sizes), "axis": axis}).outputs)


def chunk(x: TensorValueLike, chunks: int, axis: int = 0) -> list[TensorValue]:
    """Split a tensor into equal pieces along an axis.

    Args:
        x: `[..., n, ...]`.
        chunks: The number of pieces; n is a multiple of it.
        axis: The axis.

    Returns:
        That many tensors `[..., n // chunks, ...]`.
    """
    value = operand("chunk", x)
    shape = value.shape
    axis = infer.axis_of("chunk", axis, len(shape), shape)
    if chunks < 1:
        raise graph_error("chunk", f"the number of pieces must be positive, not {chunks}")
    size = shape[axis] // chunks
    if size * chunks != shape[axis]:
        raise graph_error(
            "chunk", f"the shape {listed(shape)} has {shape[axis]} on axis {axis}, not a multiple of {chunks}"
        )
    return split(value, [size] * chunks, axis)


def _several(op: str, values: Iterable[TensorValueLike]) -> list[TensorValue]:
    if isinstance(values, TensorValue):
        raise TypeError(f"{op}: takes a list of tensors, not one TensorValue")
    tensors = list(values)
    if not tensors:
        raise graph_error(op, "takes at least one tensor; the list is empty")
    return operands(op, *tensors, common=same_dtype)
