"""The devices that safetensors accepts."""

from __future__ import annotations

import operator
import os
from typing import Any, TypeVar

from max_weights._core import escape
from max_weights._devices import current_gpu
from max_weights.errors import ArgumentError
from max_weights.safetensors._errors import safetensor_error

__all__ = ["as_requested", "device_of"]

_T = TypeVar("_T")

_CUDA = "MAX_WEIGHTS_CUDA"
_NUMBERED = ("cuda", "hpu", "mlu", "musa", "npu", "xla", "xpu")


def as_requested(device: _T) -> _T | str:
    """Return the device; "cuda" is the `first`, or torch's `current` one, as MAX_WEIGHTS_CUDA says."""
    if device != "cuda" or (setting := os.environ.get(_CUDA, "first")) == "first":
        return device
    if setting != "current":
        raise ArgumentError(f"{_CUDA} is 'first' or 'current', not {setting!r}", rule="argument.choice")
    return f"cuda:{current_gpu()}"


def device_of(device: Any) -> str | int:
    """Return the device by its full name, or its number if torch has to say of what kind it is."""
    device = as_requested(device)
    if device is None or device == "cpu":
        return "cpu"
    if isinstance(device, str):
        kind, colon, number = device.partition(":")
        if device == "mps" or (kind in _NUMBERED and not colon):
            return device if device == "mps" else f"{device}:0"
        if (kind in _NUMBERED or kind == "mps") and ":" not in number:
            return _numbered(device, kind, number)
        raise safetensor_error(f"device {escape(device)} is invalid")
    try:
        index = operator.index(device)
    except TypeError:
        index = -1
    if index < 0:
        raise safetensor_error(f"device {escape(repr(device))} is invalid")
    return index


def _numbered(device: str, kind: str, number: str) -> str:
    if not number:
        raise ValueError("cannot parse integer from empty string")
    if not (number.isascii() and number.isdigit()):
        raise ValueError("invalid digit found in string")
    if kind != "mps":
        return f"{kind}:{int(number)}"
    if int(number) != 0:
        raise safetensor_error(f"device {escape(device)} is invalid: only mps or mps:0 is supported")
    return "mps"
