"""What `max_weights.safetensors.torch`, `.numpy` and `.flax` have where the safetensors package is not installed.

The same bytes and tensors; errors are in our words, and models are for `max_weights.torch.load_into` and
`max_weights.save_file`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from max_weights._core import shown
from max_weights._saved_tensors import buffer_of
from max_weights.safetensors._open_file import safe_open
from max_weights.safetensors._serializing import file_bytes, write_file

if TYPE_CHECKING:
    import torch
    from typing_extensions import Buffer as Bytes

    from max_weights._buffer import Buffer

__all__ = ["contiguous", "functions"]


def functions(
    framework: str, of_bytes: Callable[[Bytes], dict[str, Any]], plain: Callable[[dict[str, Any]], Mapping[str, Any]]
) -> dict[str, Callable[..., object]]:
    """Return `load_file`, `load`, `save_file` and `save` of a framework by name, and their module's `__getattr__`.

    Args:
        framework: As for `safe_open`.
        of_bytes: Makes tensors of a file in memory.
        plain: Makes of the tensors to be saved such as can be saved, or refuses them.
    """

    def load_file(
        filename: str | os.PathLike[str], device: str | int = "cpu", *, backend: str = "mmap"
    ) -> dict[str, Any]:
        """Return the tensors of a file by name, in its order. Errors and arguments are those of `safe_open`."""
        with safe_open(filename, framework, device, backend=backend) as file:
            return file.get_tensors()

    def load(data: Bytes) -> dict[str, Any]:
        """Return the tensors of a file in memory by name, in its order, as copies.

        Raises:
            SafetensorError: the bytes are not a safetensors file, or a damaged one.
        """
        return of_bytes(data)

    def save(tensors: dict[str, Any], metadata: dict[str, str] | None = None) -> bytes:
        """Return the bytes of a safetensors file with these tensors.

        Raises:
            TypeError: something that is not a tensor, or metadata that are not strings.
            ValueError: a tensor that cannot be saved as it is.
            RuntimeError: torch tensors that share memory.
        """
        return file_bytes(_buffers(plain(tensors)), metadata)

    def save_file(
        tensors: dict[str, Any], filename: str | os.PathLike[str], metadata: dict[str, str] | None = None
    ) -> None:
        """Save tensors as a safetensors file, atomically.

        Raises:
            SafetensorError: the system refuses, for lack of space or of permission.
            TypeError: as for `save`.
            ValueError: as for `save`.
            RuntimeError: as for `save`.
        """
        write_file(_buffers(plain(tensors)), filename, metadata)

    def __getattr__(name: str) -> NoReturn:
        raise AttributeError(f"{name!r} is not here without safetensors 0.8 or newer: pip install -U safetensors")

    return {function.__name__: function for function in (load_file, load, save, save_file, __getattr__)}


def _buffers(tensors: Mapping[str, object]) -> dict[str, Buffer]:
    return {name: buffer_of(name, tensor) for name, tensor in tensors.items()}


def contiguous(tensors: object) -> dict[str, torch.Tensor]:
    """Return these torch tensors, if they are contiguous and none shares memory with another.

    Raises:
        ValueError: it is not a dict of tensors, or a tensor is not contiguous.
        RuntimeError: tensors that share memory.
    """
    import torch

    if not isinstance(tensors, dict):
        raise ValueError(f"tensors must be a dict of torch tensors by name, not {type(tensors).__name__}")
    areas = []
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"tensor '{shown(name)}' must be a torch tensor, not {type(tensor).__name__}")
        if tensor.layout is not torch.strided or tensor.is_meta:
            continue  # which is refused where its memory is needed
        if not tensor.is_contiguous():
            raise ValueError(f"tensor '{shown(name)}' is not contiguous: save what contiguous() returns")
        if tensor.nbytes:
            areas.append((str(tensor.device), tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes, name))
    for (device, _, end, name), (other_device, start, _, other) in itertools.pairwise(sorted(areas)):
        if device == other_device and start < end:
            raise RuntimeError(
                f"Some tensors share memory: '{shown(name)}' and '{shown(other)}'. Save one of them, or what clone() "
                'returns; max_weights.save_file(model, path, tied="alias") saves one of those that are tied'
            )
    return tensors
