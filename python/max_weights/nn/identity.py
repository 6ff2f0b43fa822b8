# fmt: off
# ruff: noqa: I001, RUF100
"""The dotted path `max.nn.identity` of MAX."""

from max_weights.nn._linear import Identity

__all__ = ["Identity"]
