"""Checkpoints as JAX arrays. Importing this module imports JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax

from max_weights._loading import load_arrays

if TYPE_CHECKING:
    from typing import Unpack

    from max_weights._checkpoints import Checkpoint
    from max_weights._loading import LoadOptions

__all__ = ["load_file"]


def load_file(checkpoint: Checkpoint, **options: Unpack[LoadOptions]) -> dict[str, jax.Array]:
    """Return the tensors of a checkpoint as JAX arrays, by name, in file order.

    JAX uses data at multiples of 64 bytes in place, and copies the rest (`max_weights.infos` reports the offsets). JAX
    assumes that its arrays are immutable, so do not write to the same weights through another framework.

    Args:
        checkpoint: A tree or a branch; or anything that `load_weights` opens.
        **options: Those of `WeightsNode.load`: `select`, `rename`, `dtype`, `packed`, `shard`, `copy`, `progress`,
            `options` and its fields. With any but the first two and `packed="keep"`, all are in memory when this
            returns.

    Returns:
        {name: array}, in file order.

    Raises:
        WeightNotFoundError: `select` names a weight that does not exist.
        FormatError: a file is damaged.

    Example:
        >>> max_weights.jax.load_file("model.safetensors")["model.norm.weight"].shape
        (8,)
    """
    return load_arrays(checkpoint, "jax", options, jax.dlpack.from_dlpack)
