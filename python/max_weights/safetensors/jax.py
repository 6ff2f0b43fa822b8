"""The functions of `max_weights.safetensors.flax`, under the name of the framework."""

from max_weights.safetensors.flax import load, load_file, save, save_file

__all__ = ["load", "load_file", "save", "save_file"]
