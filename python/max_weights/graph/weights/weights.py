# fmt: off
# ruff: noqa: I001, RUF100
"""The dotted path `max.graph.weights.weights` of MAX."""

from max_weights._shape import Shape, ShapeLike
from max_weights._weight_data import WeightData
from max_weights._weights import Weights, WeightsAdapter

__all__ = ["Shape", "ShapeLike", "WeightData", "Weights", "WeightsAdapter"]
