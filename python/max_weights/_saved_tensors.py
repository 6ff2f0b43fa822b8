"""The tensors that can be saved: by name, in their memory; others are refused."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from max_weights import _core
from max_weights._buffer import Buffer
from max_weights._core import escape, infos, printable
from max_weights._dtype import DType
from max_weights._quantization import QuantizationEncoding
from max_weights._renaming import excluded
from max_weights._weight_data import WeightData
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    import torch

    from max_weights._core import WeightsNode

__all__ = [
    "UNPACK",
    "buffer_of",
    "check_names",
    "check_whole",
    "computed_names",
    "encoding_of",
    "items_of",
    "metadata_of",
    "prepared",
    "quoted",
    "require",
]

UNPACK = (
    ", which a safetensors file cannot hold: weights.save(path, dtype='bfloat16') decodes them, "
    "and a path that ends in .gguf keeps them"
)


def computed_names(node: WeightsNode) -> set[str]:
    """Return the names, in a tree with Hugging Face's names, that only llama.cpp has: it computes these tensors."""
    return set() if node._scheme is None else set(excluded(info.name for info in infos(node)))


def check_whole(node: WeightsNode, path: str) -> None:
    """Check that the file is not one of several of a tree: the others could not be opened without it."""
    files = {os.path.abspath(info.file) for info in infos(node)}
    require(
        len(files) < 2 or os.path.abspath(path) not in files,
        f"'{printable(path)}': it is one of several files of the checkpoint, which could not be opened without it; "
        "write to another file",
    )


def prepared(
    tensors: object, metadata: Mapping[str, str] | None, tied: str, strided: str
) -> tuple[dict[str, Buffer], dict[str, str]]:
    """Return the tensors to write, and the metadata."""
    require(tied in ("copy", "alias", "refuse"), f'tied={tied!r}: it must be "copy", "alias" or "refuse"')
    require(strided in ("copy", "refuse"), f'strided={strided!r}: it must be "copy" or "refuse"')
    noted = metadata_of(metadata)
    by_name = dict(items_of(tensors))
    packed = [name for name, tensor in by_name.items() if encoding_of(tensor) is not None]
    require(
        not packed,
        f"{quoted(packed)} packed in blocks{UNPACK}; `to_buffer()` of a weight's data gives the bytes unchanged",
    )
    named = {name: buffer_of(name, tensor) for name, tensor in by_name.items()}
    check_names(named)
    if strided == "refuse":
        not_contiguous = [name for name, buffer in named.items() if not buffer.is_contiguous]
        require(
            not not_contiguous,
            f"{quoted(not_contiguous)} not contiguous; make them contiguous, or save with strided='copy'",
        )
    if tied == "copy":
        return named, noted
    groups: dict[object, list[str]] = {}
    for name, buffer in sorted(named.items()):
        if buffer.num_elements:
            place = (buffer.device, buffer._data_ptr(), buffer.dtype, buffer.shape, buffer.strides)
            groups.setdefault(place, []).append(name)
    for first, *others in groups.values():
        require(
            tied == "alias" or not others, f"{quoted([first, *others])} one tensor; save with tied='copy' or 'alias'"
        )
        for name in others:
            if noted.setdefault(name, first) == first:  # else the key says something else, and nothing would name it
                del named[name]
    return named, noted


def check_names(names: Iterable[str]) -> None:
    """Check that tensors can be loaded again by these names."""
    odd = [name for name in names if isinstance(name, str) and (not name or "\0" in name)]
    require(not odd, f"{quoted(odd)} not a name that can be loaded again: a name must not be empty or contain NUL")


def items_of(tensors: Any) -> list[tuple[str, object]]:
    """Return the tensors of any object that has some by name; for a tree of weights and its nodes, their data."""
    if isinstance(tensors, _core.WeightsNode):
        computed = computed_names(tensors)
        return [(name, weight.data()) for name, weight in tensors.items() if name not in computed]
    if isinstance(tensors, Mapping):
        return [
            (name, tensor.data() if isinstance(tensor, _core.WeightsNode) else tensor)
            for name, tensor in tensors.items()
        ]
    if hasattr(type(tensors), "state_dict"):  # a module of torch or of this package
        return items_of(tensors.state_dict())
    raise TypeError(
        "tensors must be {name: tensor}, a module, a tree of weights or the path of a checkpoint, not "
        f"{type(tensors).__name__}"
    )


def encoding_of(tensor: object) -> QuantizationEncoding | None:
    """Return how the elements of a weight, ours or MAX's, are packed; `None` if they are not."""
    encoding = getattr(tensor, "quantization_encoding", None)
    return None if encoding is None else QuantizationEncoding(encoding.value)


def buffer_of(name: str, tensor: object) -> Buffer:
    """Return the memory of a tensor, in any layout and on any device; the error for an unsupported one names it."""
    if not isinstance(name, str):
        raise TypeError(f"the names of tensors must be strings, not {name!r}")
    if isinstance(tensor, WeightData) and tensor.refusal is not None:
        raise tensor.refusal.with_traceback(None)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        try:
            tensor = _plain(name, tensor)
        except ArgumentError:
            raise
        except (RuntimeError, ValueError) as error:
            raise ArgumentError(f"tensor '{escape(name)}': {error}", rule="argument.tensor") from None
    return Buffer.of(tensor, f"tensor '{escape(name)}'")


def _plain(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return a torch tensor as one of numbers in memory."""
    import torch

    tensor = tensor.detach()
    for refused, what in (
        (tensor.is_meta, "on the device meta, and has no elements; load it first"),
        (tensor.is_quantized, "quantized; save what dequantize() returns"),
        (tensor.is_nested, "nested; save its parts, or what to_padded_tensor() returns"),
        (tensor.layout is not torch.strided, f"{tensor.layout}; save what to_dense() returns"),
        (
            hasattr(tensor, "full_tensor"),
            "spread over several processes; call save_sharded on all of them, or save what full_tensor() returns",
        ),
    ):
        require(not refused, f"tensor '{escape(name)}': it is {what}")
    DType.from_torch(tensor.dtype)  # a ValueError for a dtype that only torch has
    return tensor.resolve_conj().resolve_neg()


def metadata_of(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Return the metadata of a file, including its framework."""
    noted = {"format": "pt", **(metadata or {})}
    for key, value in noted.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(
                f"metadata must map strings to strings, not {key!r}: {value!r}; write str(...) or json.dumps(...)"
            )
    return noted


def quoted(names: list[str]) -> str:
    """Return the first few names, to begin a sentence with."""
    quoted = [f"'{escape(name)}'" for name in names[:5]]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{', '.join(quoted)}{more} {'is' if len(names) == 1 else 'are'}"


def require(condition: object, message: str) -> None:
    if not condition:
        raise ArgumentError(message, rule="argument.tensor")
