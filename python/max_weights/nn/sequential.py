"""`Sequential` under the dotted path of MAX."""

from max_weights.nn.layer_list import Sequential

__all__ = ["Sequential"]
