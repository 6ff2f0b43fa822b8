"""`allocate`: from a weight of a checkpoint to a `Weight` of a graph.

The value may be converted, or moved to a GPU, when it is first used.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any

from max_weights._core import escape
from max_weights._devices import DeviceRef
from max_weights._dtype import DType
from max_weights._quantized_weights import CODES, require_no_codes
from max_weights._shape import Shape, listed, matches
from max_weights._typing import known
from max_weights.errors import DeviceError
from max_weights.graph._weight import Weight

if TYPE_CHECKING:
    import numpy.typing as npt

    from max_weights._buffer import Array
    from max_weights._core import Buffer, WeightsNode
    from max_weights._dtype import DType
    from max_weights._quantization import QuantizationEncoding
    from max_weights._shape import Shape, ShapeLike
    from max_weights._weight_data import WeightData

# The alignment in bytes of memory that the package allocates.
_BLOCK_ALIGN = 64


def allocate(
    node: WeightsNode,
    dtype: DType | None,
    shape: ShapeLike | None,
    encoding: QuantizationEncoding | None,
    device: DeviceRef | None,
) -> Weight:
    """Check the arguments against the file, then record the value; nothing is recorded unless everything is valid."""
    value = node.data()
    if encoding is not None and encoding != value.quantization_encoding:
        _settle_encoding(node.name, encoding, value.quantization_encoding)
    if shape is not None:
        _require_shape(node.name, Shape(shape), value.logical_shape)
    dtype = value.dtype if dtype is None else DType(dtype)
    converts = dtype is not value.dtype
    place = DeviceRef.CPU() if device is None else DeviceRef.from_device(device)
    lazy = converts or place.is_gpu()
    if converts and value.refusal is not None:
        raise value.refusal.with_traceback(None)
    if converts and value.dtype in CODES:
        require_no_codes(node)
    weight = Weight(
        node.name,
        dtype,
        value.logical_shape if converts else value.shape,
        place,
        quantization_encoding=None if converts else value.quantization_encoding,
        align=_BLOCK_ALIGN if lazy else _alignment(value.data),
    )
    node.allocated_weights[node.name] = LazyCast(value, dtype, place) if lazy else value.data
    return weight


def allocate_as_bytes(node: WeightsNode, dtype: DType | None) -> Weight:
    """Return a uint8 `Weight` over the bytes of a weight; see `SafetensorWeights.allocate_as_bytes`."""
    value = node.data()
    if dtype is not None and DType(dtype) not in (value.dtype, DType.uint8):
        raise ValueError(f"weight '{escape(node.name)}' is {value.dtype!r}, but dtype={DType(dtype)!r} was asked for")
    buffer = value.to_buffer()
    raw = buffer.view(DType.uint8) if buffer.shape else buffer.view(DType.uint8, (buffer.nbytes,))
    weight = Weight(node.name, DType.uint8, raw.shape, DeviceRef.CPU(), align=_alignment(raw))
    node.allocated_weights[node.name] = raw
    return weight


def _settle_encoding(name: str, encoding: QuantizationEncoding, stored: QuantizationEncoding | None) -> None:
    """Keep a weight's own encoding if a file has several: files called Q4_K_M also have weights in Q6_K."""
    if stored is None or not encoding.is_gguf:
        problem = "is not quantized" if stored is None else f"is stored as {stored.value}"
        raise ValueError(f"weight '{escape(name)}' {problem}, but quantization_encoding={encoding.value} was asked for")
    # The same text for every weight, so that the warning is shown once.
    warnings.warn(
        f"quantization_encoding={encoding.value} was asked for; weights stored as {stored.value} stay that way",
        stacklevel=4,
    )


def _require_shape(name: str, expected: Shape, actual: Shape) -> None:
    if not matches(expected, actual):
        raise ValueError(
            f"weight '{escape(name)}' has shape {listed(actual)}, but shape {listed(expected)} was asked for"
        )


def _alignment(data: Any) -> int:
    """Return the largest power of two, up to 64, that the data's address is a multiple of."""
    address = data._data_ptr()
    return min(_BLOCK_ALIGN, address & -address) if address else _BLOCK_ALIGN


class LazyCast:
    """The data of a weight as another dtype, or on a GPU; converted and moved at the first use, and kept."""

    __slots__ = ("_buffer", "_source", "device", "dtype")

    def __init__(self, source: WeightData, dtype: DType, device: DeviceRef | None = None) -> None:
        """Record the conversion; nothing is converted yet."""
        self._source: WeightData | None = source
        self._buffer: Buffer | None = None
        self.dtype = dtype
        self.device = DeviceRef.CPU() if device is None else device

    @property
    def shape(self) -> Shape | tuple[int, ...]:
        """The shape, known without converting."""
        source = self._source
        if source is None:
            return self.to_buffer().shape
        return source.shape if self.dtype is source.dtype else source.logical_shape

    def to_buffer(self) -> Buffer:
        """Return the data; two threads that request it first may both convert, with the same result."""
        source = self._source
        if self._buffer is None and source is not None:
            self._buffer = (
                self._convert_on_gpu(source) if self.device.is_gpu() else source.astype(self.dtype).to_buffer()
            )
            self._source = None  # the original's memory is no longer needed
        return known(self._buffer)

    def _convert_on_gpu(self, source: WeightData) -> Buffer:
        on_gpu = source.to_buffer().to(self.device)
        try:
            return dataclasses.replace(source, data=on_gpu).astype(self.dtype).to_buffer()
        except DeviceError:  # there is no GPU kernel for it
            del on_gpu
            return source.astype(self.dtype).to_buffer().to(self.device)

    def on_host(self) -> Buffer:
        """Return the data in host memory: a copy if a GPU has it already; otherwise the GPU is not used."""
        source = self._source
        if self._buffer is None and source is not None and self.device.is_gpu():
            return source.astype(self.dtype).to_buffer()
        return self.to_buffer().to("cpu")

    def __dlpack__(self, **options: Any) -> object:
        return self.to_buffer().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.to_buffer().__dlpack_device__()

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        return self.on_host().__array__(dtype, copy)

    def __repr__(self) -> str:
        state = "not converted yet" if self._buffer is None else "converted"
        location = f", {self.device}" if self.device.is_gpu() else ""
        return f"LazyCast({self.dtype!s}, {listed(self.shape)}{location}, {state})"
