"""Graphs: typed operations on tensors that are described by dtype, shape and device; weights; devices."""

from max_weights._lazy import exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from max_weights.graph import ops, quantization, weights
    from max_weights.graph.device import DeviceRef
    from max_weights.graph.dim import AlgebraicDim, Dim, StaticDim, SymbolicDim
    from max_weights.graph.graph import Graph
    from max_weights.graph.shape import Shape
    from max_weights.graph.sharding import Segment, ShardingStrategy
    from max_weights.graph.type import TensorType, Type
    from max_weights.graph.value import TensorValue, TensorValueLike, Value
    from max_weights.graph.weight import Weight

__all__ = [
    "AlgebraicDim",
    "DeviceRef",
    "Dim",
    "Graph",
    "Segment",
    "Shape",
    "ShardingStrategy",
    "StaticDim",
    "SymbolicDim",
    "TensorType",
    "TensorValue",
    "TensorValueLike",
    "Type",
    "Value",
    "Weight",
    "ops",
    "quantization",
    "weights",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "AlgebraicDim": "max_weights.graph.dim",
        "DeviceRef": "max_weights.graph.device",
        "Dim": "max_weights.graph.dim",
        "Graph": "max_weights.graph.graph",
        "Segment": "max_weights.graph.sharding",
        "Shape": "max_weights.graph.shape",
        "ShardingStrategy": "max_weights.graph.sharding",
        "StaticDim": "max_weights.graph.dim",
        "SymbolicDim": "max_weights.graph.dim",
        "TensorType": "max_weights.graph.type",
        "TensorValue": "max_weights.graph.value",
        "TensorValueLike": "max_weights.graph.value",
        "Type": "max_weights.graph.type",
        "Value": "max_weights.graph.value",
        "Weight": "max_weights.graph.weight",
        "ops": "max_weights.graph.ops",
        "quantization": "max_weights.graph.quantization",
        "weights": "max_weights.graph.weights",
    },
)
