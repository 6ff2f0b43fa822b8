"""`Pieces`: which part of a tensor a shard is, as plain numbers.

A shard is one box of the tensor, or a few boxes that are joined along an axis. Nothing here knows about devices, files
or graphs, so the same object cuts a declared weight, a loaded tensor, and a range of a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from max_weights._dim import Dim
from max_weights._shape import Shape

__all__ = ["Box", "Pieces", "Range", "Size", "static"]

Size: TypeAlias = int | Dim
"""The size of an axis: an int, or a dimension that is not static."""
Range: TypeAlias = tuple[int, Size]
"""Start and stop on one axis. The stop is a `Dim` only where a symbolic axis is taken whole."""
Box: TypeAlias = tuple[Range, ...]
"""A range on each axis."""


@dataclass(frozen=True, init=False)
class Pieces:
    """The boxes of a tensor that make up a shard, joined along an axis. Iterating gives the boxes.

    Args:
        whole: The shape of the tensor that the boxes are cut from.
        boxes: One box or more; they differ on `axis` only.
        axis: The axis along which they are joined; `None` for one box.
    """

    whole: tuple[Size, ...]
    """The shape of the whole tensor."""
    boxes: tuple[Box, ...]
    """The boxes, in the order in which they are joined."""
    axis: int | None
    """The axis along which they are joined; `None` for one box."""

    def __init__(self, whole: Sequence[Size], boxes: Sequence[Box], axis: int | None = None) -> None:
        joined = _joined(boxes, axis)
        object.__setattr__(self, "whole", tuple(whole))
        object.__setattr__(self, "boxes", joined)
        object.__setattr__(self, "axis", axis if len(joined) > 1 else None)

    @classmethod
    def complete(cls, whole: Sequence[Size]) -> Pieces:
        """Make the whole tensor one box.

        Args:
            whole: Its shape.

        Returns:
            The box.

        Raises:
            TypeError: `whole` is no sequence.

        Example:
            >>> max_weights.sharding.Pieces.complete([2, 3]).boxes
            (((0, 2), (0, 3)),)
        """
        return cls(whole, [tuple((0, size) for size in whole)])

    @classmethod
    def along(cls, axis: int, whole: Sequence[Size], ranges: Sequence[Range]) -> Pieces:
        """Take ranges of one axis, joined along it; the other axes are whole.

        Args:
            axis: The axis, from 0.
            whole: The shape of the tensor.
            ranges: Start and stop of each range.

        Returns:
            A box for each range; adjacent ones are joined.

        Raises:
            TypeError: `whole` is no sequence.

        Example:
            >>> max_weights.sharding.Pieces.along(0, [6, 2], [(0, 1), (4, 6)]).shape
            [Dim(3), Dim(2)]
        """
        rest = tuple((0, size) for size in whole)
        return cls(whole, [(*rest[:axis], part, *rest[axis + 1 :]) for part in ranges], axis)

    @property
    def shape(self) -> Shape:
        """The shape of the shard."""
        sizes = [_length(part) for part in self.boxes[0]]
        if self.axis is not None:
            sizes[self.axis] = sum(static(_length(box[self.axis])) for box in self.boxes)
        return Shape(sizes)

    @property
    def slices(self) -> tuple[tuple[slice, ...], ...]:
        """The boxes as indices: `[tensor[index] for index in slices]` are the parts to join."""
        return tuple(
            tuple(slice(start, stop) if isinstance(stop, int) else slice(None) for start, stop in box)
            for box in self.boxes
        )

    @property
    def is_complete(self) -> bool:
        """Whether the shard is the whole tensor."""
        return len(self.boxes) == 1 and all(
            part == (0, size) for part, size in zip(self.boxes[0], self.whole, strict=True)
        )

    @property
    def split_axes(self) -> list[int]:
        """The axes that are split, or whose ranges are joined."""
        return [
            axis
            for axis, size in enumerate(self.whole)
            if axis == self.axis or any(box[axis] != (0, size) for box in self.boxes)
        ]

    def __iter__(self) -> Iterator[Box]:
        return iter(self.boxes)

    def __len__(self) -> int:
        return len(self.boxes)

    def _of_shape(self, shape: Sequence[int]) -> Pieces:
        """Return the same boxes for a tensor whose sizes are all known, which replace the symbolic ones."""
        boxes = [
            tuple(
                (start, stop if isinstance(stop, int) else size) for (start, stop), size in zip(box, shape, strict=True)
            )
            for box in self.boxes
        ]
        return Pieces(shape, boxes, self.axis)

    def _scaled(self, axis: int, whole: int, units: int, unit: int) -> Pieces:
        """Return the same boxes with an axis in other units, of size `whole`: `units` old ones are `unit` new ones."""

        def scale(box: Box) -> Box:
            start, stop = box[axis]
            return (*box[:axis], (start // units * unit, static(stop) // units * unit), *box[axis + 1 :])

        sizes = (*self.whole[:axis], whole, *self.whole[axis + 1 :])
        return Pieces(sizes, [scale(box) for box in self.boxes], self.axis)


def _joined(boxes: Sequence[Box], axis: int | None) -> tuple[Box, ...]:
    """Return the fewest boxes: adjacent boxes are merged, and empty ones are dropped."""
    if axis is None:
        return tuple(boxes)
    joined: list[Box] = []
    for box in boxes:
        start, stop = box[axis]
        if start == stop:
            continue
        if joined and joined[-1][axis][1] == start:
            before = joined.pop()
            box = (*box[:axis], (before[axis][0], stop), *box[axis + 1 :])
        joined.append(box)
    return tuple(joined or boxes[:1])


def _length(part: Range) -> Size:
    start, stop = part
    return stop - start if isinstance(stop, int) else stop


def static(size: Size) -> int:
    """Return the size as an int; ValueError for a symbolic one."""
    if not isinstance(size, int):
        raise ValueError(f"the dimension {size} is symbolic: its size must be known to split a weight")
    return size
