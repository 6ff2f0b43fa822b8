"""The doors between `Buffer` and NumPy. NumPy and ml_dtypes are imported when one is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from max_weights._core import Buffer
from max_weights.dtype import DType
from max_weights.errors import UnsupportedError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

_PACKED = (DType.float4_e2m1fn, DType.float6_e2m3fn, DType.float6_e3m2fn)


def to_numpy(buffer: Buffer) -> Array:
    """The tensor as an array over the same memory, which it keeps alive.

    Raises:
        ImportError: bfloat16 and the 8-bit floats need ml_dtypes.
        UnsupportedError: a packed dtype (less than a byte an element), which NumPy cannot view.
    """
    import numpy as np

    dtype = buffer.dtype
    if dtype in _PACKED:
        raise UnsupportedError(
            f"NumPy has no packed {dtype!r}: an element takes {dtype.size_in_bits} bits; "
            "use view(DType.uint8) for the bytes"
        )
    numpy_dtype = dtype.to_numpy()
    memory: Any  # NumPy's stubs do not list every object that has the buffer protocol
    if buffer.is_contiguous:
        memory = buffer
        return np.ndarray(buffer.shape, numpy_dtype, memory)
    memory, offset = buffer._memory()
    strides = tuple(stride * numpy_dtype.itemsize for stride in buffer.strides)
    return np.ndarray(buffer.shape, numpy_dtype, memory, offset, strides)


def array(buffer: Buffer, dtype: Any = None, copy: bool | None = None) -> Array:
    """What NumPy's `__array__` protocol asks for.

    Raises:
        ValueError: `copy=False` with another dtype.
    """
    found = to_numpy(buffer.copy() if copy else buffer)
    if dtype is not None and found.dtype != dtype:
        if copy is False:
            raise ValueError(f"converting {found.dtype} to {dtype} needs a copy, and copy=False forbids it")
        return found.astype(dtype)
    return found


def from_numpy(array: Any) -> Buffer:
    """A tensor over the memory of an array, which it keeps alive. Bytes in the other order are swapped into a copy.

    Raises:
        TypeError: not an array.
        ValueError: a dtype that no `DType` stands for.
    """
    import numpy as np

    if not isinstance(array, np.ndarray | np.generic):
        raise TypeError(
            f"from_numpy takes a NumPy array, not {type(array).__name__}; use from_dlpack for other tensors"
        )
    array = np.asarray(array)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    dtype = DType.from_numpy(array.dtype)
    if dtype in _PACKED:
        raise ValueError(f"NumPy holds {dtype!r} one element a byte, not packed; convert it to uint8 bytes yourself")
    item = array.dtype.itemsize
    if array.ndim == 0:
        return from_numpy(array.reshape(1))[0]  # the buffer protocol gives a scalar no shape to read
    if array.dtype.kind == "c":
        return Buffer._from_memory(array, dtype)
    if any(stride % item for stride, dim in zip(array.strides, array.shape, strict=True) if dim > 1):
        array = array.copy()  # fields of a record array: not a whole number of elements apart
    return Buffer._from_memory(array.view(f"u{item}"), dtype)


def numbers(data: bytes, dtype: DType, big_endian: bool) -> Array:
    """An array over the bytes of numbers, which may be in the other order; read-only."""
    import numpy as np

    return np.frombuffer(data, dtype.to_numpy().newbyteorder(">" if big_endian else "<"))


def pickled_array(data: bytes, dtype: str, shape: tuple[int, ...], fortran: bool) -> Array:
    """An array of a pickle: its bytes, dtype as NumPy spells it, shape, and whether the first index runs fastest.

    Raises:
        ValueError: the bytes do not fit the shape.
    """
    import numpy as np

    return np.frombuffer(data, np.dtype(dtype)).reshape(shape, order="F" if fortran else "C").copy(order="K")


def writable(array: Any) -> Buffer:
    """A tensor over the memory of an array or another DLPack producer, to write to."""
    import sys

    numpy = sys.modules.get("numpy")  # an array cannot come from a NumPy that was never imported
    if numpy is not None and isinstance(array, numpy.ndarray):
        if not array.dtype.isnative:
            raise ValueError(f"out has bytes in the other order ({array.dtype})")
        return from_numpy(array)
    return Buffer.from_dlpack(array)


def assign(buffer: Buffer, key: Any, value: Any) -> None:
    """Write through NumPy: `buffer[key] = value`."""
    to_numpy(buffer)[key] = value
