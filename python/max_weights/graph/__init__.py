"""Graph types: devices, shapes, weights."""

from max_weights._lazy import exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from max_weights.graph import quantization, weights
    from max_weights.graph.device import DeviceRef
    from max_weights.graph.dim import AlgebraicDim, Dim, StaticDim, SymbolicDim
    from max_weights.graph.shape import Shape
    from max_weights.graph.sharding import Segment, ShardingStrategy
    from max_weights.graph.weight import Weight

__all__ = [
    "AlgebraicDim",
    "DeviceRef",
    "Dim",
    "Segment",
    "Shape",
    "ShardingStrategy",
    "StaticDim",
    "SymbolicDim",
    "Weight",
    "quantization",
    "weights",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "AlgebraicDim": "max_weights.graph.dim",
        "DeviceRef": "max_weights.graph.device",
        "Dim": "max_weights.graph.dim",
        "Segment": "max_weights.graph.sharding",
        "Shape": "max_weights.graph.shape",
        "ShardingStrategy": "max_weights.graph.sharding",
        "StaticDim": "max_weights.graph.dim",
        "SymbolicDim": "max_weights.graph.dim",
        "Weight": "max_weights.graph.weight",
        "quantization": "max_weights.graph.quantization",
        "weights": "max_weights.graph.weights",
    },
)
