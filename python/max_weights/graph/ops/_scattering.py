"""Elements and slices at positions that a tensor holds: reading, writing, and finding them."""

from __future__ import annotations

from typing import Protocol

import max_weights.graph._infer as infer
from max_weights._dim import DimLike, StaticDim
from max_weights._dtype import DType
from max_weights._shape import Shape, listed
from max_weights.graph._stack import graph_error
from max_weights.graph._value import TensorValue, TensorValueLike
from max_weights.graph.ops._operands import converted, like, named, operand, record, require_one_device
from max_weights.graph.ops._shaping import broadcast_to, flatten, permute


class Scatter(Protocol):
    """A form of `scatter`."""

    def __call__(
        self, input: TensorValueLike, updates: TensorValueLike, indices: TensorValueLike, axis: int = -1
    ) -> TensorValue:
        """Record the operation."""
        ...


class ScatterNd(Protocol):
    """A form of `scatter_nd`."""

    def __call__(self, input: TensorValueLike, updates: TensorValueLike, indices: TensorValueLike) -> TensorValue:
        """Record the operation."""
        ...


def gather_nd(input: TensorValueLike, indices: TensorValueLike, batch_dims: int = 0) -> TensorValue:
    """Return the elements or slices at positions of several axes.

    Args:
        input: `[batch..., n0, ..., nk, rest...]`, with `batch_dims` axes in front.
        indices: Integers `[batch..., m..., k + 1]`, whose last axis, of a known size, is a position on the axes n0 to
            nk.
        batch_dims: The number of axes in front that the two have in common.

    Returns:
        `[batch..., m..., rest...]`.
    """
    op = "gather_nd"
    value, positions = operand(op, input), _positions(op, indices)
    require_one_device(op, [value, positions])
    shape, where = value.shape, positions.shape
    if not 0 <= batch_dims < max(len(where), 1):
        raise graph_error(
            op, f"batch_dims is {batch_dims}; the indices {listed(where)} allow 0 to {max(len(where) - 1, 0)}"
        )
    depth = _depth(op, where, len(shape) - batch_dims, shape)
    if shape[:batch_dims] != where[:batch_dims]:
        raise graph_error(
            op, f"the shapes {listed(shape)} and {listed(where)} do not have their first {batch_dims} axes in common"
        )
    result = where[:-1] + shape[batch_dims + depth :]
    return record(op, [value, positions], like(value, result), batch_dims=batch_dims)


def scatter(input: TensorValueLike, updates: TensorValueLike, indices: TensorValueLike, axis: int = -1) -> TensorValue:
    """Return a tensor with other elements at some positions of an axis.

    Args:
        input: `[..., n, ...]`, with n at `axis`.
        updates: The elements, of the dtype of `input`, with as many axes; on the other axes, at most as long as
            `input`.
        indices: The position of each element on `axis`, -n to n - 1: int32 or int64, of the shape of `updates`. If two
            elements have the same position, the result is one of them.
        axis: The axis.

    Returns:
        `[..., n, ...]`.
    """
    return _scatter("scatter", input, updates, indices, axis, "none")


def scatter_nd(input: TensorValueLike, updates: TensorValueLike, indices: TensorValueLike) -> TensorValue:
    """Return a tensor with other elements or slices at positions of several axes.

    Args:
        input: `[n0, ..., nk, rest...]`.
        updates: `[m..., rest...]`, of the dtype of `input`.
        indices: int32 or int64, `[m..., k + 1]`, whose last axis, of a known size, is a position on the axes n0 to nk.

    Returns:
        A tensor of the shape of `input`.
    """
    return _scatter_nd("scatter_nd", input, updates, indices, "none")


def _along_axis(reduction: str, does: str) -> Scatter:
    """Return the form of `scatter` that combines the updates with the existing elements."""

    def function(
        input: TensorValueLike, updates: TensorValueLike, indices: TensorValueLike, axis: int = -1
    ) -> TensorValue:
        return _scatter(f"scatter_{reduction}", input, updates, indices, axis, reduction)

    named(function, f"scatter_{reduction}", f"Like `scatter`, but {does}.")
    return function


def _along_axes(reduction: str, does: str) -> ScatterNd:
    """Return the form of `scatter_nd` that combines the updates with the existing elements."""

    def function(input: TensorValueLike, updates: TensorValueLike, indices: TensorValueLike) -> TensorValue:
        return _scatter_nd(f"scatter_nd_{reduction}", input, updates, indices, reduction)

    named(function, f"scatter_nd_{reduction}", f"Like `scatter_nd`, but {does}.")
    return function


_ADDED = "add the updates to the existing elements"
_LARGER = "keep the larger of the update and the existing element"
_SMALLER = "keep the smaller of the update and the existing element"
_MULTIPLIED = "multiply the existing elements by the updates"
scatter_add, scatter_nd_add = _along_axis("add", _ADDED), _along_axes("add", _ADDED)
scatter_max, scatter_nd_max = _along_axis("max", _LARGER), _along_axes("max", _LARGER)
scatter_min, scatter_nd_min = _along_axis("min", _SMALLER), _along_axes("min", _SMALLER)
scatter_mul, scatter_nd_mul = _along_axis("mul", _MULTIPLIED), _along_axes("mul", _MULTIPLIED)


def masked_scatter(
    input: TensorValueLike, mask: TensorValueLike, updates: TensorValueLike, out_dim: DimLike
) -> TensorValue:
    """Return a tensor with other elements where a mask is true, in the order of its elements.

    Args:
        input: Any tensor with an axis.
        mask: bool, broadcast to the shape of `input`.
        updates: As many elements as the mask has true ones, of the dtype of `input`.
        out_dim: Their number, as a number or a name.
    """
    value = operand("masked_scatter", input)
    chooser = operand("masked_scatter", mask)
    if chooser.dtype is not DType.bool:
        raise graph_error("masked_scatter", f"the mask must be bool, found {chooser.type}; compare it, as in `x != 0`")
    places = nonzero(broadcast_to(chooser, value.shape), out_dim)
    elements = flatten(operand("masked_scatter", updates))
    if elements.shape != [places.shape[0]]:
        elements = record("rebind", [elements], like(elements, [places.shape[0]]), message="")
    return scatter_nd(value, elements, places)


def nonzero(x: TensorValueLike, out_dim: DimLike) -> TensorValue:
    """Return the positions of the elements that are not 0, or are true, in the order of the elements.

    Args:
        x: Any tensor with `r` axes, at least one.
        out_dim: The number of positions, as a number or a name: it is known only when the graph is run.

    Returns:
        int64, `[out_dim, r]`.
    """
    value = operand("nonzero", x)
    if not value.rank:
        raise graph_error("nonzero", f"a scalar has no positions, found {value.type}; compare it, as in `x != 0`")
    columns = record("nonzero", [value], like(value, [value.rank, out_dim], DType.int64))
    return permute(columns, [1, 0])


def _scatter(
    op: str, x: TensorValueLike, updates: TensorValueLike, indices: TensorValueLike, axis: int, reduction: str
) -> TensorValue:
    value, elements, positions = _three(op, x, updates, indices)
    shape = value.shape
    axis = infer.axis_of(op, axis, len(shape), shape)
    infer.same(op, [elements.shape, positions.shape], None)
    if elements.rank != value.rank:
        raise graph_error(op, f"the shapes {listed(shape)} and {listed(elements.shape)} have different ranks")
    for other, (size, length) in enumerate(zip(shape, elements.shape, strict=True)):
        if other != axis and isinstance(size, StaticDim) and isinstance(length, StaticDim) and size < length:
            raise graph_error(
                op, f"the updates {listed(elements.shape)} are longer than {listed(shape)} on axis {other}: {length}"
            )
    return record("scatter", [value, positions, elements], value.type, axis=axis, reduction=reduction)


def _scatter_nd(
    op: str, x: TensorValueLike, updates: TensorValueLike, indices: TensorValueLike, reduction: str
) -> TensorValue:
    value, elements, positions = _three(op, x, updates, indices)
    shape, where = value.shape, positions.shape
    depth = _depth(op, where, len(shape), shape)
    infer.same(op, [where[:-1] + shape[depth:], elements.shape], None)
    return record("scatter_nd", [value, positions, elements], value.type, reduction=reduction)


def _three(op: str, x: TensorValueLike, updates: TensorValueLike, indices: TensorValueLike) -> list[TensorValue]:
    """Return the tensor to write to, the updates, and their positions."""
    value, elements, positions = operand(op, x), operand(op, updates), _positions(op, indices)
    if value.dtype is not elements.dtype:
        raise graph_error(
            op, f"{value.dtype!r} and {elements.dtype!r} are different dtypes; convert one with `.cast(...)`"
        )
    require_one_device(op, [value, elements, positions])
    return [value, elements, positions]


def _positions(op: str, indices: TensorValueLike) -> TensorValue:
    value = operand(op, indices)
    if not value.dtype.is_integral():
        raise graph_error(op, f"the indices must be integers, found {value.type}")
    return value if value.dtype is DType.int32 else converted(value, DType.int64)


def _depth(op: str, where: Shape, most: int, shape: Shape) -> int:
    """Return the number of axes that one index is for."""
    if not where or not isinstance(where[-1], StaticDim):
        raise graph_error(op, f"the last axis of the indices must have a known size, found {listed(where)}")
    depth = where[-1].dim
    if not depth:
        raise graph_error(op, f"an index must have at least one number, found {listed(where)}")
    if depth > most:
        raise graph_error(
            op, f"an index of {depth} numbers is for more axes than the shape {listed(shape)} has: {most}"
        )
    return depth
