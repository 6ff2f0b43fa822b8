# fmt: off
# ruff: noqa: I001, RUF100
"""The dotted path `max.nn.sequential` of MAX."""

from max_weights.nn._module import Sequential

__all__ = ["Sequential"]
