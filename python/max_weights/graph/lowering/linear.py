"""Lowering of products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from max_weights.dim import StaticDim
from max_weights.graph.lowering.dtypes import computed_as
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
    inner = shape[-1]
    if matrix is None or not dtype.is_float() or not (len(shape) == 2 or (isinstance(inner, StaticDim) and int(inner))):
        return scope.compute("MatMul", scope.inputs(node), dtype)
    wide = computed_as("Gemm", dtype)
    rows = scope[left]
    if len(shape) != 2:
        rows = scope.add("Reshape", [rows, scope.constant([-1, int(inner)])])
    columns = scope.cast(scope.cast(scope[matrix], matrix.dtype, dtype), dtype, wide)
    made = scope.cast(scope.add("Gemm", [scope.cast(rows, dtype, wide), columns], transB=1), wide, dtype)
    return made if len(shape) == 2 else scope.reshape(made, node.outputs[0].shape)


def _transposed(value: TensorValue) -> TensorValue | None:
    """The matrix that a value is the transpose of, but for a conversion."""
    node = value.node
    if node.op == "cast":
        node = node.inputs[0].node
    if node.op == "permute" and node.attributes["dims"] == (1, 0):
        return node.inputs[0]
    return None


@lowers("outer")
def outer(scope: Scope, node: Node) -> str:
    """A column times a row."""
    left, right = scope.inputs(node)
    dtype = node.outputs[0].dtype
    column = scope.compute("Unsqueeze", [left], dtype, beside=[scope.constant([1])])
    return scope.compute("Mul", [column, right], dtype)
