"""Replacements of the functions of the safetensors package that load and save.

Loading is served for tensors on the CPU, and for torch tensors on a GPU.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

from max_weights._devices import torch_gpu
from max_weights._dropin.calls import Counter

__all__ = ["function", "load_file", "safe_open"]

_ELSEWHERE = "a device that is neither the CPU nor a GPU that is filled here"
_TORCH = ("pt", "torch", "pytorch")


def safe_open(original: type[object], counter: Counter) -> type[object]:
    """Return the replacement of `safetensors.safe_open`: a class that opens a file here, or with the original."""
    from max_weights.safetensors import safe_open as ours
    from max_weights.safetensors._devices import as_requested
    from max_weights.safetensors._frameworks import is_delegated

    class safe_open(ours):
        __slots__ = ()
        __doc__ = ours.__doc__

        def __new__(
            cls, filename: str | os.PathLike[str], framework: str, device: Any = "cpu", *, backend: str = "mmap"
        ) -> Any:
            refused = None
            if counter.active:
                device = as_requested(device)
                if is_delegated(framework):
                    counter.count_fallback("a framework that is not supported")
                elif not _is_served(framework, device):
                    counter.count_fallback(_ELSEWHERE)
                else:
                    try:
                        opened = super().__new__(cls, filename, framework, device, backend=backend)
                    except Exception as error:
                        refused = error
                        counter.count_fallback(error)
                    else:
                        counter.count_fast()
                        return opened
            # Versions before 0.8 have no backends.
            options = {} if backend == "mmap" else {"backend": backend}
            return _called(refused, original, filename, framework, device, **options)

    safe_open.__module__, safe_open.__qualname__ = original.__module__, original.__qualname__
    return safe_open


def function(original: Callable[..., object], counter: Counter) -> Callable[..., object]:
    """Return the replacement of a function: our function of that name.

    If it refuses a call, the original gets it, and refuses it too, or serves it, for example if a file to be replaced
    is read-only.
    """
    module, _, name = counter.name.rpartition(".")

    @functools.wraps(original)
    def function(*arguments: object, **options: object) -> object:
        refused = None
        if counter.active:
            try:
                # Imported when it is first called, so that the import of a patched program does not wait for it.
                value = getattr(importlib.import_module(f"max_weights.{module}"), name)(*arguments, **options)
            except Exception as error:
                refused = error
                counter.count_fallback(error)
            else:
                counter.count_fast()
                return value
        return _called(refused, original, *arguments, **options)

    return function


def load_file(original: Callable[..., object], counter: Counter) -> Callable[..., object]:
    """Return the replacement of `safetensors.torch.load_file`: ours, where tensors are loaded to the device here."""
    ours = function(original, counter)

    @functools.wraps(original)
    def load_file(filename: str | os.PathLike[str], device: object = "cpu", **options: object) -> object:
        if counter.active:
            from max_weights.safetensors._devices import as_requested

            device = as_requested(device)
            if not _is_served("pt", device):
                counter.count_fallback(_ELSEWHERE)
                return original(filename, device, **options)
        return ours(filename, device, **options)

    return load_file


def _is_served(framework: str, device: object) -> bool:
    """Whether tensors are loaded to a device here; torch itself would copy them there from pageable memory."""
    if device is None or device == "cpu":
        return True
    if framework not in _TORCH:
        return False
    import torch

    from max_weights.safetensors._devices import device_of

    try:
        return torch_gpu(torch, device_of(device)) is not None
    except Exception:
        return False  # the original reports the error


def _called(
    refused: Exception | None, original: Callable[..., object], *arguments: object, **options: object
) -> object:
    """Return the result, or raise the error, of the original.

    If both refuse a file, the error has our message: it begins with that of the package, says where the fault is, and
    has the names of errors that programs for older versions look for.
    """
    try:
        return original(*arguments, **options)
    except Exception as error:
        if type(error) is type(refused) and type(error).__name__ == "SafetensorError":
            raise refused from None
        raise
