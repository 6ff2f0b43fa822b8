# fmt: off
# ruff: noqa: I001, RUF100
"""The dotted path `max.graph.shape` of MAX."""

from max_weights._shape import Shape, ShapeLike

__all__ = ["Shape", "ShapeLike"]
