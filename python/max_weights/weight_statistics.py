"""What the values of weights are like: `weights.stats()`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from max_weights._core import WeightsNode, statistics_of
from max_weights.html import ROWS, count, sparkline, table, view
from max_weights.progress import progress_of
from max_weights.selection import selected

if TYPE_CHECKING:
    from max_weights.progress import Progress
    from max_weights.selection import Select

__all__ = ["WeightStatistics", "stats"]

_COUNTS = ("count", "zeros", "subnormals", "nans", "infinities")
_VALUES = ("minimum", "maximum", "mean", "std")
_COLUMNS = ("name", "dtype", "shape", *_COUNTS, *_VALUES, "note")


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
        columns = [column for column in self if column != "note" or any(self[column])]
        drawn = [
            [sparkline(cell or ()) for cell in self[column][:ROWS]] if column == "histogram" else self[column]
            for column in columns
        ]
        total = len(self["name"])
        cells = table(
            columns, zip(*drawn, strict=False), total=total, numbers=(*_COUNTS, *_VALUES), code=("name", "shape")
        )
        return view("statistics", count(total, "weight"), cells)


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
