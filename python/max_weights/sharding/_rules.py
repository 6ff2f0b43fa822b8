"""Rules that split one axis: from its size, the number of devices and a shard's number to the ranges of that shard.

Every rule splits by `even`: counts differ by at most one, and the first shards have the larger ones. With fewer units
than devices, the last shards are empty.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, SupportsIndex

__all__ = ["Evenly", "GateUp", "Heads", "Rule", "Segment", "Segmented", "StackedQKV", "count", "even"]

Ranges = list[tuple[int, int]]


def even(size: int, num_devices: int, index: int) -> tuple[int, int]:
    """Return the range of shard `index`; the first `size % num_devices` shards have one more."""
    each, more = divmod(size, num_devices)
    start = index * each + min(index, more)
    return start, start + each + (index < more)


def count(value: SupportsIndex, what: str) -> int:
    """Return an int of at least 1."""
    number = operator.index(value)
    if number < 1:
        raise ValueError(f"{what} must be at least 1; found {number}")
    return number


class Rule(Protocol):
    """How one axis is split. Rules are frozen dataclasses, equal if their arguments are."""

    def ranges(self, size: int, num_devices: int, index: int) -> Ranges:
        """Return the ranges of shard `index`, in the order in which they are joined.

        Raises:
            ValueError: the rule does not fit the size.
        """


@dataclass(frozen=True)
class Evenly:
    """Split into one range for each shard."""

    def ranges(self, size: int, num_devices: int, index: int) -> Ranges:
        """Return one range."""
        return [even(size, num_devices, index)]


@dataclass(frozen=True)
class GateUp:
    """Split two halves of the same size, each evenly."""

    def ranges(self, size: int, num_devices: int, index: int) -> Ranges:
        """Return one range of each half."""
        half, rest = divmod(size, 2)
        if rest:
            raise ValueError(f"gate and up are the two halves of an axis, but its size {size} is odd")
        start, stop = even(half, num_devices, index)
        return [(start, stop), (half + start, half + stop)]


@dataclass(frozen=True)
class StackedQKV:
    """Split queries, keys and values, which are stacked, by heads.

    Queries stay with the keys and values of their group: a group is never split.

    Args:
        num_heads: The number of query heads.
        head_dim: The number of rows of a head.
        num_kv_heads: The number of key heads, and of value heads. ValueError if it does not divide `num_heads`.
    """

    num_heads: int
    head_dim: int
    num_kv_heads: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            count(value, name)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_heads} heads do not share {self.num_kv_heads} key and value heads evenly")

    def ranges(self, size: int, num_devices: int, index: int) -> Ranges:
        """Return one range each of queries, keys and values."""
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        if size != queries + 2 * keys:
            raise ValueError(
                f"queries, keys and values of {self.num_heads} heads ({self.num_kv_heads} of keys and values) of "
                f"{self.head_dim} make {queries + 2 * keys} rows; found {size}"
            )
        start, stop = (edge * self.head_dim for edge in even(self.num_kv_heads, num_devices, index))
        group = self.num_heads // self.num_kv_heads
        blocks = (queries, queries + keys)
        return [(start * group, stop * group), *((block + start, block + stop) for block in blocks)]


@dataclass(frozen=True)
class Heads:
    """Split adjacent heads, also if packing shortens the axis: FP4 to a half, MXFP6 to three quarters."""

    num_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            count(value, name)

    def ranges(self, size: int, num_devices: int, index: int) -> Ranges:
        """Return the range of whole heads."""
        full = self.num_heads * self.head_dim
        for part, of in ((1, 1), (1, 2), (3, 4)):
            if size * of == full * part:
                edges = (head * self.head_dim for head in even(self.num_heads, num_devices, index))
                start, stop = (_packed(edge, part, of) for edge in edges)
                return [(start, stop)]
        raise ValueError(
            f"{self.num_heads} heads of {self.head_dim} make {full} columns (a half of them packed as FP4, three "
            f"quarters as MXFP6); found {size}"
        )


@dataclass(frozen=True)
class Segment:
    """A part of an axis that is split separately, either evenly or between heads.

    Args:
        size: The length of the part.
        num_heads: The number of heads in it; `None` if it can be split anywhere. ValueError if they do not divide the
            size.
    """

    size: int
    num_heads: int | None = None

    def __post_init__(self) -> None:
        heads = 1 if self.num_heads is None else count(self.num_heads, "num_heads")
        if operator.index(self.size) < 0 or self.size % heads:
            raise ValueError(f"the size of a segment must be a multiple of its {heads} heads; found {self.size}")

    @classmethod
    def even(cls, size: int) -> Segment:
        """Make a segment that is split evenly.

        Args:
            size: Its length.

        Returns:
            The segment.

        Raises:
            ValueError: The size is negative.

        Example:
            >>> max_weights.sharding.Segment.even(6)
            Segment(size=6, num_heads=None)
        """
        return cls(size)

    @classmethod
    def head_aware(cls, num_heads: int, head_dim: int) -> Segment:
        """Make a segment of `num_heads * head_dim` that is split between heads.

        Args:
            num_heads: The number of heads.
            head_dim: The length of a head.

        Returns:
            The segment.

        Raises:
            ValueError: A number is not positive.

        Example:
            >>> max_weights.sharding.Segment.head_aware(2, 3)
            Segment(size=6, num_heads=2)
        """
        return cls(count(num_heads, "num_heads") * count(head_dim, "head_dim"), num_heads)

    def shard_range(self, i: int, num_devices: int) -> tuple[int, int]:
        """Return the part of a shard, counted from the beginning of the segment.

        Args:
            i: The number of the shard, from 0.
            num_devices: The number of shards.

        Returns:
            Start and stop.

        Raises:
            ZeroDivisionError: `num_devices` is 0.

        Example:
            >>> max_weights.sharding.Segment.head_aware(2, 3).shard_range(1, 2)
            (3, 6)
        """
        if self.num_heads is None:
            return even(self.size, num_devices, i)
        start, stop = even(self.num_heads, num_devices, i)
        head_dim = self.size // self.num_heads
        return start * head_dim, stop * head_dim


@dataclass(frozen=True)
class Segmented:
    """Split consecutive segments, each separately; an axis of half their sum is packed as FP4."""

    segments: tuple[Segment, ...]

    def __init__(self, segments: Iterable[Segment]) -> None:
        segments = tuple(segments)
        for segment in segments:
            if not isinstance(segment, Segment):
                raise TypeError(f"segments must be made by Segment.even or Segment.head_aware; found {segment!r}")
        if not segments:
            raise ValueError("an axis needs at least one segment")
        object.__setattr__(self, "segments", segments)

    def ranges(self, size: int, num_devices: int, index: int) -> Ranges:
        """Return one range of each segment."""
        total = sum(segment.size for segment in self.segments)
        if size != total and size * 2 != total:
            raise ValueError(f"the segments make {total} (a half of it packed as FP4); found {size}")
        result, begin = [], 0
        for segment in self.segments:
            edges = segment.shard_range(index, num_devices)
            start, stop = (_packed(begin + edge, size, total or 1) for edge in edges)
            result.append((start, stop))
            begin += segment.size
        return result


def _packed(edge: int, part: int, of: int) -> int:
    """Return the position of an edge between elements on an axis that packing made shorter."""
    position, rest = divmod(edge * part, of)
    if rest:
        raise ValueError(f"the edge at element {edge} is inside a byte of packed elements")
    return position
