"""Graphs: typed operations on tensors that are described by dtype, shape and device; weights; devices."""

from max_weights.devices import DeviceRef
from max_weights.dim import AlgebraicDim, Dim, StaticDim, SymbolicDim
from max_weights.graph import ops
from max_weights.graph.graph import Graph
from max_weights.graph.type import TensorType, Type
from max_weights.graph.value import TensorValue, TensorValueLike, Value
from max_weights.graph.weight import Weight
from max_weights.shape import Shape
from max_weights.sharding import Segment, ShardingStrategy

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
]
