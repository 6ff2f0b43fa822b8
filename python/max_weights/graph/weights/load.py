"""`load_weights` under the dotted path of MAX."""

from max_weights._weights import load_weights

__all__ = ["load_weights"]
