# fmt: off
# ruff: noqa: I001, RUF022, RUF100
"""The dotted path `max.nn.sequential` of MAX."""

from max_weights.nn._layer_list import Sequential

__all__ = ["Sequential"]
