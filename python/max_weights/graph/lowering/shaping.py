"""Lowering of the same elements in another shape or order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from max_weights.dim import StaticDim
from max_weights.dtype import DType
from max_weights.graph.lowering.table import lowers

if TYPE_CHECKING:
    from max_weights.graph.lowering.scope import Scope
    from max_weights.graph.value import Node


@lowers("reshape")
def reshape(scope: Scope, node: Node) -> str:
    """Another shape."""
    return scope.reshape(scope.inputs(node)[0], node.outputs[0].shape, node.inputs[0].shape)


@lowers("rebind")
def rebind(scope: Scope, node: Node) -> str:
    """Other names for dimensions. What it states is checked before a run, as far as it follows from the inputs."""
    return scope.inputs(node)[0]


@lowers("permute")
def permute(scope: Scope, node: Node) -> str:
    """The axes in another order."""
    return scope.add("Transpose", scope.inputs(node), perm=node.attributes["dims"])


@lowers("broadcast_to")
def broadcast_to(scope: Scope, node: Node) -> str:
    """Repeated to a shape."""
    x, *shape = scope.inputs(node)
    to = node.outputs[0]
    if StaticDim(0) in to.shape:  # ONNX Runtime leaves an Expand to a constant 0 out
        return scope.cast(scope.add("ConstantOfShape", [scope.dims(to.shape)]), DType.float32, to.dtype)
    made = scope.compute("Expand", [x], to.dtype, beside=shape or [scope.dims(to.shape)])
    return scope.stated(made, to) if shape else made


@lowers("tile")
def tile(scope: Scope, node: Node) -> str:
    """Repeated as a whole."""
    repeats = scope.dims(node.attributes["repeats"])
    return scope.compute("Tile", scope.inputs(node), node.outputs[0].dtype, beside=[repeats])
