"""Checkpoints as JAX arrays. Importing this module imports JAX."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import jax

from max_weights._core import buffers
from max_weights.loading import as_they_are
from max_weights.weights import load_weights

if TYPE_CHECKING:
    from max_weights.loading import Rename, Select

__all__ = ["load_file"]


def load_file(
    filename: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    select: Select | None = None,
    rename: Rename | str | None = None,
    dtype: Any = None,
    packed: bool = False,
    progress: Callable[[int, int], object] | bool | None = None,
) -> dict[str, jax.Array]:
    """The tensors of a checkpoint, by name, in file order.

    JAX takes data at multiples of 64 bytes as it is, and copies the rest (`infos()` reports the offsets). JAX believes
    its arrays to be immutable, so do not write to the same weights through another door.

    Args:
        filename: What `load_weights` takes.
        select: Which; see `WeightsNode.load`, also for the others.
        rename: New names.
        dtype: What floats become; one, or by name.
        packed: Keep the packed blocks of a GGUF file as bytes; otherwise they are decoded, to float32 unless `dtype`
            says more.
        progress: A function of (bytes done, bytes of all), or True for a bar; the tensors are in memory then.

    Raises:
        FormatError: the file is damaged.
        WeightNotFoundError: `select` names what is not there.
    """
    with load_weights(filename) as weights:
        if as_they_are(weights, packed, select=select, rename=rename, dtype=dtype, progress=progress):
            return {name: jax.dlpack.from_dlpack(buffer) for name, buffer in buffers(weights)}
        return weights.load(select, rename=rename, dtype=dtype, packed=packed, progress=progress, framework="jax")
