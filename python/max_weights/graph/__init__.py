"""Graphs: typed operations on tensors that are described by dtype, shape and device; weights; devices."""

from max_weights._devices import DeviceKind, DeviceRef
from max_weights._dim import AlgebraicDim, Dim, DimLike, StaticDim, SymbolicDim
from max_weights._shape import Shape, ShapeLike
from max_weights._unsupported import unsupported_names as _unsupported_names
from max_weights.graph import onnx, ops
from max_weights.graph._errors import GraphError, GraphIndexError, NoGraphError
from max_weights.graph._graph import Graph
from max_weights.graph._type import BufferType, TensorType, Type
from max_weights.graph._value import BufferValue, TensorValue, TensorValueLike, Value
from max_weights.graph._weight import Weight
from max_weights.sharding import Segment, ShardingStrategy

__all__ = [
    "AlgebraicDim", "BufferType", "BufferValue", "DeviceKind", "DeviceRef", "Dim", "DimLike", "Graph", "GraphError",
    "GraphIndexError", "NoGraphError", "Segment", "Shape", "ShapeLike", "ShardingStrategy", "StaticDim", "SymbolicDim",
    "TensorType", "TensorValue", "TensorValueLike", "Type", "Value", "Weight", "onnx", "ops",
]  # fmt: skip

__getattr__ = _unsupported_names(
    __name__,
    DevicePlacementPolicy="it says what happens when an operation moves a tensor to the CPU on its own, which "
    "none does here; move it with ops.transfer_to",
    dtype_promotion="its functions are private to MAX: ops and operators promote their operands by the same rules",
    Module="it is a module of MAX's compiler, which holds several graphs: keep Graph objects in a list or dict, and "
    "graphs that belong to one in it with Graph.add_subgraph. For modules of layers there is nn.Module",
)
