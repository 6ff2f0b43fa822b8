"""Weights of checkpoints under the dotted path of MAX."""

from max_weights._unsupported import unsupported_names
from max_weights._weight_data import WeightData
from max_weights._weights import (
    RESERVED,
    GGUFWeights,
    PytorchWeights,
    SafetensorWeights,
    Weights,
    WeightsAdapter,
    WeightsFormat,
    load_weights,
    weights_format,
)

__all__ = [
    "RESERVED",
    "GGUFWeights",
    "PytorchWeights",
    "SafetensorWeights",
    "WeightData",
    "Weights",
    "WeightsAdapter",
    "WeightsFormat",
    "load_weights",
    "weights_format",
]

__getattr__ = unsupported_names(
    __name__,
    RandomWeights="Module.state_dict() gives zeros, and load_state_dict() takes random arrays of NumPy",
)
