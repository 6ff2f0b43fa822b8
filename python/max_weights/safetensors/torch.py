"""`safetensors.torch` on top of this package: the file of the installed package, run over our functions.

Improvements over the package are below. Without it there are `load_file`, `load`, `save_file` and `save`.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from max_weights._dtype import DType
from max_weights.safetensors._functions import contiguous, functions, run_package_file
from max_weights.safetensors._in_memory import SafeView, deserialize

if TYPE_CHECKING:
    import numpy.typing as npt
    from safetensors.torch import _SIZE
    from safetensors.torch import load as load
    from safetensors.torch import load_file as load_file
    from safetensors.torch import load_model as load_model
    from safetensors.torch import save as save
    from safetensors.torch import save_file as save_file
    from safetensors.torch import storage_ptr as storage_ptr
    from safetensors.torch import storage_size as storage_size

__all__ = ["load", "load_file", "save", "save_file"]

_package = run_package_file("torch", globals())


@functools.cache
def _getdtype(dtype_str: str) -> torch.dtype:
    """Return the torch dtype of a name in safetensors files. KeyError if torch has none."""
    try:
        return DType(dtype_str).to_torch()
    except ValueError:
        raise KeyError(dtype_str) from None


def _view2torch(safeview: Iterable[tuple[str, SafeView]]) -> dict[str, torch.Tensor]:
    """Return the tensors over the results of `deserialize`: packed ones, too; on the CPU whatever torch's device is."""
    tensors = {}
    for name, view in safeview:
        dtype, shape = _getdtype(view["dtype"]), view["shape"]
        if view["dtype"] == "F4":
            shape = [*shape[:-1], shape[-1] // 2]
        if len(view["data"]) == 0:
            tensors[name] = torch.empty(shape, dtype=dtype, device="cpu")
        else:
            tensors[name] = torch.frombuffer(view["data"], dtype=dtype).reshape(shape)
    return tensors


if _package:
    __all__ += ["load_model", "save_model"]

    def _end_ptr(tensor: torch.Tensor) -> int:
        """Return the address after the last element, also of a tensor that is not contiguous."""
        if tensor.nelement() == 0:
            return tensor.data_ptr()
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        return tensor.data_ptr() + (last + 1) * tensor.element_size()

    def _filter_shared_not_shared(
        tensors: Iterable[set[str]], state_dict: Mapping[str, torch.Tensor]
    ) -> list[set[str]]:
        """Split groups of tensors of one storage where their bytes do not overlap.

        Several separate parts of a tensor that lie within it are in its group.
        """
        groups: list[set[str]] = []
        for names in tensors:
            if len(names) < 2:
                groups.append(names)
                continue
            areas = sorted((state_dict[name].data_ptr(), _end_ptr(state_dict[name]), name) for name in names)
            end = -1
            for start, stop, name in areas:
                if start >= end:
                    groups.append(set())
                groups[-1].add(name)
                end = max(end, stop)
        return groups

    def _to_ndarray(tensor: torch.Tensor) -> tuple[npt.NDArray[np.uint8], torch.Tensor]:
        """Return the bytes of a contiguous tensor as an array over its memory, and the CPU tensor that keeps it alive.

        A sign or a conjugation that torch has not applied yet is applied.
        """
        on_host = tensor.detach().to("cpu").resolve_conj().resolve_neg()
        size, address = on_host.nelement() * _SIZE[on_host.dtype], on_host.data_ptr()
        if size == 0 or address == 0:  # such as that of a fake tensor
            return np.empty(0, np.uint8), on_host
        return np.frombuffer(memoryview((ctypes.c_ubyte * size).from_address(address)), np.uint8), on_host

    def save_model(
        model: torch.nn.Module,
        filename: str | os.PathLike[str],
        metadata: dict[str, str] | None = None,
        force_contiguous: bool = True,
    ) -> None:
        """Save the tensors of a model, as the package does; the given metadata is not changed."""
        _package["save_model"](model, filename, None if metadata is None else dict(metadata), force_contiguous)

else:
    globals().update(functions("pt", lambda data: _view2torch(deserialize(data)), contiguous))
