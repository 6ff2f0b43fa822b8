"""Lowering of comparisons, logic, and the choice between tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from max_weights.dtype import DType
from max_weights.graph._lowering.division import choose
from max_weights.graph._lowering.table import register_lowering

if TYPE_CHECKING:
    from max_weights.graph._lowering.scope import Scope
    from max_weights.graph.value import Node

_COMPARISONS = {
    "equal": "Equal",
    "less": "Less",
    "less_equal": "LessOrEqual",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
}
_LOGIC = {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor", "logical_not": "Not"}


@register_lowering(*_COMPARISONS)
def compare(scope: Scope, node: Node) -> str:
    """Lower a comparison."""
    return scope.compute(_COMPARISONS[node.op], scope.inputs(node), node.inputs[0].dtype, result_dtype=DType.bool)


@register_lowering("not_equal")
def not_equal(scope: Scope, node: Node) -> str:
    """Lower inequality, the opposite of Equal."""
    equal = scope.compute("Equal", scope.inputs(node), node.inputs[0].dtype, result_dtype=DType.bool)
    return scope.add("Not", [equal])


@register_lowering(*_LOGIC)
def logic(scope: Scope, node: Node) -> str:
    """Lower operations on bool."""
    return scope.add(_LOGIC[node.op], scope.inputs(node))


@register_lowering("where")
def where(scope: Scope, node: Node) -> str:
    """Lower the choice between two tensors."""
    condition, left, right = scope.inputs(node)
    return choose(scope, condition, left, right, node.outputs[0].dtype)
