"""Lowering of packed blocks, which ONNX has no operation for.

A weight in blocks is replaced, when a model is loaded, by the elements that `max_weights.dequantize` decodes. Only a
product with Q4_0 has an operator of ONNX Runtime, MatMulNBits: its matrix is 4-bit numbers, of which 8 stands for 0,
with a scale for every 32, as Q4_0 is, but for the order of the numbers in their bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from max_weights._buffer import Buffer
from max_weights._dim import StaticDim
from max_weights._quantization import QuantizationEncoding, dequantize
from max_weights.errors import UnsupportedError
from max_weights.graph._lowering.joining import write_gather, write_slice
from max_weights.graph._lowering.table import register_lowering
from max_weights.graph._lowering.writer import CONTRIB

if TYPE_CHECKING:
    import onnx_ir as ir

    from max_weights.graph._lowering.scope import Scope
    from max_weights.graph._value import Node, TensorValue

__all__ = ["ELEMENTS", "repack", "write_elements"]

ELEMENTS = "elements"
"""The decoded elements, which replace blocks of every encoding; `numbers` and `scales` replace those of Q4_0."""
_WHOLE = (None, None, 1)


def repack(encoding: str, part: str, blocks: Buffer) -> Buffer:
    """Return a tensor that a model computes with instead of blocks.

    Args:
        encoding: The encoding of the blocks.
        part: Which tensor: `elements`, or `numbers` or `scales` of Q4_0.
        blocks: `[..., bytes]`.
    """
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
    """Lower decoding to float32 elements."""
    return write_elements(scope, node, node.inputs[0], node.attributes["encoding"])


@register_lowering("qmatmul")
def lower_product(scope: Scope, node: Node) -> ir.Value:
    """Lower the product with the elements, which is computed in float32."""
    (left, right), encoding = node.inputs, node.attributes["encoding"]
    inner, outer = left.shape[-1], right.shape[0]
    if not isinstance(inner, StaticDim):
        raise UnsupportedError(f"the product with packed weights needs a size that is known, not {inner}")
    rows = scope.rows(scope[left], int(inner))
    if encoding == "Q4_0" and right.node.op == "weight" and isinstance(outer, StaticDim):
        parts = [scope.repacked_part(right, encoding, part) for part in ("numbers", "scales")]
        options = {"K": int(inner), "N": int(outer), "bits": 4, "block_size": 32, "accuracy_level": 1}
        product = scope.add("MatMulNBits", [rows, *parts], domain=CONTRIB, **options)
    else:
        product = scope.add("Gemm", [rows, write_elements(scope, node, right, encoding)], transB=1)
    return scope.reshape(product, node.outputs[0].shape)


def write_elements(scope: Scope, node: Node, blocks: TensorValue, encoding: str) -> ir.Value:
    """Write the elements of blocks: of whole rows of a weight or an input, the same rows of its elements.

    Args:
        scope: The scope to write to.
        node: The operation that needs them.
        blocks: The blocks.
        encoding: Their encoding.

    Raises:
        UnsupportedError: the blocks are computed in another way.
    """
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
        f"{source.op} to the elements instead"
    )
