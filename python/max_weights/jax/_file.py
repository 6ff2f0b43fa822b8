"""Checkpoints as JAX arrays. Importing this module imports JAX."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

import jax

from max_weights._core import buffers
from max_weights._loading import chosen, is_lazy, require_options
from max_weights._weights import load_weights

if TYPE_CHECKING:
    from typing import Unpack

    from max_weights._loading import LoadOptions

__all__ = ["load_file"]


def load_file(
    filename: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    **options: Unpack[LoadOptions],
) -> dict[str, jax.Array]:
    """Return the tensors of a checkpoint as JAX arrays, by name, in file order.

    JAX uses data at multiples of 64 bytes in place, and copies the rest (`max_weights.infos` reports the offsets). JAX
    assumes that its arrays are immutable, so do not write to the same weights through another framework.

    Args:
        filename: Anything that `load_weights` accepts.
        **options: Those of `WeightsNode.load`: select, rename, dtype, packed, dequantize, shard, copy, storage,
            verify, progress, options (a `max_weights.types.ReadOptions`) and its fields. `select`, `rename` and
            `packed` say which tensors there are; with any other, all are in memory when this returns.

    Raises:
        FormatError: the file is damaged.
        WeightNotFoundError: `select` names something that is not there.
    """
    require_options("load_file", options)
    with load_weights(filename) as weights:
        if not is_lazy(options):
            return weights.load(framework="jax", **options)
        some = chosen(weights, options)
        pairs = buffers(weights) if some is None else [(name, buffer) for name, buffer, _ in some]
        return {name: jax.dlpack.from_dlpack(buffer) for name, buffer in pairs}
