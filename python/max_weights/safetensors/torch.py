"""`safetensors.torch` on top of this package."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from max_weights.safetensors.deserializing import deserialize, pieces
from max_weights.safetensors.open_file import safe_open
from max_weights.safetensors.serializing import serialize, serialize_file
from max_weights.safetensors.tensor_spec import TensorSpec
from max_weights.safetensors.torch_dtypes import _SIZE, _TYPES
from max_weights.safetensors.torch_saving import (
    _evaluate_tensors_for_save,
    _flatten_as_ptr,
    _to_ndarray,
    save,
    save_file,
    save_model,
)
from max_weights.safetensors.torch_storage import (
    _end_ptr,
    _filter_shared_not_shared,
    _find_shared_tensors,
    _is_complete,
    _remove_duplicate_names,
    storage_ptr,
    storage_size,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Buffer as Bytes

__all__ = [
    "_SIZE",
    "_TYPES",
    "TensorSpec",
    "_end_ptr",
    "_evaluate_tensors_for_save",
    "_filter_shared_not_shared",
    "_find_shared_tensors",
    "_flatten_as_ptr",
    "_getdtype",
    "_is_complete",
    "_remove_duplicate_names",
    "_to_ndarray",
    "_view2torch",
    "deserialize",
    "load",
    "load_file",
    "load_model",
    "safe_open",
    "save",
    "save_file",
    "save_model",
    "serialize",
    "serialize_file",
    "storage_ptr",
    "storage_size",
]


def load_file(
    filename: str | os.PathLike[str], device: str | int = "cpu", *, backend: str = "mmap"
) -> dict[str, torch.Tensor]:
    """Return the tensors of a file by name, in its order.

    On the CPU they are writable views of private pages of the file, each with a storage of its own: writing to them
    changes neither the file nor another process. If the file has to come from a disk, they are in memory when this
    returns; otherwise nothing is read before it is used.

    Args:
        filename: The file.
        device: Where the tensors go.
        backend: "mmap", or "pread", which reads each tensor into memory of its own.

    Raises:
        FileNotFoundError: there is no such file.
        SafetensorError: it is not a safetensors file, or a damaged one.
    """
    with safe_open(filename, framework="pt", device=device, backend=backend) as file:
        return file.get_tensors()


def load(data: Bytes) -> dict[str, torch.Tensor]:
    """Return the tensors of a file in memory by name, in its order, as copies on the CPU.

    Args:
        data: The whole file: bytes, or any other contiguous buffer, such as an mmap.

    Raises:
        SafetensorError: the bytes are not a safetensors file, or a damaged one.
        KeyError: a dtype that torch lacks.
    """
    return {piece.name: _tensor(bytearray(piece.data), piece.dtype, piece.shape) for piece in pieces(data)}


def _tensor(data: Any, dtype: str, shape: list[int]) -> torch.Tensor:
    """Return a tensor over the memory of a writable buffer."""
    of_torch = _getdtype(dtype)
    if dtype == "F4":
        shape = [*shape[:-1], shape[-1] // 2]
    if len(data) == 0:
        return torch.empty(shape, dtype=of_torch, device="cpu")
    return torch.frombuffer(data, dtype=of_torch).reshape(shape)


def _view2torch(safeview: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, torch.Tensor]:
    """Return the tensors over what `deserialize` gives."""
    return {name: _tensor(view["data"], view["dtype"], view["shape"]) for name, view in safeview}


def _getdtype(dtype_str: str) -> torch.dtype:
    """Return the torch dtype of the name that safetensors files have for it. KeyError if torch has none."""
    return _TYPES[dtype_str]


def load_model(
    model: torch.nn.Module,
    filename: str | os.PathLike[str],
    strict: bool = True,
    device: str | int = "cpu",
    *,
    backend: str = "mmap",
) -> tuple[set[str], list[str]]:
    """Load a file into a model.

    Tensors that share memory in the model may be in the file under only one of their names.

    Args:
        model: The model.
        filename: The file.
        strict: Whether names that only the model or only the file has are an error.
        device: Where the file's tensors go before they are copied.
        backend: As for `load_file`.

    Returns:
        (missing, unexpected): names of the model that are not in the file, and names of the file that are not in the
        model.

    Raises:
        RuntimeError: shapes differ, or, if it is strict, names.
    """
    state_dict = load_file(filename, device=device, backend=backend)
    shared = _remove_duplicate_names(model.state_dict(), preferred_names=state_dict)
    found = model.load_state_dict(state_dict, strict=False)
    missing, unexpected = set(found.missing_keys), list(found.unexpected_keys)
    for name in (name for names in shared.values() for name in names):
        if name in missing:
            missing.remove(name)
        else:
            unexpected.append(name)
    if strict and (missing or unexpected):
        message = f"Error(s) in loading state_dict for {model.__class__.__name__}:"
        for what, names in (("Missing", missing), ("Unexpected", unexpected)):
            if names:
                message += f"\n    {what} key(s) in state_dict: " + ", ".join(f'"{name}"' for name in sorted(names))
        raise RuntimeError(message)
    return missing, unexpected
