# fmt: off
# ruff: noqa: I001, RUF100
"""The dotted path `max.graph.weights.weights` of MAX."""

from max_weights._shape import Shape, ShapeLike
from max_weights._weight_data import WeightData
from max_weights._weights import WeightsAdapter
from max_weights._weights_protocol import Weights

__all__ = ["Shape", "ShapeLike", "WeightData", "Weights", "WeightsAdapter"]
