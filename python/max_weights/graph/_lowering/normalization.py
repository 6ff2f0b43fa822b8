"""Lowering of operations that scale a tensor by the values on its last axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from max_weights.dtype import DType
from max_weights.graph._lowering.table import register_lowering

if TYPE_CHECKING:
    from max_weights.graph._lowering.scope import Scope
    from max_weights.graph.value import Node


@register_lowering("softmax", "logsoftmax")
def softmax(scope: Scope, node: Node) -> str:
    """Lower softmax along an axis."""
    operator = "Softmax" if node.op == "softmax" else "LogSoftmax"
    return scope.compute(operator, scope.inputs(node), node.outputs[0].dtype, axis=node.attributes["axis"])


@register_lowering("layer_norm")
def layer_norm(scope: Scope, node: Node) -> str:
    """Lower layer normalisation over the last axis."""
    epsilon = node.attributes["epsilon"]
    return scope.compute("LayerNormalization", scope.inputs(node), node.outputs[0].dtype, axis=-1, epsilon=epsilon)


@register_lowering("rms_norm")
def rms_norm(scope: Scope, node: Node) -> str:
    """Lower RMS normalisation over the last axis; computed as float32 at least."""
    x, scale = scope.inputs(node)
    dtype, scale_dtype = node.outputs[0].dtype, node.inputs[1].dtype
    wide = DType.float64 if dtype is DType.float64 else DType.float32
    epsilon = node.attributes["epsilon"]
    x = scope.cast(x, dtype, wide)
    scale = scope.cast(scale, scale_dtype, wide)
    if node.attributes["weight_offset"]:
        scale = scope.add("Add", [scale, scope.constant(node.attributes["weight_offset"], wide)])
    if node.attributes["multiply_before_cast"] or dtype is wide:
        made = scope.add("RMSNormalization", [x, scale], axis=-1, epsilon=epsilon)
        return scope.cast(made, wide, dtype)
    ones = scope.add("Expand", [scope.constant(1, wide), scope.add("Shape", [scale])])
    made = scope.cast(scope.add("RMSNormalization", [x, ones], axis=-1, epsilon=epsilon), wide, dtype)
    return scope.compute("Mul", [made, scope.cast(scale, wide, dtype)], dtype)
