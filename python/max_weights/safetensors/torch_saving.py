"""Saving torch tensors as `safetensors.torch` does: `save`, `save_file`, `save_model`, and what they refuse."""

from __future__ import annotations

import os
from typing import Any

import torch

from max_weights.safetensors.serializing import serialize, serialize_file
from max_weights.safetensors.tensor_spec import TensorSpec
from max_weights.safetensors.torch_dtypes import _SIZE
from max_weights.safetensors.torch_storage import _find_shared_tensors, _remove_duplicate_names

__all__ = ["_evaluate_tensors_for_save", "_flatten_as_ptr", "_to_ndarray", "save", "save_file", "save_model"]


def save(tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Return the bytes of a safetensors file with these tensors.

    Args:
        tensors: Tensors by name: dense, contiguous, and none that shares memory with another. Those on another device
            are first copied to the CPU.
        metadata: Strings by name.

    Raises:
        ValueError: it is not a dict of tensors; a sparse tensor, or one that is not contiguous.
        RuntimeError: tensors that share memory.
        KeyError: a dtype that safetensors files do not have.
        NotImplementedError: a tensor on the device meta.
        TypeError: names or metadata that are not strings.
        SafetensorError: as for `max_weights.safetensors.serialize`.
    """
    kept: list[Any] = []
    return serialize(_flatten_as_ptr(tensors, kept), metadata=metadata)


def save_file(
    tensors: dict[str, torch.Tensor], filename: str | os.PathLike[str], metadata: dict[str, str] | None = None
) -> None:
    """Save tensors as a safetensors file, as `max_weights.safetensors.serialize_file` does: whole or not at all.

    Args:
        tensors: As for `save`.
        filename: The file, which may be one that is in use.
        metadata: Strings by name.

    Raises:
        ValueError: as for `save`.
        RuntimeError: as for `save`.
        KeyError: as for `save`.
        NotImplementedError: as for `save`.
        TypeError: as for `save`, or the filename is not a path.
        SafetensorError: as for `save`, or the system refuses, for lack of space or of permission.
    """
    kept: list[Any] = []
    serialize_file(_flatten_as_ptr(tensors, kept), filename, metadata=metadata)


def save_model(
    model: torch.nn.Module,
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
    force_contiguous: bool = True,
) -> None:
    """Save the tensors of a model as a safetensors file; tensors that are the same, such as tied weights, only once.

    Args:
        model: The model.
        filename: The file.
        metadata: Strings by name. {name that is left out: name under which its tensor is in the file} is added in the
            file, unless that key is already used.
        force_contiguous: Whether tensors that are not contiguous are copied; otherwise they are refused.

    Raises:
        RuntimeError: tensors that share memory, none of which covers all of it.
        ValueError: a tensor that is not contiguous, or sparse.
        SafetensorError: as for `save_file`.
    """
    state_dict: dict[str, torch.Tensor] = dict(model.state_dict())
    noted = None if metadata is None else dict(metadata)
    for kept, others in _remove_duplicate_names(state_dict).items():
        for other in others:
            noted = noted if noted is not None else {}
            noted.setdefault(other, kept)
            del state_dict[other]
    if force_contiguous:
        state_dict = {name: tensor.contiguous() for name, tensor in state_dict.items()}
    try:
        save_file(state_dict, filename, metadata=noted)
    except ValueError as error:
        if type(error) is not ValueError:
            raise  # such as a name that is not valid Unicode
        hint = "Or use save_model(..., force_contiguous=True), read the docs for potential caveats."
        raise ValueError(f"{error} {hint}") from None


def _evaluate_tensors_for_save(tensors: Any) -> None:
    """Raise an error unless these are dense tensors by name, each with memory of its own.

    Raises:
        ValueError: it is not a dict, a value is not a tensor, or a tensor is sparse.
        RuntimeError: tensors that share memory.
    """
    if not isinstance(tensors, dict):
        raise ValueError(f"Expected a dict of [str, torch.Tensor] but received {type(tensors)}")
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"Key `{name}` is invalid, expected torch.Tensor but received {type(tensor)}")
    sparse = [name for name, tensor in tensors.items() if tensor.layout != torch.strided]
    if sparse:
        raise ValueError(
            # Word for word what the package's own tests compare.
            f"You are trying to save a sparse tensors: `{sparse}` which this library does not support. You can make it "
            "a dense tensor before saving with `.to_dense()` but be aware this might make a much larger file than "
            "needed."
        )
    shared = [names for names in _find_shared_tensors(tensors) if len(names) > 1]
    if shared:
        raise RuntimeError(
            f"Some tensors share memory: {shared}. Each would be written, and they would no longer share memory when "
            "loaded again. Save a model with `save_model`, which writes one of them, or `.clone()` those that should "
            "be separate. See https://huggingface.co/docs/safetensors/torch_shared_tensors"
        )


def _flatten_as_ptr(tensors: Any, keep_alive_buffer: list[Any]) -> dict[str, TensorSpec]:
    """Return what `serialize` takes; the tensors that own the memory are added to `keep_alive_buffer`.

    Raises:
        ValueError: as for `save`.
        RuntimeError: as for `save`.
        KeyError: as for `save`.
        NotImplementedError: as for `save`.
    """
    _evaluate_tensors_for_save(tensors)
    specs = {}
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(
                f"You are trying to save a non contiguous tensor: `{name}` which is not allowed. Save the tensor "
                "that it is a part of, and take the part when it is loaded; or pack it with `.contiguous()` first."
            )
        there = _on_cpu(tensor)
        keep_alive_buffer.append(there)
        specs[name] = TensorSpec(
            dtype=str(there.dtype).removeprefix("torch."),
            shape=there.shape,
            data_ptr=there.data_ptr(),
            data_len=there.nelement() * _SIZE[there.dtype],
        )
    return specs


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with its values in CPU memory: torch may still have to apply a sign or a conjugation."""
    tensor = tensor.detach()
    tensor = tensor if tensor.device.type == "cpu" else tensor.to("cpu")
    return tensor.resolve_conj().resolve_neg()


def _to_ndarray(tensor: torch.Tensor) -> tuple[Any, torch.Tensor]:
    """Return the bytes of a contiguous tensor as an array over its memory, and the CPU tensor that keeps it alive.

    Raises:
        KeyError: a dtype that safetensors files do not have.
        NotImplementedError: a tensor on the device meta.
    """
    import ctypes

    import numpy as np

    there = _on_cpu(tensor)
    size = there.nelement() * _SIZE[there.dtype]
    if size == 0:
        return np.empty(0, np.uint8), there
    return np.frombuffer(memoryview((ctypes.c_ubyte * size).from_address(there.data_ptr())), np.uint8), there
