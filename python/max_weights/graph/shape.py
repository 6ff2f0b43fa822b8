"""`Shape` under the dotted path of MAX."""

from max_weights._shape import Shape, ShapeLike

__all__ = ["Shape", "ShapeLike"]
