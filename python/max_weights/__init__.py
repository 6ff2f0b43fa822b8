"""The shortest, fastest and safest way from a checkpoint file to a tensor.

>>> import max_weights
>>> weights = max_weights.load_weights("model.safetensors")
>>> weights.model.layers[0].self_attn.q_proj.weight.data()

No framework is imported before its door is opened, NumPy included.
"""

from max_weights._core import Buffer, SafetensorWeights, __version__
from max_weights.dtype import DType, finfo
from max_weights.errors import (
    ClosedError,
    DeviceError,
    FileChangedError,
    FormatError,
    MissingFileError,
    UnsupportedError,
    WeightNotFoundError,
    WeightsError,
)
from max_weights.graph.device import DeviceRef
from max_weights.graph.weights import WeightData, Weights, WeightsFormat, load_weights, weights_format

__all__ = [
    "Buffer",
    "ClosedError",
    "DType",
    "DeviceError",
    "DeviceRef",
    "FileChangedError",
    "FormatError",
    "MissingFileError",
    "SafetensorWeights",
    "UnsupportedError",
    "WeightData",
    "WeightNotFoundError",
    "Weights",
    "WeightsError",
    "WeightsFormat",
    "__version__",
    "finfo",
    "load_weights",
    "weights_format",
]
