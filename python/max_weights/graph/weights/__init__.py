"""Weights of checkpoints by hierarchical names."""

from max_weights._lazy import exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from max_weights._core import RESERVED, GGUFWeights, PytorchWeights, SafetensorWeights
    from max_weights.graph.weights.format import WeightsFormat, weights_format
    from max_weights.graph.weights.load import load_weights
    from max_weights.graph.weights.protocol import Weights, WeightsAdapter
    from max_weights.graph.weights.weight_data import WeightData

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

__getattr__, __dir__ = exports(
    __name__,
    {
        "RESERVED": "max_weights._core",
        "GGUFWeights": "max_weights._core",
        "PytorchWeights": "max_weights._core",
        "SafetensorWeights": "max_weights._core",
        "WeightData": "max_weights.graph.weights.weight_data",
        "Weights": "max_weights.graph.weights.protocol",
        "WeightsAdapter": "max_weights.graph.weights.protocol",
        "WeightsFormat": "max_weights.graph.weights.format",
        "load_weights": "max_weights.graph.weights.load",
        "weights_format": "max_weights.graph.weights.format",
    },
)
