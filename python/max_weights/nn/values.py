"""Values that a weight can be given: what they are, and whether they fit its declaration.

A value keeps its identity: it is looked at, never converted (but for `copy_if_misaligned`).
"""

from __future__ import annotations

import math
import sys
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from max_weights._core import Buffer, WeightsNode
from max_weights.allocation import LazyCast
from max_weights.buffer import as_buffer
from max_weights.devices import NoData
from max_weights.dtype import DType
from max_weights.shape import matches as matches
from max_weights.weight_data import WeightData

if TYPE_CHECKING:
    from max_weights.quantization import QuantizationEncoding
    from max_weights.shape import Shape

# Memory that is made here is aligned to this, in bytes.
_OWN_ALIGN = 64
# The size of a static dimension, without the call of a property; AttributeError for other dimensions.
size_of = attrgetter("_size")


class Misfit(Exception):
    """A value that cannot be taken; the message says why."""


class Value:
    """One value under examination.

    Args:
        given: A NumPy array, a `Buffer`, any DLPack producer in host memory, a `WeightData`, or a weight of a
            checkpoint. Misfit for anything else.
    """

    __slots__ = ("contiguous", "declared", "dtype", "encoding", "logical", "memory", "shape", "stored")

    stored: Any
    """What the weight is to hold."""
    dtype: DType
    shape: tuple[int, ...]
    encoding: QuantizationEncoding | None
    declared: bool
    """Whether the value says how it is packed, if it is; an array does not."""
    logical: tuple[int, ...] | None
    """The shape counted in elements; none if it is not known."""
    contiguous: bool
    memory: Any
    """The array or Buffer whose address counts; none if there is no memory yet."""

    def __init__(self, given: Any) -> None:
        self.encoding, self.logical, self.declared = None, None, False
        if isinstance(given, WeightsNode) or (not hasattr(given, "__dlpack__") and hasattr(given, "allocate")):
            given = given.data()
        if not isinstance(given, WeightData):
            self._look(given)
            return
        data: Any = given.data
        self.declared, self.encoding = True, given.quantization_encoding
        if isinstance(data, NoData):
            self.stored, self.memory, self.contiguous = data, None, True
        else:
            self._look(data)
        self.dtype, self.shape = given.dtype, tuple(given.shape.static_dims)
        if self.encoding is not None and self.encoding.is_gguf:
            self.logical = tuple(given.logical_shape.static_dims)

    def _look(self, data: Any) -> None:
        self.stored = data
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(data, numpy.generic):
            data = self.stored = numpy.asarray(data)
        if numpy is not None and isinstance(data, numpy.ndarray):
            try:
                self.dtype = DType.from_numpy(data.dtype)
            except ValueError as error:
                raise Misfit(str(error)) from error
            self.shape, self.contiguous, self.memory = data.shape, data.flags.c_contiguous, data
        elif isinstance(data, LazyCast):
            self.dtype, self.shape = data.dtype, tuple(map(int, data.shape))
            self.contiguous, self.memory = True, None
        else:
            buffer = _by_dlpack(data)
            self.dtype, self.shape = buffer.dtype, buffer.shape
            self.contiguous, self.memory = buffer.is_contiguous, buffer

    def misalignment(self, align: int) -> int:
        """Bytes that the data lies beyond a multiple of `align`."""
        if self.memory is None or 0 in self.shape:
            return 0
        if isinstance(self.memory, Buffer):
            return self.memory._data_ptr() % align
        address: int = self.memory.__array_interface__["data"][0]
        return address % align

    def aligned_copy(self, align: int) -> Buffer:
        """The elements in memory of their own, at a multiple of `align`."""
        buffer = self.memory if isinstance(self.memory, Buffer) else Buffer.from_numpy(self.memory)
        if align <= _OWN_ALIGN:
            return buffer.copy()
        raw = Buffer.zeros([buffer.nbytes + align], DType.uint8)
        start = -raw._data_ptr() % align
        place = raw[start : start + buffer.nbytes]
        place[:] = buffer.copy().view(DType.uint8, [buffer.nbytes])
        return place.view(buffer.dtype, buffer.shape)


def _by_dlpack(data: Any) -> Buffer:
    if not hasattr(data, "__dlpack__"):
        raise Misfit(
            f"a {type(data).__name__} is no array: give a NumPy array, a Buffer, a WeightData or a tensor that speaks "
            "DLPack"
        )
    try:
        return as_buffer(data)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise Misfit(f"the {type(data).__name__} cannot be read: {error}") from error


def static_shape(shape: Shape) -> tuple[int, ...] | None:
    """A shape as ints; none if a dimension is symbolic."""
    try:
        return tuple(map(size_of, shape))
    except AttributeError:
        return None


def nbytes(value: Any) -> int:
    """Bytes of a value that a weight holds."""
    found = Value(value)
    return -(-found.dtype.size_in_bits * math.prod(found.shape) // 8)
