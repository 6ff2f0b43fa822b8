# fmt: off
# ruff: noqa: I001, RUF100
"""The dotted path `max.graph.weights` of MAX."""

from max_weights._weight_data import WeightData
from max_weights._weights import GGUFWeights, PytorchWeights, RESERVED, SafetensorWeights, WeightsAdapter, load_weights
from max_weights._weights_format import WeightsFormat, weights_format
from max_weights._weights_protocol import Weights
from max_weights._unsupported import unsupported_names as _unsupported

__all__ = [
    "RESERVED", "GGUFWeights", "PytorchWeights", "SafetensorWeights", "WeightData", "Weights", "WeightsAdapter",
    "WeightsFormat", "load_weights", "weights_format",
]

__getattr__ = _unsupported(__name__,
    RandomWeights="Module.state_dict() gives zeros, and load_state_dict() takes random arrays of NumPy",
)
