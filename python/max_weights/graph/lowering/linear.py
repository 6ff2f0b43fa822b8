"""Lowering of products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from max_weights.dim import StaticDim, to_dim
from max_weights.graph.lowering.table import lowers

if TYPE_CHECKING:
    from max_weights.graph.lowering.scope import Scope
    from max_weights.graph.value import Node, TensorValue


@lowers("matmul")
def matmul(scope: Scope, node: Node) -> str:
    """By Gemm where the right side is the transpose of a matrix, so that the matrix is not turned around in memory."""
    left, right = node.inputs
    dtype = node.outputs[0].dtype
    matrix, shape = _transposed(right), left.shape
    if matrix is None or not shape or not (len(shape) == 2 or isinstance(shape[-1], StaticDim)):
        return scope.compute("MatMul", scope.inputs(node), dtype)
    rows = scope[left]
    if len(shape) != 2:
        rows = scope.reshape(rows, [to_dim("rows"), shape[-1]])
    made = scope.compute("Gemm", [rows, scope[matrix]], dtype, transB=1)
    return made if len(shape) == 2 else scope.reshape(made, node.outputs[0].shape)


def _transposed(value: TensorValue) -> TensorValue | None:
    """The matrix that a value is the transpose of."""
    node = value.node
    if node.op == "permute" and node.attributes["dims"] == (1, 0):
        return node.inputs[0]
    return None


@lowers("outer")
def outer(scope: Scope, node: Node) -> str:
    """A column times a row."""
    left, right = scope.inputs(node)
    column = scope.add("Unsqueeze", [left, scope.constant([1])])
    return scope.compute("Mul", [column, right], node.outputs[0].dtype)
