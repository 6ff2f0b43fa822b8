"""A value that is converted when it is first looked at: what `allocate(dtype=…)` records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from max_weights._core import Buffer
    from max_weights.dtype import DType
    from max_weights.graph.shape import Shape
    from max_weights.graph.weights.weight_data import WeightData


class LazyCast:
    """The data of a weight as another dtype; converted at the first use, and kept."""

    __slots__ = ("_buffer", "_source", "dtype")

    def __init__(self, source: WeightData, dtype: DType) -> None:
        """Convert nothing yet."""
        self._source: WeightData | None = source
        self._buffer: Buffer | None = None
        self.dtype = dtype

    @property
    def shape(self) -> Shape | tuple[int, ...]:
        """The shape, known without converting."""
        source = self._source
        return self.to_buffer().shape if source is None else source.logical_shape

    def to_buffer(self) -> Buffer:
        """The converted data; two threads that come first at once may both convert, with the same result."""
        source = self._source
        if self._buffer is None and source is not None:
            self._buffer = source.astype(self.dtype).to_buffer()
            self._source = None  # the original's memory is no longer needed
        assert self._buffer is not None
        return self._buffer

    def __dlpack__(self, **options: Any) -> Any:
        return self.to_buffer().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.to_buffer().__dlpack_device__()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.to_buffer().__array__(dtype, copy)

    def __repr__(self) -> str:
        state = "not converted yet" if self._buffer is None else "converted"
        return f"LazyCast({self.dtype!s}, {list(map(str, self.shape))}, {state})"
