"""How each kind of sharding splits one axis: the size of the axis, the number of devices and a shard's number in, the
ranges of that shard out.

Every rule splits by `even`: counts differ by at most one, the first shards have the larger ones, and where there is
less to share than there are devices, the last shards are empty.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Evenly", "GateUp", "Heads", "Rule", "Segment", "Segmented", "StackedQKV", "count", "even"]

Ranges = list[tuple[int, int]]


def even(size: int, num_devices: int, index: int) -> tuple[int, int]:
    """The range of shard `index`; the first `size % num_devices` shards have one more."""
    each, more = divmod(size, num_devices)
    start = index * each + min(index, more)
    return start, start + each + (index < more)


def count(value: Any, what: str) -> int:
    """An int of at least 1."""
    number = operator.index(value)
    if number < 1:
        raise ValueError(f"{what} must be at least 1; found {number}")
    return number


class Rule(Protocol):
    """How one axis is split. Rules are frozen dataclasses: equal where their arguments are."""

    def ranges(self, size: int, num_devices: int, index: int) -> Ranges:
        """The ranges of shard `index`, in the order in which they are joined.

        Raises:
            ValueError: the rule does not fit the size.
        """


@dataclass(frozen=True)
class Evenly:
    """One range."""

    def ranges(self, size: int, num_devices: int, index: int) -> Ranges:
        """One range."""
        return [even(size, num_devices, index)]


@dataclass(frozen=True)
class GateUp:
    """Two halves of the same size, each split evenly."""

    def ranges(self, size: int, num_devices: int, index: int) -> Ranges:
        """One range of each half."""
        half, rest = divmod(size, 2)
        if rest:
            raise ValueError(f"gate and up are the two halves of an axis, and its size {size} is odd")
        start, stop = even(half, num_devices, index)
        return [(start, stop), (half + start, half + stop)]


@dataclass(frozen=True)
class StackedQKV:
    """Queries, keys and values below each other, split by heads.

    Queries go where the keys and values of their group go: a group is never split.

    Args:
        num_heads: Heads of queries.
        head_dim: Rows of a head.
        num_kv_heads: Heads of keys, and of values. ValueError where they do not divide `num_heads`.
    """

    num_heads: int
    head_dim: int
    num_kv_heads: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            count(value, name)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_heads} heads do not share {self.num_kv_heads} heads of keys and values evenly")

    def ranges(self, size: int, num_devices: int, index: int) -> Ranges:
        """One range each of queries, keys and values."""
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
    """Heads beside each other, also where packing makes an axis shorter: FP4 to a half, MXFP6 to three quarters."""

    num_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            count(value, name)

    def ranges(self, size: int, num_devices: int, index: int) -> Ranges:
        """The range of whole heads."""
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
    """A part of an axis that is split on its own: evenly, or between heads.

    Args:
        size: How much of the axis it takes.
        num_heads: How many heads share the size; none where it is split anywhere. ValueError where they do not.
    """

    size: int
    num_heads: int | None = None

    def __post_init__(self) -> None:
        heads = 1 if self.num_heads is None else count(self.num_heads, "num_heads")
        if operator.index(self.size) < 0 or self.size % heads:
            raise ValueError(f"the size of a segment must be a multiple of its {heads} heads; found {self.size}")

    @classmethod
    def even(cls, size: int) -> Segment:
        """A segment of `size` that is split evenly."""
        return cls(size)

    @classmethod
    def head_aware(cls, num_heads: int, head_dim: int) -> Segment:
        """A segment of `num_heads * head_dim` that is split between heads."""
        return cls(count(num_heads, "num_heads") * count(head_dim, "head_dim"), num_heads)

    def shard_range(self, i: int, num_devices: int) -> tuple[int, int]:
        """The part of shard `i`, counted from the begin of the segment."""
        if self.num_heads is None:
            return even(self.size, num_devices, i)
        start, stop = even(self.num_heads, num_devices, i)
        head_dim = self.size // self.num_heads
        return start * head_dim, stop * head_dim


@dataclass(frozen=True)
class Segmented:
    """Segments one after the other, each split on its own; an axis of half their sum is packed as FP4."""

    segments: tuple[Segment, ...]

    def __init__(self, segments: Iterable[Segment]) -> None:
        segments = tuple(segments)
        for segment in segments:
            if not isinstance(segment, Segment):
                raise TypeError(f"segments are made by Segment.even and Segment.head_aware; found {segment!r}")
        if not segments:
            raise ValueError("an axis needs at least one segment")
        object.__setattr__(self, "segments", segments)

    def ranges(self, size: int, num_devices: int, index: int) -> Ranges:
        """One range of each segment."""
        total = sum(segment.size for segment in self.segments)
        if size != total and size * 2 != total:
            raise ValueError(f"the segments make {total} (a half of it packed as FP4); found {size}")
        found, begin = [], 0
        for segment in self.segments:
            edges = segment.shard_range(index, num_devices)
            start, stop = (_packed(begin + edge, size, total or 1) for edge in edges)
            found.append((start, stop))
            begin += segment.size
        return found


def _packed(edge: int, part: int, of: int) -> int:
    """Where an edge between elements lies in an axis that packing made shorter."""
    found, rest = divmod(edge * part, of)
    if rest:
        raise ValueError(f"the edge at element {edge} lies inside a byte of packed elements")
    return found
