"""`Weights` and `WeightData` under the dotted path of MAX, and `Shape`, which its adapters import from here."""

from max_weights._shape import Shape, ShapeLike
from max_weights._weight_data import WeightData
from max_weights._weights import Weights, WeightsAdapter

__all__ = ["Shape", "ShapeLike", "WeightData", "Weights", "WeightsAdapter"]
