"""`Weights` and `WeightData` under the dotted path of MAX, and `Shape`, which its adapters import from here."""

from max_weights.shape import Shape, ShapeLike
from max_weights.weight_data import WeightData
from max_weights.weights import Weights, WeightsAdapter

__all__ = ["Shape", "ShapeLike", "WeightData", "Weights", "WeightsAdapter"]
