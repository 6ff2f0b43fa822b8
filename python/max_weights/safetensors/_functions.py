"""`max_weights.safetensors.torch`, `.numpy` and `.flax`: the files of the safetensors package over our functions.

The rules of those files (which tensors share memory, what is refused, which name of a tied tensor is saved) use four
functions of the package's compiled part. Here these are replaced by ours.

Without the package, there are `load_file`, `load`, `save_file` and `save`: the same bytes and tensors, but with our
messages. For models, use `max_weights.load_into` and `max_weights.save`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from importlib.abc import InspectLoader
from typing import TYPE_CHECKING, Any, NoReturn

from max_weights._core import escape
from max_weights._saved_tensors import buffer_of
from max_weights.safetensors._in_memory import deserialize, file_bytes, serialize, serialize_file, write_file
from max_weights.safetensors._installed import found_extension, spec_of
from max_weights.safetensors._open_file import safe_open

if TYPE_CHECKING:
    import torch
    from typing_extensions import Buffer as Bytes

    from max_weights._buffer import Buffer

__all__ = ["contiguous", "functions", "run_package_file"]

_OURS = {
    "deserialize": deserialize,
    "safe_open": safe_open,
    "serialize": serialize,
    "serialize_file": serialize_file,
}


def run_package_file(name: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """Run `safetensors/<name>.py` of the installed package in the `globals()` of a module, which gets its names.

    The package's functions also call what the module later defines under these names. Return the names with their
    values; nothing if the package is not installed, or older than 0.8, whose files pass copies of the tensors instead
    of their addresses.
    """
    spec = spec_of(f"safetensors.{name}")
    if spec is None or not isinstance(spec.loader, InspectLoader) or not hasattr(found_extension(), "TensorSpec"):
        return {}
    code = spec.loader.get_code(spec.name)
    if code is None:
        return {}
    exec(code, namespace)
    namespace.update({name: ours for name, ours in _OURS.items() if name in namespace})
    return dict(namespace)


def functions(
    framework: str, of_bytes: Callable[[Bytes], dict[str, Any]], plain: Callable[[dict[str, Any]], Mapping[str, Any]]
) -> dict[str, Callable[..., object]]:
    """Return `load_file`, `load`, `save_file` and `save` of a framework by name, and their module's `__getattr__`.

    `of_bytes` makes tensors of a file in memory, and `plain` converts tensors for saving, or refuses them.
    """

    def load_file(
        filename: str | os.PathLike[str], device: str | int = "cpu", *, backend: str = "mmap"
    ) -> dict[str, Any]:
        """Return the tensors of a file by name, in its order. Errors and arguments are those of `safe_open`."""
        with safe_open(filename, framework, device, backend=backend) as file:
            return file.get_tensors()

    def load(data: Bytes) -> dict[str, Any]:
        """Return the tensors of a file in memory by name, in its order, as copies."""
        return of_bytes(data)

    def save(tensors: dict[str, Any], metadata: dict[str, str] | None = None) -> bytes:
        """Return the bytes of a safetensors file with these tensors."""
        return file_bytes(memory(tensors), metadata)

    def save_file(
        tensors: dict[str, Any], filename: str | os.PathLike[str], metadata: dict[str, str] | None = None
    ) -> None:
        """Save tensors as a safetensors file, atomically."""
        write_file(memory(tensors), filename, metadata)

    def memory(tensors: dict[str, Any]) -> dict[str, Buffer]:
        return {name: buffer_of(name, tensor) for name, tensor in plain(tensors).items()}

    def __getattr__(name: str) -> NoReturn:
        raise AttributeError(f"{name!r} is not here without safetensors 0.8 or newer: pip install -U safetensors")

    return {function.__name__: function for function in (load_file, load, save, save_file, __getattr__)}


def contiguous(tensors: object) -> dict[str, torch.Tensor]:
    """Return these torch tensors, if they are contiguous, and none shares memory with another (a RuntimeError)."""
    import torch

    if not isinstance(tensors, dict):
        raise ValueError(f"tensors must be a dict of torch tensors by name, not {type(tensors).__name__}")
    areas = []
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"tensor '{escape(name)}' must be a torch tensor, not {type(tensor).__name__}")
        if tensor.layout is not torch.strided or tensor.is_meta:
            continue  # which is refused where its memory is needed
        if not tensor.is_contiguous():
            raise ValueError(f"tensor '{escape(name)}' is not contiguous: save what contiguous() returns")
        if tensor.nbytes:
            areas.append((str(tensor.device), tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes, name))
    for (device, _, end, name), (other_device, start, _, other) in itertools.pairwise(sorted(areas)):
        if device == other_device and start < end:
            raise RuntimeError(
                f"Some tensors share memory: '{escape(name)}' and '{escape(other)}'. Save one of them, or what clone() "
                'returns; max_weights.save_file(model, path, tied="alias") saves one of those that are tied'
            )
    return tensors
