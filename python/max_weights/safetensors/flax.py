"""`safetensors.flax` over this package: what loads is here, what saves is that of the installed package."""

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
    """The tensors of a file by name, in its order, on JAX's default device.

    Args:
        filename: The file.
        backend: "mmap", or "pread": each tensor is read into memory of its own.

    Raises:
        FileNotFoundError: there is no such file.
        SafetensorError: no safetensors file, or a damaged one.
    """
    with safe_open(filename, framework="flax", backend=backend) as file:
        return file.get_tensors()


def load(data: Bytes) -> dict[str, Array]:
    """The tensors of a file in memory by name, in its order, on JAX's default device.

    Args:
        data: The whole file: bytes, or any other contiguous buffer, such as an mmap.

    Raises:
        SafetensorError: the bytes are no safetensors file, or a damaged one.
    """
    return _np2jnp(numpy.load(data))


def _np2jnp(numpy_dict: dict[str, Any]) -> dict[str, Array]:
    """The same dict, with an array of JAX in place of each of NumPy."""
    for name, array in numpy_dict.items():
        numpy_dict[name] = jnp.array(array)
    return numpy_dict


def _jnp2np(jnp_dict: dict[str, Any]) -> dict[str, Any]:
    """The same dict, with an array of NumPy in place of each of JAX."""
    for name, array in jnp_dict.items():
        jnp_dict[name] = np.asarray(array)
    return jnp_dict


def save(tensors: dict[str, Array], metadata: dict[str, str] | None = None) -> bytes:
    """As `numpy.save`, of arrays of JAX. ImportError: the safetensors package is not installed."""
    return numpy.save(_jnp2np(tensors), metadata)


def save_file(
    tensors: dict[str, Array], filename: str | os.PathLike[str], metadata: dict[str, str] | None = None
) -> None:
    """As `numpy.save_file`, of arrays of JAX. ImportError: the safetensors package is not installed."""
    numpy.save_file(_jnp2np(tensors), filename, metadata)
