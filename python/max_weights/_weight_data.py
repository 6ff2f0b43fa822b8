"""`WeightData`: the tensor of one weight, with its name and the encoding of its elements."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from max_weights._core import escape
from max_weights._devices import NoData, is_virtual_device_mode
from max_weights._dim import DimLike
from max_weights._dtype import DType, DTypeLike
from max_weights._shape import Shape, listed
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

    from max_weights._buffer import Array, DLPackArray
    from max_weights._core import Buffer
    from max_weights._quantization import QuantizationEncoding
    from max_weights.errors import UnsupportedError

__all__ = ["WeightData"]

# The dtypes that packed blocks are decoded to directly.
_DECODED = (DType.float32, DType.float16, DType.bfloat16)


@dataclass(init=False, eq=False, repr=False)
class WeightData:
    """The data of one weight, with its name, dtype and shape; equal only to itself.

    It supports DLPack and NumPy's array protocol, so `torch.from_dlpack(w)` and `numpy.asarray(w)` accept it.
    It is a dataclass: `dataclasses.replace(w, name="other")` is the same data under another name.

    Args:
        data: The tensor: a `Buffer`, or an array of any framework that supports DLPack.
        name: The full name.
        dtype: The type of the elements; uint8 for packed ones.
        shape: The shape; counted in bytes where the elements are packed.
        quantization_encoding: How the elements are packed; `None` for a weight that is not quantized.
        refusal: What `astype` raises if the file's type is not known and the data is the bytes as stored.
    """

    data: DLPackArray
    name: str
    dtype: DType
    shape: Shape
    quantization_encoding: QuantizationEncoding | None = None
    refusal: UnsupportedError | None = field(default=None, kw_only=True)

    def __init__(
        self,
        data: DLPackArray,
        name: str,
        dtype: DTypeLike,
        shape: Iterable[DimLike],
        quantization_encoding: QuantizationEncoding | None = None,
        *,
        refusal: UnsupportedError | None = None,
    ) -> None:
        self.data = data
        self.name = name
        self.dtype = dtype if type(dtype) is DType else DType(dtype)
        self.shape = shape if type(shape) is Shape else Shape(shape)
        self.quantization_encoding = quantization_encoding
        self.refusal = refusal

    @property
    def logical_shape(self) -> Shape:
        """The shape counted in elements; differs from `shape` where the elements are packed in blocks."""
        encoding = self.quantization_encoding
        return self.shape if encoding is None else encoding.logical_shape(self.shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes of the elements. ValueError if a dimension is symbolic."""
        if not self.shape.is_static:
            raise ValueError(f"weight '{escape(self.name)}' has the symbolic shape {listed(self.shape)}, and no size")
        return -(-self.dtype.size_in_bits * math.prod(self.shape.static_dims) // 8)

    @classmethod
    def from_numpy(cls, arr: Array, name: str) -> WeightData:
        """Return a weight over the memory of an array, with its dtype and shape.

        Args:
            arr: An array with a dtype of NumPy or ml_dtypes; one of foreign byte order is copied.
            name: The full name.

        Returns:
            The weight.

        Raises:
            ValueError: a dtype that has no `DType`.

        Example:
            >>> max_weights.WeightData.from_numpy(np.zeros((2, 3), "f4"), "w").shape
            [Dim(2), Dim(3)]
        """
        import numpy as np

        arr = np.asarray(arr)
        if not arr.dtype.isnative:
            arr = arr.astype(arr.dtype.newbyteorder("="))
        return cls(arr, name, DType.from_numpy(arr.dtype), arr.shape)

    def __getitem__(self, key: Any) -> Buffer:
        """Return a part of the data as a `Buffer`, a view, by NumPy's basic indexing: `data[0:2, ..., None]`."""
        return self.to_buffer()[key]

    def to_numpy(self) -> Array:
        """Return the data as a NumPy array over the same memory; of packed blocks, their bytes.

        Raises:
            ImportError: ml_dtypes is missing, which bfloat16 and the 8-bit floats need.
            UnsupportedError: the elements are smaller than a byte, which NumPy cannot view.

        Example:
            >>> weights.model.norm.weight.data().to_numpy().dtype
            dtype('float32')
        """
        return self.__array__()

    def numpy(self) -> Array:
        """Return what `to_numpy` does, but refuse packed blocks, whose bytes are no values.

        Raises:
            ArgumentError: packed blocks (a ValueError); or as `to_numpy`.

        Example:
            >>> weights.model.norm.weight.data().numpy().shape
            (8,)
        """
        self._require_values()
        return self.to_numpy()

    def torch(self) -> torch.Tensor:
        """Return the data as a torch tensor over the same memory.

        Raises:
            ArgumentError: packed blocks, whose bytes are no values; `to_buffer()` has them (a ValueError).
            ImportError: torch is missing.
            BufferError: a type that torch does not have.

        Example:
            >>> weights.model.norm.weight.data().torch().shape
            torch.Size([8])
        """
        from max_weights._buffer import to_torch

        self._require_values()
        return to_torch(self.to_buffer())

    def _require_values(self) -> None:
        """Refuse packed blocks, which are bytes to other libraries. DLPack and `__array__` give them, as in MAX."""
        encoding = self.quantization_encoding
        if encoding is not None and encoding.is_gguf:
            error = ArgumentError(
                f"'{escape(self.name)}' ({encoding.name}) is packed in blocks: decode it with astype('bfloat16'), or "
                "load it with packed='decode'; to_buffer() has the bytes of the blocks",
                rule="argument.packed",
            )
            error.tensor = self.name
            raise error

    def to_buffer(self) -> Buffer:
        """Return the data as a `Buffer` over the same memory, which is kept as `data` from then on.

        Raises:
            TypeError: the data is not a tensor.
            ArgumentError: the data is on a device, or of a type, for which there is no `Buffer` (a ValueError).

        Example:
            >>> weights.model.norm.weight.data().to_buffer().nbytes
            32
        """
        from max_weights._core import Buffer

        data: Any = self.data
        if not isinstance(data, Buffer):
            data = self.data = Buffer.of(data, f"the data of weight '{escape(self.name)}'")
        buffer: Buffer = data
        return buffer

    def astype(self, dtype: DTypeLike, *, saturate: bool = False, out: DLPackArray | None = None) -> WeightData:
        """Return the weight as another dtype, by the rules of docs/dtypes.md; itself if it has that dtype already.

        Packed blocks are decoded into the logical shape, and the result has no encoding.

        The conversion always happens at once, except inside `virtual_devices()`, where the result has the dtype and the
        shape but no data.

        Args:
            dtype: The dtype of the result.
            saturate: Give the largest finite value instead of infinity or NaN where a value is too large.
            out: A contiguous Buffer, array or DLPack tensor of this shape and the dtype, to write to.

        Raises:
            UnsupportedError: the conversion is from or to complex64, or the file's type is not known, so its bytes come
                as uint8.
            ValueError: `out` does not fit.
            FileChangedError: the file of a mapped weight was truncated.

        Example:
            >>> weights.model.norm.weight.data().astype("bfloat16").dtype
            bfloat16
        """
        dtype = DType(dtype)
        if dtype is self.dtype and out is None:
            return self
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)
        encoding = self.quantization_encoding
        blocks = encoding is not None and encoding.is_gguf
        if is_virtual_device_mode():
            return WeightData(NoData(self.name), self.name, dtype, self.logical_shape if blocks else self.shape)
        if encoding is not None and blocks:
            return self._decoded(encoding, dtype, saturate, out)
        return WeightData(self.to_buffer().astype(dtype, saturate=saturate, out=out), self.name, dtype, self.shape)

    def _decoded(
        self, encoding: QuantizationEncoding, dtype: DType, saturate: bool, out: DLPackArray | None
    ) -> WeightData:
        """Decode the elements of packed blocks; other dtypes than the 16- and 32-bit floats go through float32."""
        from max_weights._core import dequantize

        shape = self.logical_shape.static_dims
        if dtype in _DECODED:
            decoded = dequantize(self.to_buffer(), encoding, dtype, shape, out=out)
        else:
            decoded = dequantize(self.to_buffer(), encoding, DType.float32, shape)
            decoded = decoded.astype(dtype, saturate=saturate, out=out)
        return WeightData(decoded, self.name, dtype, shape)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        data: Any = self.data if _is_numpy(self.data) else self.to_buffer()
        # NumPy 1 passes no `copy` here, and never asks for it.
        array: Array = data.__array__(dtype) if copy is None else data.__array__(dtype, copy=copy)
        return array

    def __dlpack__(self, **options: Any) -> object:
        return self._dlpack_data().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[object, int]:
        return self._dlpack_data().__dlpack_device__()

    def _dlpack_data(self) -> DLPackArray:
        return self.to_buffer() if _is_numpy(self.data) else self.data

    def _repr_html_(self) -> str:
        from max_weights._buffer import values_html
        from max_weights._core import Buffer
        from max_weights._html import properties, view

        data: Any = self.data
        encoding, size = self.quantization_encoding, self.nbytes if self.shape.is_static else None
        is_buffer = isinstance(data, Buffer)
        facts = [
            ("dtype", self.dtype.name),
            ("shape", listed(self.shape)),
            ("encoding", encoding and encoding.value),
            ("elements", encoding and listed(self.logical_shape)),
            ("bytes", size),
            ("data", type(data).__name__),
            ("device", data.device if is_buffer else None),
            ("memory", "a view of a mapped file" if is_buffer and data.is_mapped else None),
        ]
        # Packed blocks are bytes that mean nothing to a reader.
        values = values_html(self.to_buffer()) if encoding is None and (is_buffer or _is_numpy(data)) else ""
        return view(escape(self.name), f"{self.dtype.name} {listed(self.shape)}", properties(facts), values)

    def __repr__(self) -> str:
        encoding = "" if self.quantization_encoding is None else f", {self.quantization_encoding}"
        size = _readable(self.nbytes) if self.shape.is_static else "size not known"
        return f"WeightData('{escape(self.name)}', {self.dtype!s}, {listed(self.shape)}{encoding}, {size})"


def _readable(size: float) -> str:
    if size < 1000:
        return f"{size} byte" if size == 1 else f"{size} bytes"
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 1000:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


def _is_numpy(data: object) -> bool:
    # If it is a NumPy array, NumPy has been imported already.
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(data, numpy.ndarray)
