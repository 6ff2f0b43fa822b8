"""`Shape` under the dotted path of MAX."""

from max_weights.shape import Shape, ShapeLike

__all__ = ["Shape", "ShapeLike"]
