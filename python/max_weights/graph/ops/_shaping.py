"""The same elements in another shape or order, repeated, joined and split."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import cast

import max_weights.graph._infer as infer
from max_weights._dim import DimLike, StaticDim, to_dim
from max_weights._dtype import DType
from max_weights._shape import Shape, ShapeLike, listed
from max_weights.graph._promote import same_dtype
from max_weights.graph._stack import current, graph_error
from max_weights.graph._value import TensorValue, TensorValueLike
from max_weights.graph.ops import _reduction as reduction
from max_weights.graph.ops._creation import range as numbers
from max_weights.graph.ops._indexing import gather
from max_weights.graph.ops._operands import along, converted, is_scalar, like, operand, operands, record, scalar
from max_weights.sharding._shape_only import ShapeOnly
from max_weights.sharding._shape_only import concat as join_slices


def reshape(x: TensorValueLike, shape: Iterable[DimLike]) -> TensorValue:
    """Return the elements in the same order, in another shape of the same size.

    Args:
        x: Any tensor.
        shape: Ints, names, `Dim`; -1 once, for the remaining size.
    """
    value = operand("reshape", x)
    return record("reshape", [value], like(value, infer.reshape("reshape", value.shape, list(shape))))


def flatten(x: TensorValueLike, start_dim: int = 0, end_dim: int = -1) -> TensorValue:
    """Merge the axes from `start_dim` to `end_dim`, both included, into one; a scalar becomes `[1]`."""
    value = operand("flatten", x)
    shape = value.shape or Shape([1])
    start = infer.axis_of("flatten", start_dim, len(shape), shape)
    end = infer.axis_of("flatten", end_dim, len(shape), shape)
    if start > end:
        raise graph_error("flatten", f"start_dim {start} comes after end_dim {end}")
    joined = infer.product(shape[start : end + 1])
    return record("reshape", [value], like(value, [*shape[:start], joined, *shape[end + 1 :]]))


def rebind(x: TensorValueLike, shape: ShapeLike, message: str = "") -> TensorValue:
    """Return the same tensor with another symbolic shape, which is checked when the graph is run.

    Args:
        x: `[n, 5]`, for example.
        shape: A shape of the same rank, such as `["m", 5]`. ValueError where both shapes have an int, and these differ.
        message: The text of the error if the shapes differ in a run.
    """
    value = operand("rebind", x)
    target = Shape(shape)
    if len(target) != value.rank:
        raise graph_error("rebind", f"the shapes {listed(value.shape)} and {listed(target)} have different ranks")
    for axis, (a, b) in enumerate(zip(value.shape, target, strict=True)):
        if isinstance(a, StaticDim) and isinstance(b, StaticDim) and a != b:
            raise graph_error(
                "rebind",
                f"the shapes {listed(value.shape)} and {listed(target)} differ: on axis {axis}, {infer.differ(a, b)}",
            )
    return record("rebind", [value], like(value, target), message=message)


def transpose(x: TensorValueLike, axis_1: int, axis_2: int) -> TensorValue:
    """Swap two axes."""
    value = operand("transpose", x)
    shape = value.shape
    first = infer.axis_of("transpose", axis_1, len(shape), shape)
    second = infer.axis_of("transpose", axis_2, len(shape), shape)
    order = list(range(len(shape)))
    order[first], order[second] = second, first
    return record("permute", [value], like(value, [shape[axis] for axis in order]), dims=tuple(order))


def permute(x: TensorValueLike, dims: Iterable[int]) -> TensorValue:
    """Reorder the axes: axis `i` of the result is axis `dims[i]` of the operand."""
    value = operand("permute", x)
    shape = value.shape
    axes = list(dims)
    order = [infer.axis_of("permute", dim, len(shape), shape) for dim in axes]
    if sorted(order) != list(range(len(shape))):
        raise graph_error("permute", f"{axes} does not name each axis of the shape {listed(shape)} once")
    return record("permute", [value], like(value, [shape[axis] for axis in order]), dims=tuple(order))


def squeeze(x: TensorValueLike, axis: int) -> TensorValue:
    """Remove an axis whose size is 1."""
    value, shape, axis = along("squeeze", x, axis)
    if not infer.is_size(shape[axis], 1):
        raise graph_error("squeeze", f"the shape {listed(shape)} has size {shape[axis]} on axis {axis}, not 1")
    return record("reshape", [value], like(value, shape[:axis] + shape[axis + 1 :]))


def unsqueeze(x: TensorValueLike, axis: int) -> TensorValue:
    """Insert a new axis of size 1, which is `axis` in the result."""
    value = operand("unsqueeze", x)
    shape = value.shape
    axis = infer.axis_of("unsqueeze", axis, len(shape) + 1, shape)
    return record("reshape", [value], like(value, [*shape[:axis], 1, *shape[axis:]]))


def broadcast_to(
    x: TensorValueLike, shape: TensorValue | ShapeLike, out_dims: Iterable[DimLike] | None = None
) -> TensorValue:
    """Repeat a tensor to a shape: axes of size 1 become any size, and new ones come in front.

    Args:
        x: Any tensor.
        shape: The shape, or a tensor of integers that holds it, `[rank]`, on the CPU.
        out_dims: The shape as dimensions; needed if `shape` is a tensor, and only then.
    """
    op = "broadcast_to"
    value = operand(op, x)
    if not isinstance(shape, TensorValue):
        target = Shape(shape)
        infer.broadcast_to(op, value.shape, target)
        return record(op, [value], like(value, target))
    sizes = operand(op, shape)
    if out_dims is None:
        raise graph_error(op, "the shape is a tensor, so the dimensions are unknown; give them as out_dims")
    target = Shape(out_dims)
    if sizes.shape != [len(target)] or not sizes.dtype.is_integral() or not sizes.device.is_cpu():
        raise graph_error(op, f"a shape of {listed(target)} is {len(target)} integers on the CPU, found {sizes.type}")
    if value.rank > len(target):
        raise graph_error(op, f"the shape {listed(value.shape)} has more axes than {listed(target)}")
    return record(op, [value, converted(sizes, DType.int64)], like(value, target))


def tile(x: TensorValueLike, repeats: Iterable[DimLike]) -> TensorValue:
    """Repeat a whole tensor along each axis.

    Args:
        x: `[a, b, ...]`.
        repeats: The repetitions along each axis, as many numbers as there are axes. The result is `[a*r0, b*r1, ...]`.
    """
    value = operand("tile", x)
    times = [to_dim(count) for count in repeats]
    if len(times) != value.rank:
        raise graph_error("tile", f"the shape {listed(value.shape)} needs {value.rank} repeats, found {listed(times)}")
    shape = [dim * count for dim, count in zip(value.shape, times, strict=True)]
    return record("tile", [value], like(value, shape), repeats=tuple(times))


def pad(
    input: TensorValueLike, paddings: Iterable[int], mode: str = "constant", value: TensorValueLike = 0
) -> TensorValue:
    """Add elements before and after a tensor on each axis.

    Args:
        input: `[a, b, ...]`.
        paddings: The numbers of elements before and after on the first axis, on the second, and so on: `[a0, a1, b0,
            b1, ...]`.
        mode: The new elements. With `constant` they are `value`; with `reflect` those from the edge inward, without the
            edge itself; with `edge` the element at the edge.
        value: A number, or a scalar of the dtype of `input`.

    Returns:
        `[a0 + a + a1, b0 + b + b1, ...]`.
    """
    if mode not in ("constant", "reflect", "edge"):
        raise graph_error("pad", f"the mode must be 'constant', 'reflect' or 'edge', not {mode!r}")
    tensor, counts = operand("pad", input), [operator.index(count) for count in paddings]
    shape = tensor.shape
    if len(counts) != 2 * len(shape):
        raise graph_error("pad", f"the shape {listed(shape)} needs {2 * len(shape)} numbers, found {listed(counts)}")
    if any(count < 0 for count in counts):
        raise graph_error(
            "pad", f"the numbers must not be negative, found {listed(counts)}; use a slice to remove elements"
        )
    pairs = list(zip(counts[::2], counts[1::2], strict=True))
    minimums = []
    for axis, (dim, pair) in enumerate(zip(shape, pairs, strict=True)):
        least = max(pair) + 1 if mode == "reflect" and any(pair) else int(mode == "edge" and any(pair))
        if isinstance(dim, StaticDim) and dim < least:
            raise graph_error(
                "pad", f"the shape {listed(shape)} has too few elements on axis {axis} to {mode} {max(pair)}"
            )
        if least and not isinstance(dim, StaticDim):
            minimums.append((dim, to_dim(least)))
    result = like(tensor, [dim + (before + behind) for dim, (before, behind) in zip(shape, pairs, strict=True)])
    inputs = [tensor]
    if mode == "constant":
        if tensor.dtype is DType.bool and is_scalar(value):
            value = bool(value)
        fill = scalar("pad", value, tensor.dtype, tensor.device) if is_scalar(value) else operand("pad", value)
        if fill.rank or fill.dtype is not tensor.dtype:
            raise graph_error("pad", f"the value is a scalar of {tensor.dtype!r}, found {fill.type}")
        inputs.append(fill)
    return record("pad", inputs, result, paddings=tuple(counts), mode=mode, minimums=tuple(minimums))


def concat(original_vals: Iterable[TensorValueLike], axis: int = 0) -> TensorValue:
    """Join tensors sequentially along an axis.

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
    value, shape, axis = along("split", x, axis)
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
    value, shape, axis = along("chunk", x, axis)
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
    places = numbers(0, squeeze(reduction.sum(host), 0), 1, out_dim, device=value.device)
    ends = reduction.cumsum(counts)
    before = converted(unsqueeze(ends, 0) <= unsqueeze(places, 1), DType.int64)
    return gather(value, squeeze(reduction.sum(before), 1), axis)
