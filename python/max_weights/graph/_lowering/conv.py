"""Lowering of convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from max_weights.graph._lowering.table import register_lowering

if TYPE_CHECKING:
    from max_weights.graph._lowering.scope import Scope
    from max_weights.graph.value import Node


@register_lowering("conv2d")
def conv2d(scope: Scope, node: Node) -> str:
    """Lower a convolution to Conv, which has channels before height and width; other orders of axes are converted."""
    x, filter, *bias = scope.inputs(node)
    above, below, left, right = node.attributes["padding"]
    channels_last = node.attributes["input_layout"] == "NHWC"
    if channels_last:
        x = scope.add("Transpose", [x], perm=[0, 3, 1, 2])
    if node.attributes["filter_layout"] == "RSCF":
        filter = scope.add("Transpose", [filter], perm=[3, 2, 0, 1])
    made = scope.compute(
        "Conv",
        [x, filter, *bias],
        node.outputs[0].dtype,
        strides=node.attributes["stride"],
        dilations=node.attributes["dilation"],
        pads=[above, left, below, right],
        group=node.attributes["groups"],
    )
    return scope.add("Transpose", [made], perm=[0, 2, 3, 1]) if channels_last else made
