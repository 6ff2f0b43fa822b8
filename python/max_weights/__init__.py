"""The shortest, fastest and safest way from a checkpoint file to a tensor.

>>> import max_weights
>>> weights = max_weights.load_weights("model.safetensors")
>>> weights.model.layers[0].self_attn.q_proj.weight.data()

No framework is imported before its door is opened, NumPy included.
"""

from max_weights._lazy import exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from max_weights import driver, graph, nn
    from max_weights._core import Buffer, GGUFWeights, PytorchWeights, SafetensorWeights, __version__, release_memory
    from max_weights.blocks import dequantize, quantize, scale_blocks
    from max_weights.driver.virtual import virtual_devices
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
    from max_weights.graph.weights.format import WeightsFormat, weights_format
    from max_weights.graph.weights.load import load_weights
    from max_weights.graph.weights.protocol import Weights
    from max_weights.graph.weights.weight_data import WeightData
    from max_weights.versions import show_versions

__all__ = [
    "Buffer",
    "ClosedError",
    "DType",
    "DeviceError",
    "DeviceRef",
    "FileChangedError",
    "FormatError",
    "GGUFWeights",
    "MissingFileError",
    "PytorchWeights",
    "SafetensorWeights",
    "UnsupportedError",
    "WeightData",
    "WeightNotFoundError",
    "Weights",
    "WeightsError",
    "WeightsFormat",
    "__version__",
    "dequantize",
    "driver",
    "finfo",
    "graph",
    "load_weights",
    "nn",
    "quantize",
    "release_memory",
    "scale_blocks",
    "show_versions",
    "virtual_devices",
    "weights_format",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "Buffer": "max_weights._core",
        "ClosedError": "max_weights.errors",
        "DType": "max_weights.dtype",
        "DeviceError": "max_weights.errors",
        "DeviceRef": "max_weights.graph.device",
        "FileChangedError": "max_weights.errors",
        "FormatError": "max_weights.errors",
        "GGUFWeights": "max_weights._core",
        "MissingFileError": "max_weights.errors",
        "PytorchWeights": "max_weights._core",
        "SafetensorWeights": "max_weights._core",
        "UnsupportedError": "max_weights.errors",
        "WeightData": "max_weights.graph.weights.weight_data",
        "WeightNotFoundError": "max_weights.errors",
        "Weights": "max_weights.graph.weights.protocol",
        "WeightsError": "max_weights.errors",
        "WeightsFormat": "max_weights.graph.weights.format",
        "__version__": "max_weights._core",
        "dequantize": "max_weights.blocks",
        "driver": "max_weights.driver",
        "finfo": "max_weights.dtype",
        "graph": "max_weights.graph",
        "load_weights": "max_weights.graph.weights.load",
        "nn": "max_weights.nn",
        "quantize": "max_weights.blocks",
        "release_memory": "max_weights._core",
        "scale_blocks": "max_weights.blocks",
        "show_versions": "max_weights.versions",
        "virtual_devices": "max_weights.driver.virtual",
        "weights_format": "max_weights.graph.weights.format",
    },
)
