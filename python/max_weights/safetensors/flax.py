"""`safetensors.flax` on top of this package."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from max_weights.safetensors import numpy as numpy
from max_weights.safetensors.open_file import safe_open

if TYPE_CHECKING:
    from typing_extensions import Buffer as Bytes

__all__ = ["_jnp2np", "_np2jnp", "load", "load_file", "numpy", "safe_open", "save", "save_file"]


def load_file(filename: str | os.PathLike[str], *, backend: str = "mmap") -> dict[str, Array]:
    """Return the tensors of a file by name, in its order, on JAX's default device.

    Args:
        filename: The file.
        backend: "mmap", or "pread", which reads each tensor into memory of its own.

    Raises:
        FileNotFoundError: there is no such file.
        SafetensorError: it is not a safetensors file, or a damaged one.
    """
    with safe_open(filename, framework="flax", backend=backend) as file:
        return file.get_tensors()


def load(data: Bytes) -> dict[str, Array]:
    """Return the tensors of a file in memory by name, in its order, on JAX's default device.

    Args:
        data: The whole file: bytes, or any other contiguous buffer, such as an mmap.

    Raises:
        SafetensorError: the bytes are not a safetensors file, or a damaged one.
    """
    return _np2jnp(numpy.load(data))


def _np2jnp(numpy_dict: dict[str, Any]) -> dict[str, Array]:
    """Return the dict with each NumPy array replaced by a JAX array."""
    for name, array in numpy_dict.items():
        numpy_dict[name] = jnp.array(array)
    return numpy_dict


def _jnp2np(jnp_dict: dict[str, Any]) -> dict[str, Any]:
    """Return the dict with each JAX array replaced by a NumPy array."""
    for name, array in jnp_dict.items():
        jnp_dict[name] = np.asarray(array)
    return jnp_dict


def save(tensors: dict[str, Array], metadata: dict[str, str] | None = None) -> bytes:
    """Return the bytes of a safetensors file with these JAX arrays.

    Args:
        tensors: Arrays by name.
        metadata: Strings by name.

    Raises:
        TypeError: names or metadata that are not strings.
        SafetensorError: as for `max_weights.safetensors.numpy.save`.
    """
    return numpy.save({name: np.asarray(array) for name, array in tensors.items()}, metadata)


def save_file(
    tensors: dict[str, Array], filename: str | os.PathLike[str], metadata: dict[str, str] | None = None
) -> None:
    """Save JAX arrays as a safetensors file, as `max_weights.safetensors.serialize_file` does: whole or not at all.

    Args:
        tensors: As for `save`.
        filename: The file, which may be one that is in use.
        metadata: Strings by name.

    Raises:
        TypeError: as for `save`, or the filename is not a path.
        SafetensorError: as for `save`, or the system refuses, for lack of space or of permission.
    """
    numpy.save_file({name: np.asarray(array) for name, array in tensors.items()}, filename, metadata)
