"""`Weights` and `WeightData` under the dotted path of MAX."""

from max_weights.weights import Weights, WeightsAdapter

__all__ = ["Weights", "WeightsAdapter"]
