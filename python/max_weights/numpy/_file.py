"""Checkpoints as NumPy arrays. Importing this module imports NumPy."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy  # noqa: F401 (where it is missing, so is this module)

from max_weights._core import buffers
from max_weights._loading import chosen, is_lazy, require_options
from max_weights._weights import load_weights

if TYPE_CHECKING:
    from typing import Unpack

    from max_weights._buffer import Array
    from max_weights._loading import LoadOptions

__all__ = ["load_file"]


def load_file(
    filename: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    **options: Unpack[LoadOptions],
) -> dict[str, Array]:
    """Return the tensors of a checkpoint as NumPy arrays, by name, in file order.

    They are writable views of private pages of the file: nothing is read before it is used, and writing to them changes
    neither the file nor another process. bfloat16 and the 8-bit floats have the dtypes of ml_dtypes. Elements of types
    that only torch has, such as complex32, come as uint8, with the bytes of one element as the last dimension.

    Args:
        filename: Anything that `load_weights` accepts.
        **options: Those of `WeightsNode.load`: select, rename, dtype, packed, dequantize, shard, copy, storage,
            verify, progress, options (a `max_weights.types.ReadOptions`) and its fields. `select`, `rename` and
            `packed` say which tensors there are; with any other, all are in memory when this returns.

    Raises:
        FormatError: the file is damaged.
        WeightNotFoundError: `select` names something that is not there.
        UnsupportedError: a tensor of a PyTorch file that is not a plain array, such as a sparse one; `load_weights` has
            the arrays that it is made of.
        ImportError: ml_dtypes is needed and missing.
    """
    require_options("load_file", options)
    with load_weights(filename) as weights:
        if not is_lazy(options):
            return weights.load(framework="numpy", **options)
        some = chosen(weights, options)
        pairs = buffers(weights) if some is None else [(name, buffer) for name, buffer, _ in some]
        return {name: buffer.to_numpy() for name, buffer in pairs}
