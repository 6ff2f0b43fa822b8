"""Checkpoints as JAX arrays. Importing this module imports JAX."""

from max_weights.jax._file import load_file

__all__ = ["load_file"]
