"""How the ready-made tables split: into equal shares, and never inside a head.

A size that does not divide evenly is an error, because model libraries expect equal parts on all ranks.

Each class is a function of a weight, the number of a shard and the number of shards, for `ShardingStrategy`.
"""

from __future__ import annotations

from dataclasses import dataclass

from max_weights._dim import Dim, StaticDim
from max_weights.sharding._shape_only import ShapeOnly, concat

__all__ = ["DeviceShare", "HeadShare", "StackedExperts"]


@dataclass(frozen=True)
class DeviceShare:
    """An equal share of each of the parts of an axis."""

    axis: int
    parts: int = 1
    """The number of equal, consecutive parts: 2 for gate and up in one weight."""

    def __call__(self, weight: ShapeOnly, i: int, num_devices: int) -> ShapeOnly:
        """Return shard `i`."""
        axis, size = _axis(weight, self.axis)
        part, rest = divmod(size, self.parts)
        each, more = divmod(part, num_devices)
        if rest or more:
            parts = f"{self.parts} parts of each {num_devices}" if self.parts > 1 else f"{num_devices}"
            raise ValueError(f"axis {axis} of size {size} does not divide into {parts} equal shares")
        return _join(weight, axis, [(begin + i * each, begin + (i + 1) * each) for begin in range(0, size, part)])


@dataclass(frozen=True)
class HeadShare:
    """Whole heads: of queries, of keys or values, or of both, consecutive in one weight.

    Every rank has the same number of query heads. Keys and values are divided too, or, if they have fewer heads than
    there are ranks, repeated: neighbouring ranks have the same head.
    """

    axis: int
    queries: int = 0
    keys_values: tuple[int, ...] = ()
    """The number of key heads, and of value heads, which follow the query heads."""

    def __call__(self, weight: ShapeOnly, i: int, num_devices: int) -> ShapeOnly:
        """Return shard `i`."""
        axis, size = _axis(weight, self.axis)
        heads = self.queries + sum(self.keys_values)
        dim, rest = divmod(size, heads)
        if rest:
            raise ValueError(f"axis {axis} of size {size} does not consist of {heads} heads")
        if self.queries % num_devices:
            raise ValueError(f"{self.queries} heads do not divide into {num_devices} equal shares")
        each = self.queries // num_devices
        ranges = [(i * each, (i + 1) * each)] if self.queries else []
        begin = self.queries
        for count in self.keys_values:
            first, last = _shared(count, i, num_devices)
            ranges.append((begin + first, begin + last))
            begin += count
        return _join(weight, axis, [(first * dim, last * dim) for first, last in ranges])


@dataclass(frozen=True)
class StackedExperts:
    """An equal share of the inner features of all experts of a layer, which are one weight of three axes.

    The first axis counts the experts; which of the others has the hidden size depends on the model.
    """

    hidden_size: int | None
    parts: int = 1
    """As for `DeviceShare`."""

    def __call__(self, weight: ShapeOnly, i: int, num_devices: int) -> ShapeOnly:
        """Return shard `i`."""
        if weight.rank != 3:
            raise ValueError("a weight of stacked experts must have three axes")
        if self.hidden_size is None:
            raise ValueError("which of its axes has the hidden size is unknown; give the table hidden_size=")
        inner = [axis for axis in (1, 2) if not _is_size(weight.shape[axis], self.hidden_size)]
        if len(inner) != 1:
            raise ValueError(f"one of the axes 1 and 2 must have the hidden size {self.hidden_size}, but not both")
        return DeviceShare(inner[0], self.parts)(weight, i, num_devices)


def _is_size(dim: Dim, size: int) -> bool:
    return isinstance(dim, StaticDim) and dim.dim == size


def _axis(weight: ShapeOnly, axis: int) -> tuple[int, int]:
    """Return an axis, counted from the first, and its size."""
    if not -weight.rank <= axis < weight.rank:
        raise ValueError(f"there is no axis {axis}")
    return axis % weight.rank, int(weight.shape[axis])


def _shared(heads: int, i: int, num_devices: int) -> tuple[int, int]:
    if heads % num_devices == 0:
        each = heads // num_devices
        return i * each, (i + 1) * each
    if num_devices % heads:
        raise ValueError(
            f"{heads} key and value heads can neither be divided among {num_devices} ranks nor repeated on them: "
            "neither number divides the other"
        )
    head = i // (num_devices // heads)
    return head, head + 1


def _join(weight: ShapeOnly, axis: int, ranges: list[tuple[int, int]]) -> ShapeOnly:
    before = (slice(None),) * axis
    return concat([weight[(*before, slice(start, stop))] for start, stop in ranges], axis)
