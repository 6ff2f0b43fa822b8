"""`safetensors.flax` on top of this package: the file of the installed package, run over our functions.

Without the package there are `load_file`, `load`, `save_file` and `save`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from max_weights.safetensors import numpy as _numpy
from max_weights.safetensors._functions import functions, run_package_file

if TYPE_CHECKING:
    from safetensors.flax import load as load
    from safetensors.flax import load_file as load_file
    from safetensors.flax import save as save
    from safetensors.flax import save_file as save_file

__all__ = ["load", "load_file", "save", "save_file"]

_package = run_package_file("flax", globals())
numpy = _numpy


def _jnp2np(jnp_dict: dict[str, Any]) -> dict[str, Any]:
    """Return a dict with NumPy arrays of these JAX arrays; the package changes the given dict instead."""
    return {name: np.asarray(array) for name, array in jnp_dict.items()}


if not _package:

    def _loaded(data: Any) -> dict[str, Any]:
        return {name: jnp.asarray(array) for name, array in numpy.load(data).items()}

    globals().update(functions("flax", _loaded, _jnp2np))
