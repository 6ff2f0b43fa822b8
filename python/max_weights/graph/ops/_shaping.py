"""The same elements in another shape or order."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING

import max_weights.graph._infer as infer
from max_weights._dim import DimLike, StaticDim, to_dim
from max_weights._dtype import DType
from max_weights._shape import Shape, ShapeLike, listed
from max_weights.graph._call_site import graph_error
from max_weights.graph._value import TensorValue
from max_weights.graph.ops._operands import converted, is_scalar, like, operand, record, scalar

if TYPE_CHECKING:
    from max_weights.graph._value import TensorValueLike


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
    value = operand("squeeze", x)
    shape = value.shape
    axis = infer.axis_of("squeeze", axis, len(shape), shape)
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
        mode: `constant` for `value`; `reflect` for the elements from the edge inward, without the edge itself; `edge`
            for the element at the edge.
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
