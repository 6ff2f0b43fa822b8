"""Rows of tables by their numbers."""

from collections.abc import Sequence
from typing import Any, Self, final

from max_weights._buffer import DLPackArray
from max_weights._core._buffer import Buffer
from max_weights._core._quantized import QuantizedRecord
from max_weights._dtype import DType
from max_weights._node import WeightsNode

@final
class RowTable:
    """A table of rows of one tree."""

    def __new__(
        cls,
        weights: Sequence[WeightsNode],
        records: Sequence[QuantizedRecord | None],
        scales: Sequence[WeightsNode | None],
        together: bool,
        cache: int,
    ) -> Self: ...
    @property
    def shape(self) -> tuple[int, ...]:
        """The shape: rows, and that of a row."""
    @property
    def dtype(self) -> DType:
        """The dtype of rows that are taken without one."""
    @property
    def nbytes(self) -> int:
        """The bytes in the files, with scales."""
    def counts(self) -> tuple[int, int, int, int, int] | None:
        """What the cache had: hits, misses, rows, bytes and their limit; None without a cache."""
    def take(self, ids: Any, dtype: DType | None, out: DLPackArray | None) -> Buffer:
        """The rows of these ids, as a dtype or unconverted, in `out` if it is given."""
    def start(self, ids: Any, dtype: DType | None, out: DLPackArray | None) -> PendingRows:
        """As `take`, on a thread."""
    def hint(self, ids: Any) -> None:
        """Reads rows into the cache, on a thread."""

@final
class PendingRows:
    """Rows that a thread reads."""

    def result(self) -> Buffer:
        """Waits for the rows. An error is raised once."""
    def done(self) -> bool:
        """Whether `result` would return, or raise, at once."""

def rows_of(node: WeightsNode, ids: Any, dtype: DType | None) -> Buffer:
    """The rows of a weight by NumPy's integer-array indexing, in which negative numbers count from the end."""
