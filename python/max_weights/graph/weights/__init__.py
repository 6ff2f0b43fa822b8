"""Weights of checkpoints by hierarchical names."""

from max_weights._core import SafetensorWeights
from max_weights.graph.weights.format import WeightsFormat, weights_format
from max_weights.graph.weights.load import load_weights
from max_weights.graph.weights.protocol import RESERVED, Weights, WeightsAdapter
from max_weights.graph.weights.weight_data import WeightData

__all__ = [
    "RESERVED",
    "SafetensorWeights",
    "WeightData",
    "Weights",
    "WeightsAdapter",
    "WeightsFormat",
    "load_weights",
    "weights_format",
]
