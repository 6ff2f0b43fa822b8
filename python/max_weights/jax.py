"""Checkpoints as JAX arrays. Importing this module imports JAX."""

from __future__ import annotations

import os
from collections.abc import Iterable

import jax

from max_weights._core import buffers
from max_weights.weights import load_weights

__all__ = ["load_file"]


def load_file(filename: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> dict[str, jax.Array]:
    """All tensors of a checkpoint, by name, in file order.

    JAX takes data at multiples of 64 bytes as it is, and copies the rest (`infos()` reports the offsets). JAX believes
    its arrays to be
    immutable, so do not write to the same weights through another door.

    Raises:
        FormatError: the file is damaged.
    """
    with load_weights(filename) as weights:
        return {name: jax.dlpack.from_dlpack(buffer) for name, buffer in buffers(weights)}
