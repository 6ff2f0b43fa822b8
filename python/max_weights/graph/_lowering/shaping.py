"""Lowering of the same elements in another shape or order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from max_weights._dim import StaticDim
from max_weights.dtype import DType
from max_weights.graph._lowering.table import register_lowering

if TYPE_CHECKING:
    from max_weights.graph._lowering.scope import Scope
    from max_weights.graph.value import Node


@register_lowering("reshape")
def reshape(scope: Scope, node: Node) -> str:
    """Lower a change of shape."""
    return scope.reshape(scope.inputs(node)[0], node.outputs[0].shape, node.inputs[0].shape)


@register_lowering("rebind")
def rebind(scope: Scope, node: Node) -> str:
    """Lower new names for dimensions. They are checked before a run, as far as that follows from the inputs."""
    return scope.inputs(node)[0]


@register_lowering("permute")
def permute(scope: Scope, node: Node) -> str:
    """Lower a new order of axes."""
    return scope.add("Transpose", scope.inputs(node), perm=node.attributes["dims"])


@register_lowering("broadcast_to")
def broadcast_to(scope: Scope, node: Node) -> str:
    """Lower repetition to a shape."""
    x, *shape = scope.inputs(node)
    to = node.outputs[0]
    if StaticDim(0) in to.shape:  # ONNX Runtime ignores an Expand to a constant 0
        return scope.cast(scope.add("ConstantOfShape", [scope.dims(to.shape)]), DType.float32, to.dtype)
    made = scope.compute("Expand", [x], to.dtype, extra_inputs=shape or [scope.dims(to.shape)])
    return scope.stated(made, to.shape) if shape else made


@register_lowering("tile")
def tile(scope: Scope, node: Node) -> str:
    """Lower repetition of a whole tensor."""
    repeats = scope.dims(node.attributes["repeats"])
    return scope.compute("Tile", scope.inputs(node), node.outputs[0].dtype, extra_inputs=[repeats])
