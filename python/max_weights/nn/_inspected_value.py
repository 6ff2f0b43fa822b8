"""Values for weights: their properties, and the location of their memory.

A value keeps its identity: it is examined, and converted only if a weight needs its bytes or an aligned copy.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from max_weights._allocation import LazyCast
from max_weights._buffer import Buffer
from max_weights._devices import NoData
from max_weights._dtype import DType
from max_weights._shape import Shape
from max_weights._weight_data import WeightData
from max_weights.errors import DeviceError

if TYPE_CHECKING:
    import numpy as np

    from max_weights._buffer import Array, DLPackArray
    from max_weights._quantization import QuantizationEncoding

# The alignment in bytes of memory that is allocated here.
_OWN_ALIGN = 64


class Mismatch(Exception):
    """Raised for a value that cannot be used; the message says why."""


class InspectedValue:
    """One value under examination.

    Args:
        value: A NumPy array, a `Buffer`, a `WeightData`, or any DLPack producer in host memory. Mismatch for anything
            else.
    """

    __slots__ = ("dtype", "encoding", "is_aligned", "is_contiguous", "is_weight_data", "memory", "shape", "value")

    value: DLPackArray
    """The object that the weight is to hold."""
    dtype: DType
    shape: Shape
    encoding: QuantizationEncoding | None
    """How the elements are packed; `None` also if the value cannot say."""
    is_weight_data: bool
    is_contiguous: bool
    """Whether the elements are contiguous in C order."""
    is_aligned: bool
    """Whether the elements are aligned as the dtype requires; False also if that is not known."""
    memory: Buffer | Array | None
    """The array or Buffer in memory; `None` if there is none yet."""

    def __init__(self, value: Any) -> None:
        self.is_weight_data = isinstance(value, WeightData)
        self.encoding = None
        data = value.data if self.is_weight_data else value
        self.value = self.memory = data
        if isinstance(data, Buffer):
            self._inspect_buffer(data)
        # An array cannot come from a NumPy that was never imported.
        elif (numpy := sys.modules.get("numpy")) and isinstance(data, (numpy.ndarray, numpy.generic)):
            self._inspect_array(data if isinstance(data, numpy.ndarray) else numpy.asarray(data))
        elif isinstance(data, LazyCast):
            self.dtype, self.shape, self.memory = data.dtype, Shape(data.shape), None
            self.is_contiguous = self.is_aligned = True
        elif isinstance(data, NoData) and self.is_weight_data:
            self.memory = None
            self.is_contiguous = self.is_aligned = True
        else:
            self.memory = _by_dlpack(data)
            self._inspect_buffer(self.memory)
        if self.is_weight_data:
            self.dtype, self.shape, self.encoding = value.dtype, value.shape, value.quantization_encoding

    def _inspect_buffer(self, buffer: Buffer) -> None:
        self.dtype, self.shape = buffer.dtype, _shape(buffer.shape)
        self.is_contiguous, self.is_aligned = buffer.is_contiguous, buffer.aligned

    def _inspect_array(self, array: Array) -> None:
        self.value = self.memory = array
        self.dtype, same_alignment = _dtype(array.dtype)
        self.shape = _shape(array.shape)
        flags = array.flags
        self.is_contiguous, self.is_aligned = flags.c_contiguous, flags.aligned and same_alignment

    def misalignment(self, align: int) -> int:
        """Return the number of bytes by which the data is beyond a multiple of `align`."""
        memory = self.memory
        if memory is None or 0 in self.shape.static_dims:
            return 0
        address: int = memory._data_ptr() if isinstance(memory, Buffer) else memory.__array_interface__["data"][0]
        return address % align

    def take_as_bytes(self) -> None:
        """Hold the value as bytes, over the same memory: uint8, with the last dimension times the item size."""
        *rows, row = self.shape.static_dims or [1]
        self.shape = Shape([*rows, row * self.dtype.size_in_bits // 8])
        self.dtype = DType.uint8
        if not isinstance(self.value, NoData):
            buffer = self.value.to_buffer() if isinstance(self.value, LazyCast) else Buffer.of(self.memory)
            self.value = self.memory = buffer.view(DType.uint8, self.shape.static_dims)

    def aligned_copy(self, align: int) -> Buffer:
        """Return a copy of the elements, at a multiple of `align`."""
        buffer = Buffer.of(self.memory)
        if align <= _OWN_ALIGN:
            return buffer.copy()
        raw = Buffer.zeros([buffer.nbytes + align], DType.uint8)
        start = -raw._data_ptr() % align
        place = raw[start : start + buffer.nbytes]
        place[:] = buffer.copy().view(DType.uint8, [buffer.nbytes])
        return place.view(buffer.dtype, buffer.shape)


# A model has thousands of weights, but few shapes and dtypes.
_shape = functools.lru_cache(maxsize=1024)(Shape)


@functools.lru_cache(maxsize=64)
def _dtype(dtype: np.dtype[np.generic]) -> tuple[DType, bool]:
    """Return the dtype of an array, and whether NumPy aligns it as we do."""
    try:
        member = DType.from_numpy(dtype)
    except ValueError as error:
        raise Mismatch(str(error)) from error
    return member, member.align == dtype.alignment


def _by_dlpack(data: object) -> Buffer:
    try:
        return Buffer.of(data)
    except DeviceError:
        raise  # nothing is wrong with the value
    except TypeError as error:
        raise Mismatch(
            f"a {type(data).__name__} is not an array: give a NumPy array, a Buffer, a WeightData or a tensor that "
            "supports DLPack"
        ) from error
    except (NotImplementedError, ValueError) as error:
        raise Mismatch(f"the {type(data).__name__} cannot be read: {error}") from error
