"""The shapes of results from the shapes of operands, with symbolic dimensions.

Two dimensions are the same if they are equal as polynomials. If it cannot be known whether they are, the operation is
refused, and the message names the `rebind` that states it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from itertools import count
from typing import SupportsIndex

from max_weights._dim import Dim, DimLike, StaticDim, factors_of, to_dim
from max_weights._shape import Shape, listed
from max_weights.graph._errors import GraphIndexError
from max_weights.graph._stack import graph_error


def axis_of(op: str, axis: SupportsIndex, rank: int, shape: Sequence[Dim]) -> int:
    """Return an axis counted from the front; `rank` is one more than the shape has if a new axis is created."""
    number = operator.index(axis)
    if not -rank <= number < rank:
        choices = f"{-rank} to {rank - 1}" if rank else "none"
        raise graph_error(op, f"the shape {listed(shape)} has no axis {number} (axes: {choices})", GraphIndexError)
    return number % rank


def is_size(dim: Dim, size: int) -> bool:
    """Whether a dimension is known to have this size."""
    return isinstance(dim, StaticDim) and dim.dim == size


def new_symbol(name: str, names_in_use: set[str]) -> Dim:
    """Return a symbol of this name, with a number appended if it is taken; its name is taken from then on."""
    names = (name if number == 0 else f"{name}_{number}" for number in count())
    symbol = next(candidate for candidate in names if candidate not in names_in_use)
    names_in_use.add(symbol)
    return to_dim(symbol)


def some(op: str, shape: Shape, axis: int) -> tuple[tuple[Dim, Dim], ...]:
    """Return the assumption of an operation that an axis has elements; refuse an axis that is known to have none."""
    size = shape[axis]
    if is_size(size, 0):
        raise graph_error(op, f"the shape {listed(shape)} has no elements on axis {axis % len(shape)}")
    return () if isinstance(size, StaticDim) else ((size, to_dim(1)),)


def broadcast(op: str, left: Shape, right: Shape) -> Shape:
    """Return the shape that both are broadcast to, by NumPy's rules: aligned at the last axis, 1 fits anything."""
    shared = min(len(left), len(right))
    front = left[: len(left) - shared] or right[: len(right) - shared]
    result, mismatches = [], []
    for axis in range(-shared, 0):
        a, b = left[axis], right[axis]
        if a != b and not is_size(a, 1) and not is_size(b, 1):
            mismatches.append(axis)
        result.append(b if is_size(a, 1) else a)
    if mismatches:
        axis = _clearest(left, right, mismatches)
        a, b = left[axis], right[axis]
        raise graph_error(
            op,
            f"the shapes {listed(left)} and {listed(right)} do not broadcast: on axis {axis}, {differ(a, b)}"
            + rebind_hint(a, b, left, right, axis),
        )
    return front + result


def _clearest(left: Shape, right: Shape, mismatches: Sequence[int]) -> int:
    """Return the axis to name: one where sizes are known to differ, before one where they only may."""
    return next((axis for axis in mismatches if _both_static(left[axis], right[axis])), mismatches[0])


def differ(left: Dim, right: Dim) -> str:
    """Return in words that two dimensions are not known to be equal."""
    if _both_static(left, right):
        return f"{left} is not {right}"
    return f"{left} and {right} may differ"


def rebind_hint(a: Dim, b: Dim, left: Shape, right: Shape, axis: int, right_axis: int | None = None) -> str:
    """Return which `rebind` states that two dimensions are equal; nothing if they cannot be."""
    if _both_static(a, b):
        return ""
    if isinstance(b, StaticDim):  # the known size replaces the unknown one
        which, shape = "first", left.copy()
        shape[axis] = b
    else:
        which, shape = "second", right.copy()
        shape[axis if right_axis is None else right_axis] = a
    dimensions = ", ".join(repr(str(dim)) if str(dim).isidentifier() else str(dim) for dim in shape)
    return f"; if they are equal, say so with `.rebind([{dimensions}])` on the {which}"


def broadcast_to(op: str, shape: Shape, target: Shape) -> None:
    """Check that a shape can be broadcast to another."""
    if len(shape) > len(target):
        raise graph_error(op, f"the shape {listed(shape)} has more axes than {listed(target)}")
    for axis in range(-len(shape), 0):
        if shape[axis] != target[axis] and not is_size(shape[axis], 1):
            raise graph_error(
                op,
                f"the shape {listed(shape)} does not broadcast to {listed(target)}: on axis {axis}, "
                + differ(shape[axis], target[axis]),
            )


def matmul(op: str, left: Shape, right: Shape) -> Shape:
    """Return the shape of a product: `[..., a, k] @ [..., k, b]` is `[..., a, b]`.

    An operand of one axis is a row on the left, a column on the right, and loses that axis in the result.
    """
    shown = f"the shapes {listed(left)} and {listed(right)}"
    if not left or not right:
        raise graph_error(op, f"{shown} do not multiply: a scalar has no axis to sum over; use `*`")
    inner, other, axis = left[-1], right[-2] if len(right) > 1 else right[0], -2 if len(right) > 1 else -1
    if inner != other:
        hint = rebind_hint(inner, other, left, right, -1, axis)
        raise graph_error(op, f"{shown} do not multiply: the inner dimensions, {differ(inner, other)}{hint}")
    batch = broadcast(op, left[:-2], right[:-2])
    return batch + left[-2:-1] + (right[-1:] if len(right) > 1 else [])


def same(op: str, shapes: Sequence[Shape], axis: int | None) -> None:
    """Check that shapes are equal, except along one axis."""
    first = shapes[0]
    for shape in shapes[1:]:
        if len(shape) != len(first):
            raise graph_error(op, f"the shapes {listed(first)} and {listed(shape)} have different ranks")
        mismatches = [i for i, (a, b) in enumerate(zip(first, shape, strict=True)) if i != axis and a != b]
        if mismatches:
            i = _clearest(first, shape, mismatches)
            raise graph_error(
                op,
                f"the shapes {listed(first)} and {listed(shape)} do not fit: on axis {i}, {differ(first[i], shape[i])}"
                + rebind_hint(first[i], shape[i], first, shape, i),
            )


def product(dims: Sequence[Dim]) -> Dim:
    """Return the number of elements."""
    total = to_dim(math.prod(dim.dim for dim in dims if isinstance(dim, StaticDim)))
    for dim in dims:
        if not isinstance(dim, StaticDim):
            total = total * dim
    return total


def reshape(op: str, shape: Shape, target: Sequence[DimLike]) -> Shape:
    """Return the new shape, with `-1`, which may occur once, computed."""
    unknown = [i for i, dim in enumerate(target) if not isinstance(dim, str | Dim) and operator.index(dim) == -1]
    if len(unknown) > 1:
        raise graph_error(op, f"only one dimension can be inferred; found -1 {len(unknown)} times in {listed(target)}")
    sizes = Shape(dim for i, dim in enumerate(target) if i not in unknown)
    if not unknown:
        before, after = product(shape), product(sizes)
        if before != after:
            raise graph_error(
                op,
                f"the shapes {listed(shape)} and {listed(sizes)} hold {before} and {after} elements: "
                f"{differ(before, after)}"
                + ("" if _both_static(before, after) else f"; if they are equal, rebind {listed(shape)} first"),
            )
        return sizes
    missing = _quotient(op, shape, sizes, target)
    return Shape([*sizes[: unknown[0]], missing, *sizes[unknown[0] :]])


def _both_static(left: Dim, right: Dim) -> bool:
    return isinstance(left, StaticDim) and isinstance(right, StaticDim)


def _quotient(op: str, shape: Shape, sizes: Shape, target: Sequence[DimLike]) -> Dim:
    """Return the size of the -1."""
    count, atoms = _factors(shape)
    divisor, used = _factors(sizes)
    if divisor == 0:
        raise graph_error(
            op, f"the shapes {listed(shape)} and {listed(target)}: next to a dimension of 0, -1 could be anything"
        )
    rest = []
    for atom in used:
        if atom in atoms:
            atoms.remove(atom)
        else:
            rest.append(atom)
    if rest and count:
        raise graph_error(
            op,
            f"the shapes {listed(shape)} and {listed(target)}: it is not known whether {product(shape)} elements "
            f"divide by {product(sizes)}; if they do, rebind {listed(shape)} first",
        )
    if count % divisor:
        certain = "do not" if not atoms else "may not"
        raise graph_error(
            op,
            f"the shapes {listed(shape)} and {listed(target)}: {product(shape)} elements {certain} divide by {divisor}",
        )
    return product([to_dim(count // divisor), *atoms])


def _factors(dims: Sequence[Dim]) -> tuple[int, list[Dim]]:
    count, atoms = 1, []
    for dim in dims:
        coefficient, factors = factors_of(dim)
        count *= coefficient
        atoms += factors
    return count, atoms
