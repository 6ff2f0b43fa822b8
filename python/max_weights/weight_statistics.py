"""What the values of weights are like: `weights.stats()`."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Any

from max_weights._core import WeightsNode, statistics_of
from max_weights.progress import progress_of
from max_weights.selection import selected

if TYPE_CHECKING:
    from max_weights.progress import Progress
    from max_weights.selection import Select

__all__ = ["WeightStatistics", "stats"]

_COUNTS = ("count", "zeros", "subnormals", "nans", "infinities")
_VALUES = ("minimum", "maximum", "mean", "std")
_COLUMNS = ("name", "dtype", "shape", *_COUNTS, *_VALUES, "note")
_SHOWN_ROWS = 60
"""Rows that a notebook shows, as many of pandas' tables: half of them from the end."""


class WeightStatistics(dict[str, list[Any]]):
    """Columns of equal length, a weight a row: what pandas.DataFrame and polars.DataFrame take.

    `count` values were looked at, of which `zeros`, `subnormals`, `nans` and `infinities` are what they say; `minimum`,
    `maximum`, `mean` and `std` (divided by the number of values, not by one less) are those of the finite ones. Bools
    count as bytes, complex numbers as their magnitudes, packed blocks as what they decode to; all of these are floats
    (`max-weights show` has integers beyond 2**53 exactly). Where the values of a type are not known, all are None, and
    `note` says why.
    """

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows, each as {column: value}."""
        return (dict(zip(self, row, strict=True)) for row in zip(*self.values(), strict=True))

    def __repr__(self) -> str:
        return f"<WeightStatistics of {len(self['name'])} weights: {', '.join(self)}>"

    def _repr_html_(self) -> str:
        def row(cells: Any, tag: str) -> str:
            return f"<tr>{''.join(f'<{tag}>{escape(_shown(cell))}</{tag}>' for cell in cells)}</tr>"

        count = len(self["name"])
        half = _SHOWN_ROWS // 2
        numbers = [*range(count)] if count <= _SHOWN_ROWS else [*range(half), *range(count - half, count)]
        rows = [row((column[number] for column in self.values()), "td") for number in numbers]
        below = ""
        if count > _SHOWN_ROWS:
            rows.insert(half, row(("…" for _ in self), "td"))
            below = f"<p>{count} weights</p>"
        return f"<table><thead>{row(self, 'th')}</thead><tbody>{''.join(rows)}</tbody></table>{below}"


def stats(
    node: WeightsNode, select: Select | None = None, *, progress: Progress | bool | None = None
) -> WeightStatistics:
    """The statistics of the weights below a node; see `WeightsNode.stats`."""
    names = [info.name for info in node.infos()]
    names = names if select is None else selected(names, select)
    told, end = progress_of(progress)
    try:
        rows = statistics_of(node, names, progress=told)
    finally:
        end()
    table = WeightStatistics({column: [] for column in _COLUMNS})
    for name, dtype, shape, counts, values, note in rows:
        none: list[int | None] = [None] * len(_COUNTS)
        # Of one type throughout, which polars asks of a column.
        floats = (None if value is None else float(value) for value in values)
        cells = (name, dtype, shape, *(counts or none), *floats, note)
        for column, cell in zip(_COLUMNS, cells, strict=True):
            table[column].append(cell)
    return table


def _shown(cell: Any) -> str:
    return "" if cell is None else f"{cell:.6g}" if isinstance(cell, float) else str(cell)
