"""`safe_open` under the dotted path of MAX: one safetensors file, without the tree of names."""

from __future__ import annotations

import os
from types import TracebackType

from max_weights._buffer import Buffer
from max_weights._core import SafetensorWeights, infos
from max_weights._devices import Device, require_cpu

__all__ = ["SafeTensor", "safe_open"]


class SafeTensor:
    """An open safetensors file. `load_weights` has the same tensors as a tree.

    Args:
        weights: The weights of the file.
    """

    def __init__(self, weights: SafetensorWeights) -> None:
        self._weights = weights

    def keys(self) -> list[str]:
        """Return the names of all tensors."""
        return [info.name for info in infos(self._weights)]

    def get_buffer(self, name: str) -> Buffer:
        """Return a tensor, without a copy where the file allows it.

        Raises:
            WeightNotFoundError: there is no tensor of this name (a KeyError, and so a LookupError).
        """
        return self._weights[name].data().to_buffer()

    def metadata(self) -> dict[str, str]:
        """Return the metadata of the file."""
        return {key: str(value) for key, value in self._weights.metadata.items()}

    def __enter__(self) -> SafeTensor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._weights.close()


def safe_open(filepath: str | os.PathLike[str], device: Device | None = None) -> SafeTensor:
    """Open a safetensors file. Only its header is read.

    Args:
        filepath: The file.
        device: The device of its tensors; default: the host, which is the only one in this version.

    Raises:
        MissingFileError: there is no such file (a FileNotFoundError and a ValueError).
        FormatError: the file breaks the rules of its format (a ValueError).
        DeviceError: the device is not the host.
    """
    if device is not None:
        require_cpu(device)
    return SafeTensor(SafetensorWeights(filepath))
