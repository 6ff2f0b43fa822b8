# fmt: off
# ruff: noqa: I001, RUF022, RUF100
"""The dotted path `max.nn.identity` of MAX."""

from max_weights.nn._identity import Identity

__all__ = ["Identity"]
