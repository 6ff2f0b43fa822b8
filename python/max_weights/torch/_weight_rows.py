"""The rows of all weights, found by their fingerprints: where the values of a parameter come from."""

from __future__ import annotations

import bisect
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch

from max_weights._core import fingerprints_of_rows
from max_weights._load_request import holds_floats
from max_weights._loading import LoadMethod, converter, load_resolved

if TYPE_CHECKING:
    from max_weights._core import Buffer
    from max_weights._dtype import DType
    from max_weights._load_request import ResolvedRequest

__all__ = ["RowIndex", "Sums", "row_sums"]

Sums: TypeAlias = torch.Tensor
"""Two integers of 64 bits for each row."""


def row_sums(tensor: Buffer) -> Sums:
    sums = bytearray(fingerprints_of_rows(tensor))
    return torch.frombuffer(sums, dtype=torch.int64).view(-1, 2) if sums else torch.empty((0, 2), dtype=torch.int64)


@dataclass(frozen=True)
class _WeightRows:
    """The rows of weights of one length, weight after weight, and their order by the first of their sums."""

    sums: Sums
    order: torch.Tensor
    sorted: torch.Tensor
    names: list[str]
    starts: list[int]
    """The number of the first row of each weight, and that of all rows."""

    def first(self, sums: Sums) -> int | None:
        """The number of the first row with these sums."""
        at = int(torch.searchsorted(self.sorted, sums[0]))
        while at < len(self.sorted) and self.sorted[at] == sums[0]:
            number = int(self.order[at])
            if torch.equal(self.sums[number], sums):
                return number
            at += 1
        return None

    def place(self, number: int) -> tuple[str, int]:
        """The weight of a row, and the number of the row in it."""
        weight = bisect.bisect_right(self.starts, number) - 1
        return self.names[weight], number - self.starts[weight]


class RowIndex:
    """The rows of all weights, found by their sums: built when something differs."""

    def __init__(self, request: ResolvedRequest) -> None:
        self._request = request
        self._by_kind: dict[tuple[DType, int], _WeightRows] = {}

    def find(self, own: Sums, rows: list[range], dtype: DType, columns: int) -> list[tuple[range, str, range]]:
        """Return runs of `rows`, of a tensor with these sums, each with the weight and its rows that they equal."""
        weights = self._weights(dtype, columns)
        ends = set(weights.starts)
        runs: list[tuple[int, int, int]] = []
        """The first row, the number of its origin, and how many follow each other in both."""
        for row in (row for run in rows for row in run):
            if runs and runs[-1][0] + runs[-1][2] == row:
                first, number, count = runs[-1]
                after = number + count
                # Of equal rows, take the one that follows the previous match.
                if after not in ends and torch.equal(weights.sums[after], own[row]):
                    runs[-1] = (first, number, count + 1)
                    continue
            if (origin := weights.first(own[row])) is not None:
                runs.append((row, origin, 1))
        sources: list[tuple[range, str, range]] = []
        for row, number, count in runs:
            weight, origin = weights.place(number)
            sources.append((range(row, row + count), weight, range(origin, origin + count)))
        return sources

    def count(self, dtype: DType, columns: int, weight: str) -> int:
        """Return how many rows a weight has."""
        weights = self._weights(dtype, columns)
        at = weights.names.index(weight)
        return weights.starts[at + 1] - weights.starts[at]

    def _weights(self, dtype: DType, columns: int) -> _WeightRows:
        key = dtype, columns
        if key not in self._by_kind:
            listed = zip(self._request.new_names, self._request.infos, strict=True)
            # As another kind of number a weight would be rounded.
            alike = ((new, info) for new, info in listed if holds_floats(info) == dtype.is_float())
            names = [new for new, info in alike if (info.logical_shape or (1,))[-1] == columns]
            parts = [row_sums(self._load(name, dtype)) for name in names]
            sums = torch.cat([torch.empty((0, 2), dtype=torch.int64), *parts])
            ordered, order = torch.sort(sums[:, 0], stable=True)
            starts = [0, *itertools.accumulate(map(len, parts))]
            self._by_kind[key] = _WeightRows(sums, order, ordered, names, starts)
        return self._by_kind[key]

    def _load(self, name: str, dtype: DType) -> Buffer:
        tensors: list[Buffer] = load_resolved(self._request.only({name: dtype}), LoadMethod(), convert=converter(None))
        return tensors[0]
