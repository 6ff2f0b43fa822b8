"""`ShapeOnly`: the argument of a user's sharding function, instead of a weight.

The function is written as if it sliced a tensor. The stand-in records the slices, which turns the function into plain
data: it runs once for a shape and a shard, and the recorded slices then apply to weights, tensors and files alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from max_weights._dim import StaticDim
from max_weights._shape import Shape
from max_weights.sharding._pieces import Pieces, Size, static

__all__ = ["ShapeOnly", "concat", "pieces_of"]


class ShapeOnly:
    """Stands for a weight while a user's sharding function is evaluated; it has a shape and no data.

    It has `shape` and `rank`, and can be indexed by slices of step 1 and `...`. Slices of the same weight are joined by
    `concat`. Any other use raises an error.
    """

    __slots__ = ("_pieces",)
    __array_ufunc__ = None
    __iter__ = None

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces

    @property
    def shape(self) -> Shape:
        """The shape."""
        return self._pieces.shape

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self._pieces.whole)

    def __getitem__(self, index: object) -> ShapeOnly:
        indices = list(index) if isinstance(index, tuple) else [index]
        if sum(one is Ellipsis for one in indices) == 1:
            at = next(i for i, one in enumerate(indices) if one is Ellipsis)
            indices[at : at + 1] = [slice(None)] * (self.rank - len(indices) + 1)
        if len(indices) > self.rank:
            raise IndexError(f"{len(indices)} indices into a weight of {self.rank} dimensions")
        pieces = self._pieces
        for axis, one in enumerate(indices):
            if not isinstance(one, slice):
                _unsupported(f"the index {one!r}")
            if one != slice(None):
                pieces = _narrowed(pieces, axis, one)
        return ShapeOnly(pieces)

    def _part(self, pieces: Pieces) -> ShapeOnly:
        """Return the result of a sharding strategy that is called with this."""
        parts = [self[index] for index in pieces.slices]
        return parts[0] if pieces.axis is None else concat(parts, pieces.axis)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a sharding function sees only the shape of a weight: there is no `.{name}`. {_HELP}")

    def __repr__(self) -> str:
        return f"ShapeOnly({self.shape})"


_HELP = (
    "It may use `.shape`, `.rank`, slices of step 1 such as `weight[2:4, ...]`, and `ops.concat` of such slices "
    "(also max_weights.sharding._strategies.concat)"
)


def concat(parts: Sequence[ShapeOnly], axis: int = 0) -> ShapeOnly:
    """Join slices of one weight along an axis, in a sharding function of your own.

    Raises:
        ValueError: there is nothing to join, slices of different weights, shapes that differ in another axis, or parts
            that were joined along another axis.
        TypeError: a value other than slices of the weight that the function was given.
    """
    parts = list(parts)
    if not parts:
        raise ValueError("concat needs at least one slice")
    for part in parts:
        if not isinstance(part, ShapeOnly):
            raise TypeError(f"concat joins slices of the weight that a sharding function is given, not {part!r}")
    pieces_of_parts = [part._pieces for part in parts]
    first, rank = pieces_of_parts[0], parts[0].rank
    if not -rank <= axis < rank:
        raise ValueError(f"a weight of {rank} dimensions has no axis {axis}")
    axis %= rank
    for pieces in pieces_of_parts:
        if pieces.whole != first.whole:
            raise ValueError("concat joins slices of one weight; these are from different ones")
        if pieces.axis not in (None, axis):
            raise ValueError(
                f"these slices were joined along axis {pieces.axis} and cannot also be joined along {axis}"
            )
        if any(pieces.boxes[0][i] != first.boxes[0][i] for i in range(rank) if i != axis):
            raise ValueError(f"slices that are joined along axis {axis} must have the same ranges on the other axes")
    return ShapeOnly(Pieces(first.whole, [box for pieces in pieces_of_parts for box in pieces], axis))


def pieces_of(result: object, whole: Sequence[Size]) -> Pieces:
    """Return the pieces that a sharding function selected for a weight of a shape."""
    if isinstance(result, ShapeOnly) and result._pieces.whole == tuple(whole):
        return result._pieces
    raise TypeError(f"a sharding function must return a slice of the weight that it was given, not {result!r}. {_HELP}")


def _unsupported(what: str) -> NoReturn:
    raise TypeError(f"a sharding function cannot use {what}. {_HELP}")


def _narrowed(pieces: Pieces, axis: int, index: slice) -> Pieces:
    """Return the pieces of `weight[..., index, ...]`."""
    size = pieces.shape[axis]
    if not isinstance(size, StaticDim):
        raise ValueError(f"axis {axis} is the symbolic dimension {size}: it can only be taken whole")
    start, stop, step = index.indices(size.dim)
    if step != 1:
        _unsupported(f"a slice of step {step}")
    boxes = []
    for box in pieces:
        first, last = box[axis]
        length = static(last) - first
        cut = (first + min(start, length), first + max(min(start, length), min(stop, length)))
        boxes.append((*box[:axis], cut, *box[axis + 1 :]))
        if axis == pieces.axis:  # on this axis the boxes are consecutive; on others they are parallel
            start, stop = max(0, start - length), max(0, stop - length)
    return Pieces(pieces.whole, boxes, pieces.axis)
