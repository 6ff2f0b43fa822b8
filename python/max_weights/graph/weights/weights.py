"""`Weights` and `WeightData` under the dotted path of MAX."""

from max_weights.weight_data import WeightData
from max_weights.weights import Weights, WeightsAdapter

__all__ = ["WeightData", "Weights", "WeightsAdapter"]
