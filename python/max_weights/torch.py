"""Checkpoints as torch tensors. Importing this module imports torch."""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
from torch.utils.dlpack import from_dlpack

from max_weights._core import export_dlpack
from max_weights.graph.weights.load import load_weights


def load_file(
    filename: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], device: str | torch.device | int = "cpu"
) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint, by name, in file order.

    On the CPU they are views of private pages of the file: nothing is read before it is used, writing to them changes
    neither the file nor
    another process, and they stay valid for as long as they are held. For another device they are copied there.

    Raises:
        FormatError: the file is damaged.
        BufferError: an element type that torch does not have.
    """
    with load_weights(filename) as weights:
        tensors: dict[str, torch.Tensor] = export_dlpack(weights, from_dlpack)
    if torch.device(device).type == "cpu":
        return tensors
    return {name: tensor.to(device) for name, tensor in tensors.items()}
