"""Lowering of products, and of packed blocks, for which ONNX has no operation.

A weight in blocks is replaced, when a model is loaded, by the elements that `max_weights.dequantize` decodes. Only a
product with Q4_0 has an operator of ONNX Runtime, MatMulNBits. Its matrix has 4-bit numbers, of which 8 stands for 0,
with a scale for every 32, like Q4_0; only the order of the numbers in their bytes differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from max_weights._buffer import Buffer
from max_weights._dim import StaticDim
from max_weights._quantization import QuantizationEncoding, dequantize
from max_weights.errors import UnsupportedError
from max_weights.graph._lowering.dtypes import computed_as
from max_weights.graph._lowering.shaping import write_gather, write_slice
from max_weights.graph._lowering.table import register_lowering
from max_weights.graph._lowering.writer import CONTRIB

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
    left, right = scope.inputs(node)
    dtype = node.outputs[0].dtype
    column = scope.compute("Unsqueeze", [left], dtype, extra_inputs=[scope.constant([1])])
    return scope.compute("Mul", [column, right], dtype)


__all__ = ["ELEMENTS", "repack", "write_elements"]

ELEMENTS = "elements"
"""The decoded elements, which replace blocks of every encoding; `numbers` and `scales` replace those of Q4_0."""
_WHOLE = (None, None, 1)


def repack(encoding: str, part: str, blocks: Buffer) -> Buffer:
    """Return a tensor that a model computes with instead of blocks."""
    if part == ELEMENTS:
        return dequantize(blocks, encoding)
    import numpy as np

    kind = QuantizationEncoding(encoding)
    rows = blocks.to_numpy().reshape(blocks.shape[0], blocks.shape[1] // kind.block_size, kind.block_size)
    if part == "scales":
        return Buffer.from_numpy(rows[..., :2].copy().view("<f2")[..., 0].astype(np.float32))
    numbers = np.concatenate([rows[..., 2:] & 15, rows[..., 2:] >> 4], -1)
    return Buffer.from_numpy(numbers[..., ::2] | numbers[..., 1::2] << 4)


@register_lowering("dequantize")
def lower_dequantize(scope: Scope, node: Node) -> ir.Value:
    return write_elements(scope, node, node.inputs[0], node.attributes["encoding"])


@register_lowering("qmatmul")
def lower_product(scope: Scope, node: Node) -> ir.Value:
    """Lower the product with the elements, which is computed in float32."""
    (left, right), encoding = node.inputs, node.attributes["encoding"]
    inner, outer = left.shape[-1], right.shape[0]
    if not isinstance(inner, StaticDim):
        raise UnsupportedError(
            f"the product with packed weights needs a size that is known, not {inner}", rule="unsupported.operation"
        )
    rows = scope.rows(scope[left], int(inner))
    if encoding == "Q4_0" and right.node.op == "weight" and isinstance(outer, StaticDim):
        parts = [scope.repacked_part(right, encoding, part) for part in ("numbers", "scales")]
        options = {"K": int(inner), "N": int(outer), "bits": 4, "block_size": 32, "accuracy_level": 1}
        product = scope.add("MatMulNBits", [rows, *parts], domain=CONTRIB, **options)
    else:
        product = scope.add("Gemm", [rows, write_elements(scope, node, right, encoding)], transB=1)
    return scope.reshape(product, node.outputs[0].shape)


def write_elements(scope: Scope, node: Node, blocks: TensorValue, encoding: str) -> ir.Value:
    """Write the elements of blocks: of whole rows of a weight or an input, the same rows of its elements."""
    source = blocks.node
    if source.op in ("weight", "input"):
        return scope.repacked_part(blocks, encoding, ELEMENTS)
    if source.op == "rebind":
        return write_elements(scope, node, source.inputs[0], encoding)
    if source.op == "gather" and source.attributes["axis"] < source.inputs[0].rank - 1:
        return write_gather(scope, source, write_elements(scope, node, source.inputs[0], encoding))
    if source.op == "slice_tensor" and source.attributes["index"][-1] == _WHOLE:
        kind = QuantizationEncoding(encoding)
        dims = [*blocks.shape[:-1], blocks.shape[-1] // kind.block_size * kind.elements_per_block]
        return write_slice(scope, source, write_elements(scope, node, source.inputs[0], encoding), dims)
    raise UnsupportedError(
        f"{node.op} of {encoding} cannot be run (at {node.location}): its blocks are computed by {source.op} (at "
        f"{source.location}), and only those of a weight or an input, or whole rows of one, can be decoded; apply "
        f"{source.op} to the elements instead",
        rule="unsupported.operation",
    )
