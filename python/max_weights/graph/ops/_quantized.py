"""Matrices in packed blocks: products with them, and their elements as floats."""

from __future__ import annotations

from typing import TYPE_CHECKING

import max_weights.graph._infer as infer
from max_weights._dim import Dim, StaticDim
from max_weights._dtype import DType
from max_weights._quantization import QuantizationConfig, QuantizationEncoding
from max_weights._shape import listed
from max_weights.errors import UnsupportedError
from max_weights.graph._call_site import graph_error
from max_weights.graph._value import TensorValue
from max_weights.graph.ops._operands import converted, like, operand, record, require_float, require_one_device

if TYPE_CHECKING:
    from max_weights.graph._value import TensorValueLike

_NAMES = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")


def qmatmul(
    encoding: QuantizationEncoding | str,
    config: QuantizationConfig | None,
    lhs: TensorValueLike,
    *rhs: TensorValueLike,
) -> TensorValue:
    """Compute `lhs @ m.T`, where `m` is a matrix of floats in packed blocks.

    Args:
        encoding: How they are packed: Q4_0, Q4_1, Q8_0, Q4_K, Q5_K or Q6_K.
        config: Must be `None`; MAX uses it for GPTQ.
        lhs: `[..., k]`, floats, which are converted to float32.
        *rhs: The matrix `[n, k]` as `[n, bytes]` of uint8, where each row is whole blocks.

    Returns:
        `[..., n]`, of the dtype of `lhs`.

    Raises:
        UnsupportedError: GPTQ (a NotImplementedError).
        TypeError: `rhs` is not a matrix of uint8, or a row has no known size.
        GraphError: another encoding, or shapes that do not fit (a ValueError).
    """
    del config
    kind = _kind("qmatmul", encoding)
    value, matrices = operand("qmatmul", lhs), [operand("qmatmul", matrix) for matrix in rhs]
    if len(matrices) != 1:
        raise graph_error("qmatmul", f"a matrix of {kind.value} must be one tensor, found {len(matrices)}")
    (matrix,) = matrices
    require_float("qmatmul", value)
    require_one_device("qmatmul", [value, matrix])
    if matrix.rank != 2:
        raise TypeError(f"qmatmul: the matrix must be [n, bytes], found {matrix.type}")
    columns, shape = _elements("qmatmul", kind, matrix), value.shape
    if not shape or shape[-1] != columns:
        inner = infer.differ(shape[-1], columns) if shape else "a scalar has no axis to sum over"
        raise graph_error(
            "qmatmul",
            f"the shapes {listed(shape)} and {listed(matrix.shape)} do not multiply: a row of {matrix.shape[-1]} bytes "
            f"of {kind.value} is {columns} elements, and {inner}",
        )
    wide = converted(value, DType.float32)
    product = record("qmatmul", [wide, matrix], like(wide, [*shape[:-1], matrix.shape[0]]), encoding=kind.value)
    return converted(product, value.dtype)


def dequantize(encoding: QuantizationEncoding | str, quantized: TensorValueLike) -> TensorValue:
    """Decode the elements of packed blocks.

    Args:
        encoding: How they are packed: Q4_0, Q4_1, Q8_0, Q4_K, Q5_K or Q6_K.
        quantized: `[..., bytes]` of uint8, where each row is whole blocks. To be run, it must be a weight, an input, or
            whole rows of one, taken by `gather` or a slice.

    Returns:
        float32, `[..., bytes / bytes of a block * elements of a block]`.

    Raises:
        UnsupportedError: GPTQ (a NotImplementedError).
        TypeError: the blocks are not uint8, or a row has no known size.
        GraphError: another encoding, or a row that ends within a block (a ValueError).
    """
    kind, value = _kind("dequantize", encoding), operand("dequantize", quantized)
    shape = [*value.shape[:-1], _elements("dequantize", kind, value)]
    return record("dequantize", [value], like(value, shape, DType.float32), encoding=kind.value)


def _kind(op: str, encoding: QuantizationEncoding | str) -> QuantizationEncoding:
    kind = QuantizationEncoding(encoding)
    if kind is QuantizationEncoding.GPTQ:
        raise UnsupportedError(
            f"{op}: GPTQ has its scales and zero points in separate tensors, which this version cannot compute with; "
            f"convert the weights to one of {', '.join(_NAMES)}"
        )
    if kind.value not in _NAMES:
        raise graph_error(
            op,
            f"blocks of {kind.value} cannot be computed with, but those of {', '.join(_NAMES)} can; convert them to "
            "floats when they are loaded, with `quantization.dequantize`",
        )
    return kind


def _elements(op: str, kind: QuantizationEncoding, blocks: TensorValue) -> Dim:
    """Return the number of elements in a row of bytes."""
    if blocks.dtype is not DType.uint8 or not blocks.rank:
        raise TypeError(f"{op}: packed blocks must be uint8 bytes, found {blocks.type}")
    size = blocks.shape[-1]
    if not isinstance(size, StaticDim):
        raise TypeError(f"{op}: a row of packed blocks must have a known size, found {listed(blocks.shape)}")
    if size.dim % kind.block_size:
        raise graph_error(
            op,
            f"a block of {kind.value} has {kind.block_size} bytes, and {size} in {listed(blocks.shape)} is not a "
            "multiple",
        )
    return size // kind.block_size * kind.elements_per_block
