"""What a checkpoint's configuration files say of its quantization: read again only when one has changed."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from max_weights._core import file_identities, files, read_quantization_config

if TYPE_CHECKING:
    from max_weights._core import QuantizationConfig, WeightsNode

__all__ = ["config_of"]

_NAMES = ("config.json", "quantize_config.json", "hf_quant_config.json")

_Mark = tuple[int, int, int] | None


def config_of(node: WeightsNode) -> QuantizationConfig:
    """Return the quantization that the files next to a checkpoint declare. FormatError for an invalid configuration."""
    folder = os.path.dirname(next(iter(files(node)), ""))
    if any(is_object for _, is_object, _ in file_identities(node)[:1]) and "://" not in folder:
        folder = "source://"  # the name of a source is no path: files of the working folder do not belong to it
    return _read(folder, tuple(_mark(os.path.join(folder, name)) for name in _NAMES))


def _mark(path: str) -> _Mark:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


@functools.lru_cache(maxsize=64)
def _read(folder: str, marks: tuple[_Mark, ...]) -> QuantizationConfig:  # noqa: ARG001 (a changed file is another key)
    return read_quantization_config(folder)
