"""`WeightData`: the tensor of one weight, with its name, and how its elements are to be read."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from max_weights._core import hand_over, shown
from max_weights.devices import NoData, devices_are_virtual
from max_weights.dim import DimLike
from max_weights.dtype import DType
from max_weights.shape import Shape

if TYPE_CHECKING:
    import numpy.typing as npt

    from max_weights._core import Buffer
    from max_weights.buffer import DLPackArray
    from max_weights.errors import UnsupportedError
    from max_weights.quantization import QuantizationEncoding

__all__ = ["WeightData"]

# What packed blocks decode to directly.
_DECODED = (DType.float32, DType.float16, DType.bfloat16)


class WeightData:
    """The data of one weight; equal only to itself.

    It speaks DLPack and NumPy's array protocol, so `torch.from_dlpack(w)` and `numpy.asarray(w)` take it as it is.

    Args:
        data: The tensor: a `Buffer`, or an array of any framework that speaks DLPack.
        name: The full name.
        dtype: The type of the elements; uint8 for packed ones.
        shape: The shape; of bytes where the elements are packed.
        quantization_encoding: How the elements are packed; none for a weight that is not quantized.
        logical_shape: The shape counted in elements; default: that of `shape`.
        refusal: What `astype` raises, where the file's type is not known and the data are bytes as they stand there.
    """

    __slots__ = (
        "__weakref__",
        "_logical_shape",
        "_shape",
        "data",
        "dtype",
        "name",
        "quantization_encoding",
        "refusal",
    )
    __match_args__ = ("data", "name", "dtype", "shape", "quantization_encoding")

    data: DLPackArray
    name: str
    dtype: DType
    quantization_encoding: QuantizationEncoding | None
    _shape: Shape | tuple[DimLike, ...]
    _logical_shape: tuple[DimLike, ...] | None
    refusal: UnsupportedError | None

    def __init__(
        self,
        data: DLPackArray,
        name: str,
        dtype: DType | str,
        shape: Iterable[DimLike],
        quantization_encoding: QuantizationEncoding | None = None,
        logical_shape: Iterable[DimLike] | None = None,
        *,
        refusal: UnsupportedError | None = None,
    ) -> None:
        self.data = data
        self.name = name
        self.dtype = dtype if type(dtype) is DType else DType(dtype)
        # Made a Shape when asked for: a checkpoint has many weights, of which most are only passed on.
        self._shape = shape if type(shape) is tuple or type(shape) is Shape else tuple(shape)
        self.quantization_encoding = quantization_encoding
        self._logical_shape = None if logical_shape is None else tuple(logical_shape)
        self.refusal = refusal

    @property
    def shape(self) -> Shape:
        """The shape; of bytes where the elements are packed."""
        shape = self._shape
        if type(shape) is not Shape:
            shape = self._shape = Shape(shape)
        return shape

    @shape.setter
    def shape(self, shape: Iterable[DimLike]) -> None:
        self._shape = Shape(shape)

    @property
    def logical_shape(self) -> Shape:
        """The shape counted in elements; differs from `shape` where the elements are packed in blocks."""
        return self.shape if self._logical_shape is None else Shape(self._logical_shape)

    @classmethod
    def from_numpy(cls, arr: npt.NDArray[Any], name: str) -> WeightData:
        """The weight over the memory of an array, with its dtype and shape.

        Args:
            arr: An array of any rank, of NumPy's own dtypes or those of ml_dtypes; one of foreign byte order is
                converted, which copies it. ValueError for a dtype that no `DType` stands for.
            name: The full name.
        """
        import numpy as np

        arr = np.asarray(arr)
        if not arr.dtype.isnative:
            arr = arr.astype(arr.dtype.newbyteorder("="))
        return cls(arr, name, DType.from_numpy(arr.dtype), arr.shape)

    def to_buffer(self) -> Buffer:
        """The data as a `Buffer`, over the same memory; kept as `data` from then on.

        Raises:
            TypeError: the data speaks no DLPack.
            BufferError: the data is on a device, or of a type, that has no `Buffer`.
        """
        from max_weights._core import Buffer

        data: Any = self.data
        if isinstance(data, Buffer):
            return data
        if _is_numpy(data):
            # NumPy's own DLPack refuses read-only arrays and the dtypes of ml_dtypes.
            buffer = Buffer.from_numpy(data)
        elif hasattr(data, "__dlpack__"):
            buffer = Buffer.from_dlpack(data)
        else:
            raise TypeError(f"the data of weight '{shown(self.name)}' speaks no DLPack: {type(data).__name__}")
        self.data = buffer
        return buffer

    def astype(self, dtype: DType | str, *, saturate: bool = False, out: Any = None) -> WeightData:
        """The weight as another dtype, by the rules of docs/dtypes.md; itself if it has the dtype already. Packed
        blocks are
        decoded, into the logical shape, and the result has no encoding.

        Always really converts, except inside `virtual_devices()`, where the result has the dtype and the shape but no
        data.

        Args:
            dtype: The dtype of the result.
            saturate: Give the largest finite value instead of infinity or NaN where a value is too large.
            out: A contiguous Buffer, array or DLPack tensor of this shape and the dtype, to write to.

        Raises:
            UnsupportedError: from or to complex64, or the file's type is not known: its bytes come as uint8.
            ValueError: `out` does not fit.
            FileChangedError: the file of a mapped weight was truncated.
        """
        dtype = DType(dtype)
        if dtype is self.dtype and out is None:
            return self
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)
        if devices_are_virtual():
            encoding, logical = self.quantization_encoding, self._logical_shape
            return WeightData(NoData(self.name), self.name, dtype, self.shape, encoding, logical)
        if self.quantization_encoding is not None and self.quantization_encoding.is_gguf:
            return self._decoded(self.quantization_encoding, dtype, saturate, out)
        return WeightData(self.to_buffer().astype(dtype, saturate=saturate, out=out), self.name, dtype, self._shape)

    def _decoded(self, encoding: QuantizationEncoding, dtype: DType, saturate: bool, out: Any) -> WeightData:
        """The elements of packed blocks; beyond the 16- and 32-bit floats by way of float32."""
        from max_weights._core import dequantize

        shape = self.logical_shape.static_dims
        if dtype in _DECODED:
            decoded = dequantize(self.to_buffer(), encoding, dtype, shape, out=out)
        else:
            decoded = dequantize(self.to_buffer(), encoding, DType.float32, shape)
            decoded = decoded.astype(dtype, saturate=saturate, out=out)
        return WeightData(decoded, self.name, dtype, tuple(shape))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        data: Any = self.data if _is_numpy(self.data) else self.to_buffer()
        # NumPy 1 has no `copy` here, and never asks for it.
        array: npt.NDArray[Any] = data.__array__(dtype) if copy is None else data.__array__(dtype, copy=copy)
        return array

    def __dlpack__(self, **options: Any) -> Any:
        return self._dlpack_data().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[Any, Any]:
        return self._dlpack_data().__dlpack_device__()

    def _dlpack_data(self) -> DLPackArray:
        return self.to_buffer() if _is_numpy(self.data) else self.data

    def __repr__(self) -> str:
        encoding = "" if self.quantization_encoding is None else f", {self.quantization_encoding}"
        shape = ", ".join(map(str, self.shape))
        return f"WeightData('{shown(self.name)}', {self.dtype!s}, [{shape}]{encoding}, {self._size()})"

    def _size(self) -> str:
        shape = self.shape
        if not shape.is_static:
            return "size not known"
        bits = self.dtype.size_in_bits
        for dim in shape.static_dims:
            bits *= dim
        size: float = -(-bits // 8)
        if size < 1000:
            return f"{size} byte" if size == 1 else f"{size} bytes"
        for unit in ("kB", "MB", "GB"):
            size /= 1000
            if size < 1000:
                return f"{size:.1f} {unit}"
        return f"{size / 1000:.1f} TB"


def _is_numpy(data: object) -> bool:
    # Whoever made the array has imported NumPy already.
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(data, numpy.ndarray)


hand_over(WeightData=WeightData)
