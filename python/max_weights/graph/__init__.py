"""Graph types: devices, shapes, weights."""

from max_weights.graph.device import DeviceRef
from max_weights.graph.dim import AlgebraicDim, Dim, StaticDim, SymbolicDim
from max_weights.graph.shape import Shape
from max_weights.graph.weight import Weight

__all__ = ["AlgebraicDim", "DeviceRef", "Dim", "Shape", "StaticDim", "SymbolicDim", "Weight"]
