"""`safetensors.numpy` on top of this package."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from max_weights.safetensors.deserializing import deserialize, pieces
from max_weights.safetensors.open_file import safe_open
from max_weights.safetensors.serializing import serialize, serialize_file
from max_weights.safetensors.tensor_spec import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Buffer as Bytes

    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = [
    "_TYPES",
    "TensorSpec",
    "_flatten",
    "_getdtype",
    "_is_little_endian",
    "_view2np",
    "deserialize",
    "load",
    "load_file",
    "safe_open",
    "save",
    "save_file",
    "serialize",
    "serialize_file",
]

_TYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "I64": np.int64,
    "U64": np.uint64,
    "I32": np.int32,
    "U32": np.uint32,
    "I16": np.int16,
    "U16": np.uint16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": bool,
    "C64": np.complex64,
}
# The dtypes that NumPy gets from ml_dtypes.
_ML_TYPES = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}


def load_file(filename: str | os.PathLike[str], *, backend: str = "mmap") -> dict[str, Array]:
    """Return the tensors of a file by name, in its order.

    They are writable and have memory of their own, so that the file may be overwritten, truncated or deleted. bfloat16
    and the 8-bit floats have the dtypes of ml_dtypes, in programs that have imported it.

    Args:
        filename: The file.
        backend: "mmap", or "pread", which reads each tensor into memory of its own.

    Raises:
        FileNotFoundError: there is no such file.
        SafetensorError: it is not a safetensors file, or a damaged one.
        TypeError: bfloat16, and ml_dtypes was not imported.
        AttributeError: an 8-bit float, and ml_dtypes was not imported.
    """
    with safe_open(filename, framework="np", backend=backend) as file:
        return file.get_tensors()


def load(data: Bytes) -> dict[str, Array]:
    """Return the tensors of a file in memory by name, in its order, as writable copies.

    Args:
        data: The whole file: bytes, or any other contiguous buffer, such as an mmap.

    Raises:
        SafetensorError: the bytes are not a safetensors file, or a damaged one.
        KeyError: a dtype that NumPy lacks; those of ml_dtypes are available in programs that have imported it.
    """
    views = ((piece.name, piece._asdict() | {"data": bytearray(piece.data)}) for piece in pieces(data))
    return _view2np(views)


def _getdtype(dtype_str: str) -> Any:
    """Return the NumPy dtype of the name that safetensors files have for it. KeyError if NumPy has none."""
    if dtype_str in _ML_TYPES and "ml_dtypes" in sys.modules:
        return getattr(sys.modules["ml_dtypes"], _ML_TYPES[dtype_str])
    return _TYPES[dtype_str]


def _view2np(safeview: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, Array]:
    """Return the arrays over what `deserialize` gives."""
    return {
        name: np.frombuffer(view["data"], dtype=_getdtype(view["dtype"])).reshape(view["shape"])
        for name, view in safeview
    }


def _is_little_endian(tensor: Array) -> bool:
    """Whether the first byte of an element is its least significant one."""
    order = tensor.dtype.byteorder
    return sys.byteorder == "little" if order == "=" else order != ">"


def save(tensor_dict: dict[str, Array], metadata: dict[str, str] | None = None) -> bytes:
    """Return the bytes of a safetensors file with these arrays.

    Args:
        tensor_dict: Arrays by name. Those that are not contiguous, or have their bytes in the other order, are copied.
        metadata: Strings by name.

    Raises:
        AttributeError: something that is not an array.
        TypeError: names or metadata that are not strings.
        SafetensorError: a dtype that safetensors files do not have, or as for `max_weights.safetensors.serialize`.
    """
    kept: list[Any] = []
    return serialize(_flatten(tensor_dict, kept), metadata=metadata)


def save_file(
    tensor_dict: dict[str, Array], filename: str | os.PathLike[str], metadata: dict[str, str] | None = None
) -> None:
    """Save arrays as a safetensors file, as `max_weights.safetensors.serialize_file` does: whole or not at all.

    Args:
        tensor_dict: As for `save`.
        filename: The file, which may be one that is in use.
        metadata: Strings by name.

    Raises:
        AttributeError: as for `save`.
        TypeError: as for `save`, or the filename is not a path.
        SafetensorError: as for `save`, or the system refuses, for lack of space or of permission.
    """
    kept: list[Any] = []
    serialize_file(_flatten(tensor_dict, kept), filename, metadata=metadata)


def _flatten(tensor_dict: dict[str, Array], keep_alive_buffer: list[Any]) -> dict[str, TensorSpec]:
    """Return what `serialize` takes; the arrays that own the memory are added to `keep_alive_buffer`."""
    specs = {}
    for name, array in tensor_dict.items():
        packed = array if _is_little_endian(array) else array.byteswap(inplace=False)
        # The memory of an array with gaps has more than its elements.
        packed = packed if packed.flags.c_contiguous else packed.copy(order="C")
        keep_alive_buffer.append(packed)
        specs[name] = TensorSpec(
            dtype=packed.dtype.name, shape=packed.shape, data_ptr=packed.ctypes.data, data_len=packed.nbytes
        )
    return specs
