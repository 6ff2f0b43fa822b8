"""Statistics and a histogram of one tensor, in chunks: the memory they take does not grow with the tensor.

Two passes: the extremes and counts first, because the bins of the histogram and a scale that keeps squares from
overflowing depend on them; then mean, deviation and bins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]
    Chunks = Callable[[], Iterable[Array]]

CHUNK_ELEMENTS = 1 << 20
"""Elements taken at a time: 8 MB as float64, and a few times that for what a step needs besides."""
UNSCALED_EXPONENT = 400
"""Up to here and down to its negative, sums of squares of numbers times two to this power fit in a float64."""
NARROW_INTEGERS = 24
"""Integers of at most this many neighbouring values have one bin each."""


@dataclass
class Statistics:
    """What the values of a tensor are like. Mean, deviation, extremes and bins are those of the finite values."""

    count: int = 0
    zeros: int = 0
    nans: int = 0
    infinities: int = 0
    minimum: float | int | None = None
    maximum: float | int | None = None
    mean: float | None = None
    deviation: float | None = None
    """The standard deviation of all values (divided by their number, not by one less)."""
    bins: list[tuple[float, float, int]] = field(default_factory=list)
    """(from, to, count); for narrow integers and constants `from` equals `to`."""

    @property
    def finite(self) -> int:
        """How many values are neither NaN nor infinite."""
        return self.count - self.nans - self.infinities

    def repeat(self, times: int) -> None:
        """Count each value so many times; what is no count stays."""
        self.count *= times
        self.zeros *= times
        self.nans *= times
        self.infinities *= times
        self.bins = [(low, high, count * times) for low, high, count in self.bins]


def statistics(chunks: Chunks, bins: int) -> Statistics:
    """The statistics of a tensor.

    Args:
        chunks: Gives the values anew at each call, as one-dimensional arrays of integers or floats.
        bins: Bins of the histogram; 0 for none.
    """
    found = extremes(chunks())
    low, high = found.minimum, found.maximum
    if low is None or high is None:
        return found
    if low == high:
        found.mean, found.deviation = float(low), 0.0
        found.bins = [(low, high, found.finite)] if bins else []
        return found
    exponent = math.frexp(max(abs(low), abs(high)))[1]
    shift = -exponent if abs(exponent) > UNSCALED_EXPONENT else 0
    narrow = isinstance(low, int) and isinstance(high, int) and high - low < NARROW_INTEGERS
    steps = int(high - low) + 1 if narrow else bins
    counts, mean, squares = second_pass(chunks(), low, high, steps if bins else 0, narrow, shift)
    found.mean = math.ldexp(mean, -shift)
    found.deviation = math.ldexp(math.sqrt(max(squares, 0.0) / found.finite), -shift)
    if bins:
        found.bins = label_bins(counts, low, high, narrow)
    return found


def extremes(chunks: Iterable[Array]) -> Statistics:
    """Counts, minimum and maximum; integers stay exact."""
    import numpy as np

    found = Statistics()
    for chunk in chunks:
        found.count += chunk.size
        found.zeros += chunk.size - int(np.count_nonzero(chunk))
        values = chunk
        if chunk.dtype.kind not in "iub":
            values = as_float(chunk)
            finite = np.isfinite(values)
            if not finite.all():
                nans = int(np.isnan(values).sum())
                found.nans += nans
                found.infinities += values.size - int(finite.sum()) - nans
                values = values[finite]
        if values.size:
            low, high = values.min().item(), values.max().item()
            found.minimum = low if found.minimum is None else min(found.minimum, low)
            found.maximum = high if found.maximum is None else max(found.maximum, high)
    return found


def second_pass(
    chunks: Iterable[Array], low: float, high: float, bins: int, narrow: bool, shift: int
) -> tuple[list[int], float, float]:
    """The bins' counts, and the mean and the sum of squared deviations of the values times 2**shift."""
    import numpy as np

    counts = np.zeros(max(bins, 1), np.int64)
    start, stop = math.ldexp(low, shift), math.ldexp(high, shift)
    number, mean, squares = 0, 0.0, 0.0
    for chunk in chunks:
        values = as_float(chunk)
        values = values[np.isfinite(values)]
        if not values.size:
            continue
        if shift:
            values = np.ldexp(values, shift)
        # Chan's update: the sums of a chunk are joined to those so far without losing the small to the large.
        chunk_mean = float(values.mean())
        chunk_squares = float(np.square(values - chunk_mean).sum())
        delta, total = chunk_mean - mean, number + values.size
        mean += delta * values.size / total
        squares += chunk_squares + delta * delta * number * values.size / total
        number = total
        if bins and narrow:
            counts += np.bincount((chunk - chunk.dtype.type(low)).astype(np.intp), minlength=bins)
        elif bins:
            counts += np.histogram(values, bins, (start, stop))[0]
    return counts.tolist(), mean, squares


def label_bins(counts: list[int], low: float, high: float, narrow: bool) -> list[tuple[float, float, int]]:
    """(from, to, count) of each bin."""
    if narrow:
        return [(int(low) + i, int(low) + i, count) for i, count in enumerate(counts)]
    steps = len(counts)
    # Halves first: the distance between the extremes of float64 is itself no float64.
    edges = [low * (1 - i / steps) + high * (i / steps) for i in range(steps + 1)]
    return [(edges[i], edges[i + 1], count) for i, count in enumerate(counts)]


def as_float(chunk: Array) -> Array:
    """The values as float64."""
    import numpy as np

    return chunk.astype(np.float64, copy=False)
