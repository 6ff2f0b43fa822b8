"""Elements in blocks that share scales: the packed blocks of GGUF, and the scaled fp8 and fp4 of other checkpoints."""

from __future__ import annotations

from typing import Any

from max_weights import _core
from max_weights._core import Buffer
from max_weights.driver.doors import as_buffer
from max_weights.dtype import DType
from max_weights.graph.quantization import QuantizationEncoding


def scale_blocks(
    data: Any,
    scales: Any,
    block: tuple[int, int] = (128, 128),
    *,
    dtype: DType | str = DType.bfloat16,
    saturate: bool = False,
) -> Buffer:
    """`data × scale of its block`, computed in float32 and rounded once.

    Serves fp8 with float32 scales for 128 x 128 blocks, MXFP4 (fp4 pairs, float8_e8m0fnu scales, `block=(1, 32)`),
    NVFP4 (float8_e4m3fn scales, `block=(1, 16)`), int8 with a scale for each row. Runs on all cores.

    Args:
        data: The elements, shape [..., rows, cols]: a Buffer, a weight, an array, or any DLPack tensor.
        scales: One for each block, shape [..., ceil(rows / block[0]), ceil(cols / block[1])]; the last blocks of a row
            or
            column may be ragged.
        block: Rows and columns of a block.
        dtype: Of the result: a floating-point type.
        saturate: Give the largest finite value instead of infinity or NaN.

    Raises:
        ValueError: the shapes of data and scales do not belong together.
        UnsupportedError: a dtype that float32 does not hold exactly.
    """
    return _core.scale_blocks(as_buffer(data), as_buffer(scales), block=block, dtype=dtype, saturate=saturate)


def quantize(data: Any, encoding: QuantizationEncoding | str) -> Buffer:
    """Values as packed blocks, byte for byte as gguf-py packs them.

    Args:
        data: The values, of any dtype that converts to float32, shape [..., cols]; cols is a multiple of the encoding's
            elements per block. A Buffer, a weight, an array, or any DLPack tensor.
        encoding: Q8_0, Q5_1, Q5_0, Q4_1 or Q4_0: those that need no search.

    Returns:
        The blocks: uint8, shape [..., cols / elements per block * bytes per block].

    Raises:
        UnsupportedError: an encoding that can be decoded, but not made.
        ValueError: a row is not whole blocks.
    """
    return _core.quantize(as_buffer(data).astype(DType.float32), QuantizationEncoding(encoding))


def dequantize(
    blocks: Any, encoding: QuantizationEncoding | str, dtype: DType | str = DType.float32, *, out: Any = None
) -> Buffer:
    """The values of packed blocks, bit for bit as gguf-py computes them, on all cores.

    A range of rows is decoded without the rest: `dequantize(weight.data().data[10:20], encoding)`.

    Args:
        blocks: Whole blocks, uint8, shape [..., bytes]: a Buffer, a weight, an array, or any DLPack tensor.
        encoding: How they are packed.
        dtype: float32; or float16 or bfloat16, rounded once from it.
        out: A contiguous Buffer, array or DLPack tensor of the result's shape and dtype, to write to.

    Returns:
        The values, shape [..., bytes / bytes per block * elements per block].

    Raises:
        UnsupportedError: another dtype; decode to float32, then cast.
        ValueError: the bytes are not whole blocks, or `out` does not fit.
    """
    encoding, buffer = QuantizationEncoding(encoding), as_buffer(blocks)
    *rows, row = buffer.shape
    shape = [*rows, row // encoding.block_size * encoding.elements_per_block]
    return _core.dequantize(buffer, encoding, dtype, shape, out=out)
