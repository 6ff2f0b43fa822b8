"""Statistics of the values of weights: `max_weights.stats`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from max_weights._checkpoints import opened
from max_weights._core import infos, statistics_of
from max_weights._html import ROWS, count, sparkline, table, view
from max_weights._progress import progress_of
from max_weights._selection import selected
from max_weights._threads import threads_of_call
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    from max_weights._checkpoints import Checkpoint, Tensors
    from max_weights._progress import Progress
    from max_weights._selection import Select

__all__ = ["WeightStatistics", "stats"]

_COUNTS = ("count", "zeros", "subnormals", "nans", "infinities")
_VALUES = ("minimum", "maximum", "mean", "std")
_COLUMNS = ("name", "dtype", "shape", *_COUNTS, *_VALUES)


class WeightStatistics(dict[str, list[Any]]):
    """Columns of equal length with a row for each weight, as pandas.DataFrame and polars.DataFrame accept them.

    The number of values is `count`, of which `zeros`, `subnormals`, `nans` and `infinities` count the kinds. Of the
    finite values there are `minimum`, `maximum`, `mean` and `std` (divided by the number of values, not by one less).
    Bools count as bytes, complex numbers as their magnitudes, packed blocks as their decoded values; all of these are
    floats (`max-weights show` has integers beyond 2**53 exactly). If the values of a type are not known, all are
    `None`, and `note` says why.

    If bins were requested, `histogram` is a list of the counts of finite values in bins of equal width from `minimum`
    to `maximum`, which a notebook draws. A few neighbouring integers have a bin each, and a constant has a single bin.
    The counts are exact for types of at most 16 bits, and may be approximate for wider types, which saves a second
    pass.
    """

    def rows(self) -> Iterator[dict[str, Any]]:
        """Iterate over the rows, each as {column: value}.

        Example:
            >>> next(max_weights.stats(weights, "model.norm").rows())["name"]
            'model.norm.weight'
        """
        return (dict(zip(self, row, strict=True)) for row in zip(*self.values(), strict=True))

    def __repr__(self) -> str:
        return f"<WeightStatistics of {len(self['name'])} weights: {', '.join(self)}>"

    def _repr_html_(self) -> str:
        notes = ("note",) if any(self["note"]) else ()
        drawn = ("histogram",) if "histogram" in self else ()
        columns = (*_COLUMNS[:3], *drawn, *_COLUMNS[3:], *notes)
        cells = {column: self[column] for column in columns}
        for column in drawn:
            cells[column] = [sparkline(counts or ()) for counts in self[column][:ROWS]]
        rows, total = zip(*cells.values(), strict=False), len(self["name"])
        shown = table(columns, rows, total=total, numbers=(*_COUNTS, *_VALUES), code=("name", "dtype", "shape"))
        return view("statistics", count(total, "weight"), shown)


def stats(
    checkpoint: Checkpoint | Tensors,
    select: Select | None = None,
    *,
    bins: int = 0,
    threads: int | None = None,
    progress: Progress | bool | None = None,
) -> WeightStatistics:
    """Return statistics of the values of weights: minimum, maximum, mean, zeros, NaNs and more.

    Every byte is read once, on all cores.

    Args:
        checkpoint: A tree, a branch or one weight; anything that `load_weights` opens; or {name: tensor}, or a module.
        select: Which weights, as for `load`.
        bins: Number of bins of the histogram of each weight: a column `histogram`, which a notebook draws.
        threads: How many threads read and compute.
        progress: A function of (bytes done, total bytes), or True for a bar.

    Returns:
        A dict of columns with a row for each weight, in file order, which pandas and polars take.

    Raises:
        WeightNotFoundError: `select` names a weight that does not exist.
        ArgumentError: `checkpoint` is not a checkpoint, or a number is not valid (a ValueError).

    Example:
        >>> max_weights.stats("model.safetensors", "model.norm.weight")["count"]
        [8]
    """
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 0:
        raise ArgumentError(
            f"bins must be the number of bins of each histogram, 0 for none, not {bins!r}", rule="argument.number"
        )
    with opened(checkpoint, "stats", tensors=True) as weights, threads_of_call(threads):
        names = [info.name for info in infos(weights)]
        names = names if select is None else selected(names, select)
        report, finish = progress_of(progress)
        try:
            rows = statistics_of(weights, names, bins=bins, progress=report)
        finally:
            finish()
    columns = (*_COLUMNS, *(("histogram",) if bins else ()), "note")
    statistics = WeightStatistics({column: [] for column in columns})
    for name, dtype, shape, counts, values, histogram, note in rows:
        none: list[int | None] = [None] * len(_COUNTS)
        # A column has one type throughout, as polars requires.
        floats = (None if value is None else float(value) for value in values)
        drawn = (histogram if counts else None,) if bins else ()
        cells = (name, dtype, shape, *(counts or none), *floats, *drawn, note)
        for column, cell in zip(columns, cells, strict=True):
            statistics[column].append(cell)
    return statistics
