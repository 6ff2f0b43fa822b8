"""`serialize`, `serialize_file` and `deserialize`: tensors in memory, and safetensors files in memory."""

from __future__ import annotations

import ctypes
import functools
import os
from typing import TYPE_CHECKING, TypedDict

from max_weights._core import Buffer, escape, safetensors_header, save_tensors, serialize_tensors
from max_weights._dtype import DType
from max_weights.errors import WeightsError
from max_weights.safetensors._errors import opening_error, saving_error, serializing_error, unfit
from max_weights.safetensors._installed import loaded_extension

if TYPE_CHECKING:
    from collections.abc import Mapping

    from safetensors import TensorSpec
    from typing_extensions import Buffer as Bytes

__all__ = ["SafeView", "deserialize", "file_bytes", "serialize", "serialize_file", "write_file"]

# The format: the header padded to 8 bytes, and the tensors in the order of safetensors.
_ALIGNMENT = 8
_METADATA = "__metadata__"
_LENGTH, _MAX_HEADER = 8, 100_000_000
_dtype_of = functools.cache(DType)  # a file has many tensors, and few dtypes


def serialize(tensor_dict: dict[str, TensorSpec], metadata: dict[str, str] | None = None) -> bytes:
    """Return the bytes of a safetensors file with these tensors, as the safetensors package writes it.

    Only the keys of the metadata are sorted; in the package, their order is random. Several threads copy the tensors,
    once, and other Python threads run meanwhile. A tensor whose size does not fit its shape, or that is called
    `__metadata__`, and a header that no reader accepts, is a SafetensorError.
    """
    return file_bytes(_memory_of(tensor_dict), metadata)


def serialize_file(
    tensor_dict: dict[str, TensorSpec], filename: str | os.PathLike[str], metadata: dict[str, str] | None = None
) -> None:
    """Save tensors as a safetensors file, with the bytes that `serialize` gives.

    Several threads write a temporary file in the same folder, which replaces `filename` once it is complete. As in the
    safetensors package, this does not wait until the bytes are on the disk; `max_weights.save_file` does. A system
    error is a SafetensorError.
    """
    write_file(_memory_of(tensor_dict), filename, metadata)


class SafeView(TypedDict):
    """One tensor of a file in memory."""

    shape: list[int]
    dtype: str
    data: bytearray


def deserialize(bytes: Bytes) -> list[tuple[str, SafeView]]:
    """Return the tensors of a file in memory, in its order; the data is copied. A damaged file is a SafetensorError."""
    view = memoryview(bytes)
    if not view.c_contiguous:
        raise TypeError("the bytes of a file must be one contiguous buffer")
    view = view.cast("B") if view.nbytes else memoryview(b"")
    header = min(int.from_bytes(view[:_LENGTH], "little"), _MAX_HEADER)
    try:
        entries, _ = safetensors_header(view[: _LENGTH + header].tobytes(), len(view))
    except WeightsError as error:
        raise opening_error(error, None) from None
    return [
        (name, {"shape": shape, "dtype": dtype, "data": bytearray(view[start:end])})
        for name, dtype, shape, start, end in entries
    ]


def file_bytes(tensors: dict[str, Buffer], metadata: dict[str, str] | None) -> bytes:
    """Return the bytes of a file with these tensors. Errors are those of `serialize`."""
    noted = _noted(tensors, metadata)
    try:
        return serialize_tensors(list(tensors), list(tensors.values()), noted, alignment=_ALIGNMENT)
    except UnicodeError:
        raise  # an error about a name, as in safetensors
    except ValueError as error:
        raise saving_error(error) from None


def write_file(tensors: dict[str, Buffer], filename: str | os.PathLike[str], metadata: dict[str, str] | None) -> None:
    """Save these tensors as a file. Errors are those of `serialize_file`."""
    path, noted = os.fspath(filename), _noted(tensors, metadata)
    if not isinstance(path, str):
        raise _no("filename", path, "str")
    try:
        save_tensors(path, list(tensors), list(tensors.values()), noted, alignment=_ALIGNMENT, sync=False)
    except UnicodeError:
        raise  # an error about a name, as in safetensors
    except (OSError, ValueError) as error:
        raise saving_error(error) from None


def _memory_of(tensor_dict: Mapping[str, object]) -> dict[str, Buffer]:
    """Return the memory of the tensors, if they are tensors, in a new dict that no other thread changes."""
    if not isinstance(tensor_dict, dict):
        raise _no("tensor_dict", tensor_dict, "dict")
    kind = getattr(loaded_extension(), "TensorSpec", ())  # who has not loaded the package has none
    specs = dict(tensor_dict)
    for name, spec in specs.items():
        if not isinstance(name, str):
            raise _no("tensor_dict", name, "str")
        if not isinstance(spec, kind):
            raise _no("tensor_dict", spec, "TensorSpec")
    return {name: _memory(name, spec) for name, spec in specs.items()}


def _memory(name: str, spec: TensorSpec) -> Buffer:
    dtype, shape, address, size = _dtype_of(spec.dtype), spec.shape, spec.data_ptr, spec.data_len
    bits = dtype.size_in_bits
    for dim in shape:
        bits *= dim
        if max(bits, dim << 1) >= 1 << 64:
            raise _unfit("safetensors.shape-overflow", name, spec)
    if bits % 8:
        raise _unfit("safetensors.sub-byte", name, spec)
    if bits // 8 != size:
        raise _unfit("safetensors.size", name, spec)
    if size == 0:
        return Buffer(dtype, shape)
    if address == 0:
        raise _unfit("safetensors.size", name, spec)
    memory = memoryview((ctypes.c_ubyte * size).from_address(address))
    return Buffer._from_memory(memory, DType.uint8).view(dtype, shape)


def _unfit(rule: str, name: str, spec: TensorSpec) -> Exception:
    nowhere = "" if spec.data_ptr or not spec.data_len else " at no address: data_ptr is 0"
    return unfit(
        rule, f"tensor '{escape(name)}' is {spec.dtype} of shape {spec.shape}, but has {spec.data_len} bytes{nowhere}"
    )


def _noted(tensors: dict[str, Buffer], metadata: object) -> dict[str, str] | None:
    """Return the metadata, if it maps strings to strings, and no tensor takes its place."""
    if _METADATA in tensors:
        raise serializing_error(
            f"a tensor cannot be called {_METADATA}: that is the key of the metadata in a file, and no reader would "
            "open it; rename the tensor"
        )
    if metadata is None:
        return None
    if not isinstance(metadata, dict):
        raise _no("metadata", metadata, "dict")
    for text in (text for pair in metadata.items() for text in pair):
        if not isinstance(text, str):
            raise _no("metadata", text, "str")
    return metadata


def _no(argument: str, value: object, kind: str) -> TypeError:
    return TypeError(f"argument {argument!r}: {type(value).__name__!r} object is not an instance of {kind!r}")
