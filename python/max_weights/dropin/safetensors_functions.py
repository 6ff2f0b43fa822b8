"""What reads in the safetensors package, for tensors that go to the CPU."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

from max_weights.dropin.calls import Counter

__all__ = ["function_of_numpy", "function_of_torch", "safe_open"]

_ELSEWHERE = "a device that is not the CPU"


class _Elsewhere(Exception):
    """The tensors are to go to such a device."""


def safe_open(original: type[Any], counter: Counter) -> type[Any]:
    """What replaces `safetensors.safe_open`: a class whose call opens a file here, or there."""
    from max_weights.safetensors import safe_open as ours
    from max_weights.safetensors.frameworks import is_elsewhere

    class safe_open(ours):
        __slots__ = ()
        __doc__ = ours.__doc__

        def __new__(
            cls, filename: str | os.PathLike[str], framework: str, device: Any = "cpu", *, backend: str = "mmap"
        ) -> Any:
            if counter.active:
                if device is not None and device != "cpu":
                    counter.handed_over(_ELSEWHERE)
                elif is_elsewhere(framework):
                    counter.handed_over("a framework that is not served")
                else:
                    try:
                        opened = super().__new__(cls, filename, framework, device, backend=backend)
                    except Exception as error:
                        counter.handed_over(error)
                    else:
                        counter.served()
                        return opened
            # Versions before 0.8 have no backends.
            options = {} if backend == "mmap" else {"backend": backend}
            return original(filename, framework, device, **options)

    safe_open.__module__, safe_open.__qualname__ = original.__module__, original.__qualname__
    return safe_open


def function_of_torch(original: Callable[..., Any], counter: Counter) -> Callable[..., Any]:
    """What replaces a function of `safetensors.torch`."""
    from max_weights.safetensors import torch

    return _function(original, getattr(torch, original.__name__), counter)


def function_of_numpy(original: Callable[..., Any], counter: Counter) -> Callable[..., Any]:
    """What replaces a function of `safetensors.numpy`."""
    from max_weights.safetensors import numpy

    return _function(original, getattr(numpy, original.__name__), counter)


def _function(original: Callable[..., Any], ours: Callable[..., Any], counter: Counter) -> Callable[..., Any]:
    parameters = inspect.signature(ours)

    @functools.wraps(original)
    def function(*arguments: Any, **options: Any) -> Any:
        if counter.active:
            try:
                if parameters.bind(*arguments, **options).arguments.get("device", "cpu") != "cpu":
                    raise _Elsewhere
                value = ours(*arguments, **options)
            except _Elsewhere:
                counter.handed_over(_ELSEWHERE)
            except Exception as error:
                counter.handed_over(error)
            else:
                counter.served()
                return value
        return original(*arguments, **options)

    return function
