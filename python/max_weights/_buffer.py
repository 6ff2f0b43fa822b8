"""Conversions between `Buffer` and NumPy. NumPy and ml_dtypes are imported when they are first needed.

Functions that read all elements of a mapped file work on a copy that `Buffer` makes: that copy answers a truncated file
with an error, where reading through NumPy would kill the process.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from max_weights import _devices as _devices  # a tensor tells which device it is on
from max_weights._core import (
    Buffer,
    WeightsNode,
    _buffer_of_bytes,
    _PickledFile,
    _remap_buffer,
)
from max_weights._dtype import DType
from max_weights.errors import DeviceError, FileChangedError, UnsupportedError

if TYPE_CHECKING:
    from os import PathLike

    import numpy.typing as npt
    import torch

    Array = npt.NDArray[Any]

__all__ = ["Buffer", "DLPackArray"]

_FEW = 64
"""A notebook shows this many values in full."""


@runtime_checkable
class DLPackArray(Protocol):
    """Any object that exports its memory by DLPack: arrays of NumPy, torch, jax and cupy, `Buffer`, `WeightData`."""

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        """Return a capsule that holds the tensor."""

    def __dlpack_device__(self) -> tuple[object, int]:
        """Return the DLPack device type and the number of the device."""


_PACKED = (DType.float4_e2m1fn, DType.float6_e2m3fn, DType.float6_e3m2fn)


def to_numpy(buffer: Buffer) -> Array:
    """Return the tensor as a NumPy array over the same memory, which the array keeps alive."""
    import numpy as np

    dtype = buffer.dtype
    if dtype in _PACKED:
        raise UnsupportedError(
            f"NumPy has no packed {dtype!r}: an element takes {dtype.size_in_bits} bits; "
            "use view(DType.uint8) for the bytes",
            rule="unsupported.dtype",
        )
    numpy_dtype = dtype.to_numpy()
    memory: Any  # NumPy's stubs do not list every object that has the buffer protocol
    if buffer.is_contiguous:
        memory = buffer
        return np.ndarray(buffer.shape, numpy_dtype, memory)
    memory, offset = buffer._memory()
    item = numpy_dtype.itemsize
    # The stride of an axis of one element is never used, and may be larger than NumPy accepts.
    axes = zip(buffer.shape, buffer.strides, strict=True)
    return np.ndarray(
        buffer.shape, numpy_dtype, memory, offset, tuple(stride * item if dim > 1 else item for dim, stride in axes)
    )


def to_torch(buffer: Buffer) -> torch.Tensor:
    """Return the tensor as a torch tensor over the same memory, which that keeps alive."""
    from torch.utils.dlpack import from_dlpack

    tensor: torch.Tensor = from_dlpack(buffer)
    return tensor


def array(buffer: Buffer, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
    """Implement NumPy's `__array__` protocol."""
    converts = dtype is not None and buffer.dtype.to_numpy() != dtype
    if converts and copy is False:
        raise ValueError(f"converting {buffer.dtype} to {dtype} needs a copy, and copy=False forbids it")
    copied = copy or (converts and buffer.is_mapped)
    if not copied:
        buffer._require_file()  # NumPy 1 does not announce that it will copy, but copies
    result = to_numpy(buffer.copy() if copied else buffer)
    return result.astype(dtype) if converts else result


def from_numpy(array: object) -> Buffer:
    """Return a tensor over the memory of an array, which it keeps alive; foreign byte order makes a copy."""
    import numpy as np

    if not isinstance(array, np.ndarray | np.generic):
        raise TypeError(
            f"from_numpy takes a NumPy array, not {type(array).__name__}; use from_dlpack for other tensors"
        )
    array = np.asarray(array)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not _has_whole_elements(array):
        array = array.copy()
    return _over(array)


def _has_whole_elements(array: Array) -> bool:
    """Return False for the fields of a record array, such as a float32 next to a byte."""
    item = array.dtype.itemsize
    return not any(stride % item for stride, dim in zip(array.strides, array.shape, strict=True) if dim > 1)


def _over(array: Array) -> Buffer:
    """Return the tensor over the memory of an array whose layout a `Buffer` can describe."""
    dtype = DType.from_numpy(array.dtype)
    if dtype in _PACKED:
        raise ValueError(f"NumPy holds {dtype!r} unpacked, one element per byte; convert it to uint8 bytes yourself")
    if array.ndim == 0:
        return _over(array.reshape(1))[0]  # the buffer protocol gives a scalar no shape to read
    if array.dtype.kind == "c":
        return Buffer._from_memory(array, dtype)
    return Buffer._from_memory(array.view(f"u{array.dtype.itemsize}"), dtype)


def scalar(value: object, dtype: DType) -> Buffer:
    """Return a tensor of rank 0. OverflowError for an integer that does not fit the dtype."""
    import numpy as np

    return _over(np.array(value, dtype.to_numpy()))


def memmap(path: str | PathLike[str], dtype: DType, shape: list[int], mode: str, offset: int) -> Buffer:
    """Return a tensor over a file; writing to the tensor changes the file."""
    import numpy as np

    return _over(np.memmap(path, dtype.to_numpy(), mode, offset, tuple(shape)))  # type: ignore[call-overload]


def text(buffer: Buffer) -> str:
    """Return what `print` shows: the values as NumPy prints them, the ends only if there are many; none of a GPU's."""
    about = f"dtype={buffer.dtype}, shape={buffer.shape}, device={buffer.device}"
    values = printed(buffer, prefix="Buffer(")
    return f"Buffer({about})" if values is None else f"Buffer({values}, {about})"


def printed(buffer: Buffer, **options: Any) -> str | None:
    """Return the values as `numpy.array2string` with these options prints them; `None` if they cannot be read."""
    try:
        buffer._require_file()
        values = to_numpy(buffer)
    except (DeviceError, ImportError, UnsupportedError):
        return None
    import numpy as np

    return np.array2string(values, **options)


def html(buffer: Buffer) -> str:
    """Return what a notebook shows: what the tensor is, and its first and last values."""
    from max_weights._html import properties, view

    facts = [
        ("dtype", buffer.dtype.name),
        ("shape", buffer.shape),
        ("strides", None if buffer.is_contiguous else buffer.strides),
        ("bytes", buffer.nbytes),
        ("device", buffer.device),
        ("memory", "a view of a mapped file" if buffer.is_mapped else None),
        ("writable", None if buffer.is_writable else "no"),
    ]
    return view("Buffer", f"{buffer.dtype.name} {list(buffer.shape)}", properties(facts), values_html(buffer))


def values_html(buffer: Buffer) -> str:
    """Return the part of a view with values: a few at each end of each axis; nothing if they cannot be read."""
    from max_weights._html import bad, details, paragraph, pre

    try:
        values = printed(buffer, threshold=_FEW, edgeitems=3, max_line_width=100)
    except FileChangedError as error:
        return paragraph(bad(error))  # the rest of the view can still be shown
    return "" if values is None else details("values", "", pre(values))


def numbers(data: bytes, dtype: DType, big_endian: bool) -> Array:
    """Return a read-only array over the bytes of numbers, which may be in the other byte order."""
    import numpy as np

    return np.frombuffer(data, dtype.to_numpy().newbyteorder(">" if big_endian else "<"))


def pickled_array(data: bytes, dtype: str, shape: tuple[int, ...], fortran: bool) -> Array:
    """Return an array of a pickle from its bytes, its dtype as NumPy spells it, its shape and order."""
    import numpy as np

    return np.frombuffer(data, np.dtype(dtype)).reshape(shape, order="F" if fortran else "C").copy(order="K")


def writability_unknown(producer: object) -> bool:
    """Whether the DLPack capsules of this producer from before version 1 always hold writable memory.

    This is true of torch, which knows no read-only memory, and of NumPy, which refuses to export it.
    """
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")  # the producer's library has been imported
    return (numpy is not None and isinstance(producer, numpy.ndarray)) or (
        torch is not None and isinstance(producer, torch.Tensor)
    )


def writable(out: object) -> Any:
    """Return the tensor over the memory of `out`, to write to; or `out` itself, if DLPack has to be asked for it."""
    if isinstance(out, Buffer):
        return out
    if isinstance(out, WeightsNode):
        out = out.data()
    memory = getattr(out, "data", None) if hasattr(out, "to_buffer") else None
    if memory is not None:
        return writable(memory)  # a WeightData, which may hold anything
    numpy, jax = sys.modules.get("numpy"), sys.modules.get("jax")  # the library of `out` has been imported
    if jax is not None and isinstance(out, jax.Array):
        raise ValueError("out is a JAX array, which is immutable")
    if numpy is None or not isinstance(out, numpy.ndarray | numpy.generic):
        return out
    problem = None
    if not isinstance(out, numpy.ndarray):
        problem = f"is a NumPy scalar ({type(out).__name__})"
    elif not out.dtype.isnative:
        problem = f"has bytes in the other order ({out.dtype})"
    elif not out.flags.writeable:
        problem = "is read-only"
    elif not _has_whole_elements(out):
        problem = f"has strides {out.strides} that are not whole elements of {out.dtype.itemsize} bytes"
    if problem is not None:
        raise ValueError(f"out {problem} and cannot be written in place; give another array")
    return _over(numpy.asarray(out))


def contains(buffer: Buffer, value: object) -> bool:
    """Whether an element equals the value, as in NumPy."""
    return value in to_numpy(buffer.copy() if buffer.is_mapped else buffer)


def assign(buffer: Buffer, key: Any, value: Any) -> None:
    """Write through NumPy: `buffer[key] = value`."""
    to_numpy(buffer)[key] = value


# The functions that pickles of tensors name: `_PickledFile`, and these.
def _remapped(file: _PickledFile, reach: tuple[int, int], place: tuple[object, ...]) -> Buffer:
    return _remap_buffer(file, reach, place)


def _of_bytes(data: bytes, dtype: DType, shape: list[int]) -> Buffer:
    return _buffer_of_bytes(data, dtype, shape)
