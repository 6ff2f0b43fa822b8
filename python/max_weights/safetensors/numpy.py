"""`safetensors.numpy` over this package."""

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
# What NumPy has from ml_dtypes.
_ML_TYPES = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}


def load_file(filename: str | os.PathLike[str], *, backend: str = "mmap") -> dict[str, Array]:
    """The tensors of a file by name, in its order.

    They are writable views of private pages of the file: writing to them changes neither the file nor another process.
    bfloat16 and the 8-bit floats have the dtypes of ml_dtypes, in programs that have imported it.

    Args:
        filename: The file.
        backend: "mmap", or "pread": each tensor is read into memory of its own.

    Raises:
        FileNotFoundError: there is no such file.
        SafetensorError: no safetensors file, or a damaged one.
        TypeError: bfloat16, and ml_dtypes was not imported.
        AttributeError: an 8-bit float, and ml_dtypes was not imported.
    """
    with safe_open(filename, framework="np", backend=backend) as file:
        return file.get_tensors()


def load(data: Bytes) -> dict[str, Array]:
    """The tensors of a file in memory by name, in its order; writable copies.

    Args:
        data: The whole file: bytes, or any other contiguous buffer, such as an mmap.

    Raises:
        SafetensorError: the bytes are no safetensors file, or a damaged one.
        KeyError: a dtype that NumPy lacks; those of ml_dtypes are there in programs that have imported it.
    """
    views = ((piece.name, piece._asdict() | {"data": bytearray(piece.data)}) for piece in pieces(data))
    return _view2np(views)


def _getdtype(dtype_str: str) -> Any:
    """The dtype of NumPy by the name that safetensors files have for it. KeyError: NumPy has none."""
    if dtype_str in _ML_TYPES and "ml_dtypes" in sys.modules:
        return getattr(sys.modules["ml_dtypes"], _ML_TYPES[dtype_str])
    return _TYPES[dtype_str]


def _view2np(safeview: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, Array]:
    """The arrays over what `deserialize` gives."""
    return {
        name: np.frombuffer(view["data"], dtype=_getdtype(view["dtype"])).reshape(view["shape"])
        for name, view in safeview
    }


def _is_little_endian(tensor: Array) -> bool:
    """Whether the first byte of an element is its least significant one."""
    order = tensor.dtype.byteorder
    return sys.byteorder == "little" if order == "=" else order != ">"


def save(tensor_dict: dict[str, Array], metadata: dict[str, str] | None = None) -> bytes:
    """The bytes of a safetensors file with these arrays.

    Args:
        tensor_dict: Arrays by name. Those that are not contiguous, or have their bytes in the other order, are copied.
        metadata: Text by name.

    Raises:
        AttributeError: something that is no array.
        TypeError: names or metadata that are not text.
        SafetensorError: a dtype that safetensors files do not have, and as of `max_weights.safetensors.serialize`.
    """
    kept: list[Any] = []
    return serialize(_flatten(tensor_dict, kept), metadata=metadata)


def save_file(
    tensor_dict: dict[str, Array], filename: str | os.PathLike[str], metadata: dict[str, str] | None = None
) -> None:
    """Save arrays as a safetensors file, as `max_weights.safetensors.serialize_file` does: whole or not at all.

    Args:
        tensor_dict: As of `save`.
        filename: The file, which may be one that is in use.
        metadata: Text by name.

    Raises:
        AttributeError: as of `save`.
        TypeError: as of `save`, and a filename that is none.
        SafetensorError: as of `save`, and what the system refuses: no room, no permission.
    """
    kept: list[Any] = []
    serialize_file(_flatten(tensor_dict, kept), filename, metadata=metadata)


def _flatten(tensor_dict: dict[str, Array], keep_alive_buffer: list[Any]) -> dict[str, TensorSpec]:
    """What `serialize` takes; the arrays whose memory that is are added to `keep_alive_buffer`."""
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
