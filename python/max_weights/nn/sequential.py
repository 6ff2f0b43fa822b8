"""`Sequential` under the dotted path of MAX."""

from max_weights.nn._layer_list import Sequential

__all__ = ["Sequential"]
