"""Save tensors as GGUF files that llama.cpp and gguf-py read."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from max_weights import _core
from max_weights._checkpoints import tree_of
from max_weights._core import escape, infos
from max_weights._dtype import DType
from max_weights._quantization import QuantizationEncoding
from max_weights._quantized_weights import stored_weights
from max_weights._saved_paths import paths_of
from max_weights._saved_tensors import buffer_of, encoding_of, items_of
from max_weights._selection import fits, require_effect
from max_weights._sizes import bytes_of
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    from max_weights._buffer import Buffer

__all__ = ["Encoding", "write_gguf"]

Encoding = str | QuantizationEncoding
StrPath = str | os.PathLike[str]

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
# The formats of other suffixes.
_OTHERS = {"safetensors": "safetensors"} | dict.fromkeys(("pt", "pth", "bin", "ckpt"), "PyTorch")


def write_gguf(
    tensors: Any,
    path: StrPath,
    metadata: Mapping[str, object] | None,
    quantize: Encoding | Mapping[str, Encoding] | None,
    max_shard_size: int | str | None,
    options: Mapping[str, Any],
) -> list[Path]:
    """Save tensors or a tree as GGUF; `options` are those of the compiled code."""
    file = os.fsdecode(path)
    suffix = file.lower().rpartition(".")[2]
    if suffix in _OTHERS:
        raise ArgumentError(
            f"'{escape(file)}': a file with this name is a {_OTHERS[suffix]} file, but this writes GGUF; "
            f"{'call save_file, or ' if suffix == 'safetensors' else ''}name the file .gguf",
            rule="argument.path",
        )
    pairs = [(key, *_typed(key, value)) for key, value in (metadata or {}).items()]
    most = None if max_shard_size is None else bytes_of(max_shard_size)
    if isinstance(quantize, Mapping) and not quantize:
        raise ArgumentError("quantize is empty, so that it changes nothing: leave it out", rule="argument.no-effect")
    if quantize is not None:
        tensors = _decoded(tensors)
    by_pattern = quantize if isinstance(quantize, Mapping) else {}
    everywhere = None
    if quantize is not None and not isinstance(quantize, Mapping):
        everywhere = QuantizationEncoding(quantize).value
    options = {**options, "quantize": everywhere, "max_shard_size": most}
    items = None if isinstance(tensors, _core.WeightsNode) else items_of(tensors)
    names = [info.name for info in infos(tensors)] if items is None else [name for name, _ in items]
    encoding_of_name = _encodings(by_pattern, names)
    if items is None:
        encodings = [encoding_of_name(name) for name in names]
        return paths_of(_core.save_gguf_weights(tensors, names, encodings, file, pairs, **options))
    rows = [(name, *_packed(name, tensor, encoding_of_name)) for name, tensor in items]
    return paths_of(_core.save_gguf_tensors(file, rows, pairs, **options))


def _decoded(tensors: Any) -> Any:
    """Return tensors with quantized weights decoded, because codes without their scales are no values."""
    tree = tensors
    if not isinstance(tensors, _core.WeightsNode):
        named = dict(items_of(tensors))
        if not any(_may_be_codes(name, tensor) for name, tensor in named.items()):
            return tensors
        tree = tree_of({name: one for name, one in named.items() if encoding_of(one) is None}, "save", tensors=True)
    stored = stored_weights(tree)
    if stored is None:
        return tensors
    if stored.is_converted:
        raise stored.named_otherwise()
    if stored.unknown:
        raise stored.not_known(min(stored.unknown))
    if tree is not tensors and len(infos(tree)) < len(named):
        raise ArgumentError(
            "quantized weights of several tensors and packed blocks together: save them separately",
            rule="argument.packed",
        )
    return stored.decode(dict.fromkeys(stored.packed, DType.float32))


def _may_be_codes(name: str, tensor: Any) -> bool:
    if encoding_of(tensor) is not None:
        return False
    dtype = buffer_of(name, tensor).dtype
    return isinstance(dtype, DType) and dtype.size_in_bits <= 8 and dtype is not DType.bool


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
    """Return the name of the GGUF type for a value, and the value."""
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
                f"metadata '{escape(key)}': {value!r} is too large for a 32-bit float; give np.float64({value!r})",
                rule="argument.metadata",
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
        f"metadata '{escape(key)}': a GGUF file can hold strings, bools, numbers and arrays of one of these, not "
        f"{escape(repr(value))}",
        rule="argument.metadata",
    )


def _integer(values: Sequence[int]) -> str:
    """Return the type of integers; a 32-bit one is usual."""
    low, high = min(values), max(values)
    if low >= 0:
        return "u32" if high < 1 << 32 else "u64"
    return "i32" if low >= -(1 << 31) and high < 1 << 31 else "i64"
