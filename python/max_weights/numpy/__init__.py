"""Checkpoints as NumPy arrays. Importing this module imports NumPy."""

from max_weights.numpy._file import load_file

__all__ = ["load_file"]
