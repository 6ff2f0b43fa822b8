"""`serialize` and `serialize_file`: write tensors in memory as a safetensors file or as its bytes."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from max_weights._core import Buffer, save_tensors, serialize_tensors, shown
from max_weights.dtype import DType
from max_weights.safetensors.errors import saving_error, serializing_error, unfit
from max_weights.safetensors.installed import loaded_extension
from max_weights.safetensors.tensor_spec import CODES, TensorSpec

__all__ = ["serialize", "serialize_file"]

# The format: the header padded to 8 bytes, and the tensors in the order of safetensors.
_ALIGNMENT = 8
_METADATA = "__metadata__"
_DTYPES = {code: DType(code) for code in CODES.values()}


def serialize(tensor_dict: dict[str, TensorSpec], metadata: dict[str, str] | None = None) -> bytes:
    """Return the bytes of a safetensors file with these tensors.

    They are the bytes that the safetensors package makes, but with the keys of the metadata sorted; there, their order
    differs each time. Several threads copy the tensors, once, and other Python threads run meanwhile.

    Args:
        tensor_dict: {name: TensorSpec}, of this package or of the installed safetensors package.
        metadata: Strings by name.

    Raises:
        TypeError: an argument of another kind.
        SafetensorError: a tensor whose size does not fit its shape, or that is called `__metadata__`; a header that no
            reader accepts.
    """
    specs, noted = _specs(tensor_dict), _noted(metadata)
    try:
        return serialize_tensors(list(specs), _memory_of(specs), noted, alignment=_ALIGNMENT)
    except UnicodeError:
        raise  # an error about a name, as in safetensors
    except ValueError as error:
        raise saving_error(error) from None


def serialize_file(
    tensor_dict: dict[str, TensorSpec], filename: str | os.PathLike[str], metadata: dict[str, str] | None = None
) -> None:
    """Save tensors as a safetensors file, with the bytes that `serialize` gives.

    Several threads write a temporary file in the same folder, which takes the place of `filename` once it is complete.
    A failure before that leaves the old file untouched, and you can save over a file that is loaded at that moment. A
    file that is replaced keeps its permissions; a new one gets those that the umask gives. As in the safetensors
    package, this does not wait until the bytes are on the disk; `max_weights.save_file` does.

    Args:
        tensor_dict: As for `serialize`.
        filename: The file.
        metadata: Strings by name.

    Raises:
        TypeError: an argument of another kind.
        SafetensorError: as for `serialize`, or the system refuses, for lack of space or of permission.
    """
    specs, path, noted = _specs(tensor_dict), os.fspath(filename), _noted(metadata)
    if not isinstance(path, str):
        raise _no("filename", path, "str")
    try:
        save_tensors(path, list(specs), _memory_of(specs), noted, alignment=_ALIGNMENT, sync=False)
    except UnicodeError:
        raise  # an error about a name, as in safetensors
    except (OSError, ValueError) as error:
        raise saving_error(error) from None


def _specs(tensor_dict: Any) -> dict[str, TensorSpec]:
    """Return the tensors, if they are tensors, in a new dict that no other thread changes."""
    if not isinstance(tensor_dict, dict):
        raise _no("tensor_dict", tensor_dict, "dict")
    theirs = getattr(loaded_extension(), "TensorSpec", TensorSpec)  # if not loaded, it cannot have made any
    specs = dict(tensor_dict)
    for name, spec in specs.items():
        if not isinstance(name, str):
            raise _no("tensor_dict", name, "str")
        if not isinstance(spec, TensorSpec | theirs):
            raise _no("tensor_dict", spec, "TensorSpec")
    return specs


def _memory_of(specs: dict[str, TensorSpec]) -> list[Buffer]:
    return [_memory(name, spec) for name, spec in specs.items()]


def _memory(name: str, spec: TensorSpec) -> Buffer:
    if name == _METADATA:
        raise serializing_error(
            f"a tensor cannot be called {_METADATA}: that is the key of the metadata in a file, and no reader would "
            "open it; rename the tensor"
        )
    dtype, shape, address, size = _DTYPES[spec.dtype], spec.shape, spec.data_ptr, spec.data_len
    about = f"tensor '{shown(name)}' is {spec.dtype} of shape {shape}, but has {size} bytes"
    bits = dtype.size_in_bits
    for dim in shape:
        bits *= dim
        if max(bits, dim << 1) >= 1 << 64:
            raise unfit("safetensors.shape-overflow", about)
    if bits % 8:
        raise unfit("safetensors.sub-byte", about)
    if bits // 8 != size:
        raise unfit("safetensors.size", about)
    if size == 0:
        return Buffer(dtype, shape)
    if address == 0:
        raise unfit("safetensors.size", f"{about} at no address: data_ptr is 0")
    memory = memoryview((ctypes.c_ubyte * size).from_address(address))
    return Buffer._from_memory(memory, DType.uint8).view(dtype, shape)


def _noted(metadata: Any) -> dict[str, str] | None:
    """Return the metadata, if it maps strings to strings."""
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
