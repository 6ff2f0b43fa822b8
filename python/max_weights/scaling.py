"""Dequantisation by block scales: the primitive that fp8 and fp4 checkpoints need."""

from __future__ import annotations

import sys
from typing import Any

from max_weights import _core
from max_weights._core import Buffer
from max_weights.dtype import DType


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
        data: The elements, shape [..., rows, cols]: a Buffer, a WeightData, an array, or any DLPack tensor.
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


def as_buffer(value: Any) -> Buffer:
    """A Buffer over the memory of anything that has a door: a Buffer, a WeightData, an array, a DLPack tensor."""
    if isinstance(value, Buffer):
        return value
    to_buffer = getattr(value, "to_buffer", None)
    if to_buffer is not None:
        buffer: Buffer = to_buffer()
        return buffer
    numpy = sys.modules.get("numpy")  # an array cannot come from a NumPy that was never imported
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        return Buffer.from_numpy(value)
    return Buffer.from_dlpack(value)
