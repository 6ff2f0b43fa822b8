"""Lowering of products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from max_weights._dim import StaticDim
from max_weights.graph._lowering.dtypes import computed_as
from max_weights.graph._lowering.table import register_lowering

if TYPE_CHECKING:
    import onnx_ir as ir

    from max_weights.graph._lowering.scope import Scope
    from max_weights.graph._value import Node, TensorValue


@register_lowering("matmul")
def lower_matmul(scope: Scope, node: Node) -> ir.Value:
    """Lower a product; to Gemm if the right side is a transposed matrix, so that it is not transposed in memory."""
    return write_gemm(scope, node) or scope.compute("MatMul", scope.inputs(node), node.outputs[0].dtype)


@register_lowering("add")
def lower_add(scope: Scope, node: Node) -> ir.Value:
    """Lower a sum; the bias of a product goes into the product, if nothing else uses that."""
    for product, bias in (node.inputs, node.inputs[::-1]):
        shape = product.shape
        if scope.is_used_once(product) and node.outputs[0].shape == shape and bias.shape == shape[-1:]:
            result = write_gemm(scope, product.node, scope[bias])
            if result is not None:
                return result
    return scope.compute("Add", scope.inputs(node), node.outputs[0].dtype)


def write_gemm(scope: Scope, node: Node, bias: ir.Value | None = None) -> ir.Value | None:
    """Write a product, and a row that is added to each of its rows, as Gemm.

    Returns `None` if it is not such a product, or if the product has to be rounded before the sum.
    """
    if node.op != "matmul":
        return None
    left, right = node.inputs
    dtype = node.outputs[0].dtype
    matrix, shape, wide = _transposed(right), left.shape, computed_as("Gemm", dtype)
    inner = shape[-1]
    if matrix is None or not dtype.is_float() or not (len(shape) == 2 or (isinstance(inner, StaticDim) and int(inner))):
        return None
    if bias is not None and dtype is not wide:
        return None
    rows = scope[left]
    if len(shape) != 2:
        rows = scope.rows(rows, int(inner))
    columns = scope.cast(scope.cast(scope[matrix], matrix.dtype, dtype), dtype, wide)
    operands = [scope.cast(rows, dtype, wide), columns, *([bias] if bias is not None else [])]
    result = scope.cast(scope.add("Gemm", operands, transB=1), wide, dtype)
    return result if len(shape) == 2 else scope.reshape(result, node.outputs[0].shape)


def _transposed(value: TensorValue) -> TensorValue | None:
    """Return the matrix that a value is the transpose of, apart from a conversion."""
    node = value.node
    if node.op == "cast":
        node = node.inputs[0].node
    if node.op == "permute" and node.attributes["dims"] == (1, 0):
        return node.inputs[0]
    return None


@register_lowering("outer")
def lower_outer(scope: Scope, node: Node) -> ir.Value:
    """Lower the product of a column and a row."""
    left, right = scope.inputs(node)
    dtype = node.outputs[0].dtype
    column = scope.compute("Unsqueeze", [left], dtype, extra_inputs=[scope.constant([1])])
    return scope.compute("Mul", [column, right], dtype)
