"""Checkpoints as NumPy arrays. Importing this module imports NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy  # noqa: F401 (where it is missing, so is this module)

from max_weights._loading import load_arrays

if TYPE_CHECKING:
    from typing import Unpack

    from max_weights._buffer import Array
    from max_weights._checkpoints import Checkpoint
    from max_weights._loading import LoadOptions

__all__ = ["load_file"]


def load_file(checkpoint: Checkpoint, **options: Unpack[LoadOptions]) -> dict[str, Array]:
    """Return the tensors of a checkpoint as NumPy arrays, by name, in file order.

    They are writable views of private pages of the file: nothing is read before it is used, and writing to them changes
    neither the file nor another process. The dtypes of bfloat16 and the 8-bit floats are those of ml_dtypes. Elements
    of types that only torch has, such as complex32, come as uint8, with the bytes of one element as the last dimension.

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
        UnsupportedError: a tensor of a PyTorch file that is not a plain array, such as a sparse one; `load_weights` has
            its component arrays.
        ImportError: ml_dtypes is needed and missing.

    Example:
        >>> max_weights.numpy.load_file("model.safetensors")["model.norm.weight"].shape
        (8,)
    """
    return load_arrays(checkpoint, "numpy", options, lambda buffer: buffer.to_numpy())
