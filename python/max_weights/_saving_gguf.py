"""Save tensors as GGUF files that llama.cpp and gguf-py read."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from max_weights import _core
from max_weights._core import infos, shown
from max_weights._dtype import DType
from max_weights._progress import progress_of
from max_weights._quantization import QuantizationEncoding
from max_weights._saved_paths import paths_of
from max_weights._saving import IfExists, StrPath, buffer_of, encoding_of, items_of
from max_weights._selection import fits, require_effect
from max_weights._sizes import bytes_of
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    from max_weights._buffer import Buffer
    from max_weights._progress import Progress
    from max_weights._remote import Remote

__all__ = ["save_gguf"]

Encoding = str | QuantizationEncoding

# GGUF's names for the dtypes of NumPy.
_KINDS = {
    "uint8": "u8",
    "int8": "i8",
    "uint16": "u16",
    "int16": "i16",
    "uint32": "u32",
    "int32": "i32",
    "uint64": "u64",
    "int64": "i64",
    "float32": "f32",
    "float64": "f64",
    "bool": "bool",
}
# What other suffixes say of a file.
_OTHERS = {"safetensors": "safetensors"} | dict.fromkeys(("pt", "pth", "bin", "ckpt"), "PyTorch")


def save_gguf(
    tensors: Any,
    path: StrPath,
    metadata: Mapping[str, object] | None = None,
    *,
    quantize: Encoding | Mapping[str, Encoding] | None = None,
    max_shard_size: int | str | None = None,
    sync: bool = True,
    verify: bool = False,
    progress: Progress | bool | None = None,
    remote: Remote | None = None,
    if_exists: IfExists = "replace",
) -> list[Path]:
    """Save tensors as a GGUF file (version 3, little-endian), or as a set of them.

    As with `save_file`, files are replaced atomically. A tree of weights is read, converted and written in parts. If
    it comes from a GGUF file, the metadata is kept, and packed weights stay packed.

    Args:
        tensors: As for `save_file`; a mapping may also hold packed `WeightData`.
        path: The file, such as `model.gguf`; or the URL of an object, as for `save_file`.
        metadata: Values by key: strings, bool, int (u32, i32 if negative, i64 or u64 if larger), float (f32), lists of
            one of these, and NumPy scalars and arrays, whose dtype gives the type. llama.cpp needs
            `general.architecture`.
        quantize: An encoding that can be written (`q8_0`, `q4_0`, `q4_1`, `q5_0`, `q5_1`) for the tensors that
            llama.cpp quantizes: matrices, while norms and vectors become float32. Or {pattern: encoding} for exactly
            the tensors that match, where the first pattern that matches a name applies. What packs nothing is an error.
        max_shard_size: The most bytes of tensors in a file of a set, such as "2GB": `model-00001-of-00003.gguf`, each
            with the keys that llama.cpp's gguf-split gives it.
        sync: As for `save_file`.
        verify: As for `save_file`.
        progress: As for `save_file`.
        remote: As for `save_file`.
        if_exists: As for `save_file`.

    Returns:
        The paths of the files.

    Raises:
        ValueError: a name of 64 bytes or more, more than four dimensions, a dtype that GGUF lacks, a row that does not
            fill whole blocks, a value for which GGUF has no type, or `quantize` for which there is no tensor.
        WeightNotFoundError: a pattern of `quantize` that matches nothing.
        UnsupportedError: an encoding that can be decoded but not written, or elements of a type that GGUF files do not
            have.
        TypeError: something that is not a tensor, or a metadata key that is not a string.
        FormatError: `verify`, and something else is read back than was written. The file is not put in its place.
        FileExistsError: as for `save_file`.
        OSError: the system refuses. Nothing has changed then.
    """
    file = os.fsdecode(path)
    suffix = file.lower().rpartition(".")[2]
    if suffix in _OTHERS:
        raise ArgumentError(
            f"'{shown(file)}': a file with this name is a {_OTHERS[suffix]} file, but this writes GGUF; "
            f"{'call save_file, or ' if suffix == 'safetensors' else ''}name the file .gguf"
        )
    pairs = [(key, *_typed(key, value)) for key, value in (metadata or {}).items()]
    most = None if max_shard_size is None else bytes_of(max_shard_size)
    by_pattern = quantize if isinstance(quantize, Mapping) else {}
    everywhere = None
    if quantize is not None and not isinstance(quantize, Mapping):
        everywhere = QuantizationEncoding(quantize).value
    items = None if isinstance(tensors, _core.WeightsNode) else items_of(tensors)
    names = [info.name for info in infos(tensors)] if items is None else [name for name, _ in items]
    encoding_of_name = _encodings(by_pattern, names)
    report, finish = progress_of(progress)
    options: dict[str, Any] = {"sync": sync, "verify": verify, "quantize": everywhere, "max_shard_size": most}
    options |= {"store": None if remote is None else remote._store, "if_exists": if_exists}
    try:
        if items is None:
            encodings = [encoding_of_name(name) for name in names]
            files = _core.save_gguf_weights(tensors, names, encodings, file, pairs, progress=report, **options)
            return paths_of(files)
        rows = [(name, *_packed(name, tensor, encoding_of_name)) for name, tensor in items]
        return paths_of(_core.save_gguf_tensors(file, rows, pairs, progress=report, **options))
    finally:
        finish()


def _encodings(table: Mapping[str, Encoding], names: list[str]) -> Callable[[str], str | None]:
    """Return the encoding that a table of patterns has for a name; `None` if no pattern matches."""
    rows = [(fits(pattern), QuantizationEncoding(encoding).value) for pattern, encoding in table.items()]
    if table:
        require_effect("quantize", table, names)
    return lambda name: next((encoding for fit, encoding in rows if fit(name)), None)


def _packed(name: str, tensor: Any, encoding_of_name: Callable[[str], str | None]) -> tuple[Buffer, str | None]:
    """Return the memory of a tensor, and the encoding in which its elements are, or will be, packed."""
    buffer, packed = buffer_of(name, tensor), encoding_of(tensor)
    encoding = encoding_of_name(name)
    if packed is None or encoding is None:
        return buffer, encoding if packed is None else packed.value
    if encoding != packed.value:
        buffer = tensor.astype(DType.float32).to_buffer()
    return buffer, encoding


def _typed(key: str, value: object) -> tuple[str, object]:
    """Return the name of the GGUF type for a value, and the value.

    Raises:
        TypeError: a key that is not a string.
        ArgumentError: GGUF has no such type, or a number is too large for it (a ValueError).
    """
    import numpy as np

    if not isinstance(key, str):
        raise TypeError(f"the keys of metadata must be strings, not {key!r}")
    if isinstance(value, np.ndarray):
        kind = _KINDS.get(value.dtype.name)
        if kind is not None and value.ndim == 1:
            return f"arr:{kind}", value.tolist()
    elif isinstance(value, np.generic):
        kind = _KINDS.get(value.dtype.name)
        if kind is not None:
            return kind, value.item()
    elif isinstance(value, bool):
        return "bool", value
    elif isinstance(value, int):
        return _integer([value]), value
    elif isinstance(value, float):
        try:
            struct.pack("<f", value)
        except OverflowError:
            raise ArgumentError(
                f"metadata '{shown(key)}': {value!r} is too large for a 32-bit float; give np.float64({value!r})"
            ) from None
        return "f32", value
    elif isinstance(value, (str, bytes)):
        return "str", value
    elif isinstance(value, (list, tuple)) and value:
        if all(isinstance(one, int) and not isinstance(one, bool) for one in value):
            return f"arr:{_integer(value)}", value
        kinds = {_typed(key, one)[0] for one in value}
        if len(kinds) == 1:
            return f"arr:{kinds.pop()}", value
    elif isinstance(value, (list, tuple)):
        return "arr:str", value
    raise ArgumentError(
        f"metadata '{shown(key)}': a GGUF file can hold strings, bools, numbers and arrays of one of these, not "
        f"{shown(repr(value))}"
    )


def _integer(values: Sequence[int]) -> str:
    """Return the type of integers; a 32-bit one is usual."""
    low, high = min(values), max(values)
    if low >= 0:
        return "u32" if high < 1 << 32 else "u64"
    return "i32" if low >= -(1 << 31) and high < 1 << 31 else "i64"
