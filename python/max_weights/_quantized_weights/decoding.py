"""The values of a quantized weight: its parts, put together as the layout says, on their way to the kernels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, cast

from max_weights import _core
from max_weights._buffer import Buffer
from max_weights.dtype import DType
from max_weights.errors import ArgumentError
from max_weights.quantization import dequantize_groups, scale_blocks

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from max_weights._buffer import DLPackArray
    from max_weights._core import QuantizedLayout, WeightsNode

    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["decode"]

# What bitsandbytes divides int8 by is 127, as a factor.
_ROW_FACTOR = 7.874015718698502e-3
_SIGNED_BYTES = (*range(128), *range(-128, 0))
# What makes a signed integer one without a sign.
_FLIPS = {"nibbles": 0x88, "bytes": 0x80}


def decode(layout: QuantizedLayout, parts: Mapping[str, WeightsNode], dtype: DType, out: DLPackArray | None) -> Buffer:
    """Decode a weight to a dtype, into `out` if it is not `None`."""
    if layout.way in ("gptq", "awq", "rows"):
        return _groups(layout, parts, dtype, out)
    if layout.way in _FLIPS:
        return _signed(layout, parts, dtype, out)
    if layout.way in ("nf4", "fp4", "int8"):
        return _codes(layout, parts, dtype, out)
    if layout.matrix != layout.shape and out is not None:
        given = Buffer.of(out)
        if given.shape != layout.shape:
            raise ArgumentError(f"out must have the shape {list(layout.shape)}; it has {list(given.shape)}")
        out = given.view(given.dtype, layout.matrix)
    decoded = (_pairs if layout.way == "pairs" else _blocks)(layout, parts, dtype, out)
    return decoded if layout.matrix == layout.shape else decoded.view(dtype, layout.shape)


def _buffer(node: WeightsNode) -> Buffer:
    return node.data().to_buffer()


def _blocks(layout: QuantizedLayout, parts: Mapping[str, WeightsNode], dtype: DType, out: DLPackArray | None) -> Buffer:
    """Elements times the scales of their blocks."""
    data = _buffer(parts["packed"])
    if layout.dtype is not None or layout.matrix != layout.shape:
        data = data._contiguous().view(layout.dtype or data.dtype, layout.matrix)
    return scale_blocks(data, _scales(layout, parts), layout.step, dtype=dtype, out=out)


def _scales(layout: QuantizedLayout, parts: Mapping[str, WeightsNode]) -> Buffer:
    """The scales of the blocks that a weight is decoded in."""
    import numpy as np

    scales = _buffer(parts["scales"])
    if scales.dtype is DType.uint8:  # bytes are exponents
        scales = scales._contiguous().view(DType.float8_e8m0fnu)
    if layout.way == "blocks":
        return scales if layout.grid is None else scales._contiguous().view(scales.dtype, layout.grid)
    numbers: Array = scales.astype(DType.float32).to_numpy()
    *outer, rows, _ = layout.matrix
    if layout.way == "spread":
        fronts = tuple(outer) if numbers.size > 1 else ()
        grid = (*outer, -(-rows // layout.step[0]), 1)
        return Buffer.of(np.ascontiguousarray(np.broadcast_to(numbers.reshape((*fronts, 1, 1)), grid)))
    # As the libraries do it: the two scales make one, in float32, by which elements are multiplied.
    of_all: Array = _buffer(parts["global_scale"]).astype(DType.float32).to_numpy()
    of_all = of_all.reshape((*outer, 1, 1) if of_all.size > 1 else ())
    with np.errstate(all="ignore"):  # a scale of 0 gives what the libraries give
        return Buffer.of((np.divide if layout.way == "divided" else np.multiply)(numbers, of_all))


def _groups(layout: QuantizedLayout, parts: Mapping[str, WeightsNode], dtype: DType, out: DLPackArray | None) -> Buffer:
    """Integers in words, with a scale for each group of inputs."""
    scales, zeros = _buffer(parts["scales"]), parts.get("zero_points")
    return dequantize_groups(
        _buffer(parts["packed"]),
        scales if scales.shape else scales._contiguous().view(scales.dtype, (1,)),
        layout=cast("Literal['rows', 'gptq', 'awq']", layout.way),
        bits=layout.bits,
        shape=_matrix(layout),
        zero_points=None if zeros is None else _buffer(zeros),
        group_index=_buffer(parts["group_index"]).astype(DType.int32) if layout.is_indexed else None,
        group_size=layout.block[1],
        zero_point_offset=layout.zero_point_offset,
        dtype=dtype,
        out=out,
    )


def _signed(layout: QuantizedLayout, parts: Mapping[str, WeightsNode], dtype: DType, out: DLPackArray | None) -> Buffer:
    """Signed integers in bytes, as words of rows whose integers have no sign."""
    import numpy as np

    rows, _ = layout.shape

    def words(values: Array) -> Array:
        unsigned = np.bitwise_xor(values.view(np.uint8), np.uint8(_FLIPS[layout.way]))
        return np.pad(unsigned, ((0, 0), (0, -unsigned.shape[1] % 4))).view("<i4")

    values: Array = _buffer(parts["scales"]).astype(DType.float32).to_numpy().reshape(-1)
    values = values.reshape(-1, max(values.size // max(rows, 1), 1))
    scales, zeros = np.ascontiguousarray(np.broadcast_to(values, (rows, values.shape[1]))), None
    if layout.way == "bytes":
        points = _buffer(parts["zero_points"]).to_numpy().reshape(values.shape)
        along_rows = np.ascontiguousarray(np.broadcast_to(points, scales.shape).T)
        zeros = Buffer.of(np.ascontiguousarray(words(along_rows).T))
    return dequantize_groups(
        Buffer.of(words(_buffer(parts["packed"])._contiguous().to_numpy())),
        Buffer.of(scales),
        layout="rows",
        bits=layout.bits,
        shape=_matrix(layout),
        zero_points=zeros,
        group_size=layout.block[1],
        dtype=dtype,
        out=out,
    )


def _pairs(layout: QuantizedLayout, parts: Mapping[str, WeightsNode], dtype: DType, out: DLPackArray | None) -> Buffer:
    """Two outputs in a byte, signed integers of four bits: they become two inputs in a byte, without signs."""
    import numpy as np

    inputs = layout.shape[-1]
    packed: Array = _buffer(parts["packed"])._contiguous().to_numpy().reshape(-1, inputs)
    rows = np.zeros((packed.shape[0], 2, -(-inputs // 8) * 4), np.uint8)  # they end on a word
    first, second = packed[:, ::2], packed[:, 1::2]
    rows[:, 0, : first.shape[1]] = first & 0x0F
    rows[:, 1, : first.shape[1]] = first >> 4
    rows[:, 0, : second.shape[1]] |= second << 4
    rows[:, 1, : second.shape[1]] |= second & 0xF0
    rows ^= 0x88
    scales = _buffer(parts["scales"])._contiguous()
    return dequantize_groups(
        Buffer.of(rows.reshape(-1, rows.shape[2]).view("<i4")),
        scales if layout.grid is None else scales.view(scales.dtype, layout.grid),
        layout="rows",
        bits=layout.bits,
        shape=(math.prod(layout.matrix[:-1]), inputs),
        group_size=layout.block[1],
        dtype=dtype,
        out=out,
    )


def _codes(layout: QuantizedLayout, parts: Mapping[str, WeightsNode], dtype: DType, out: DLPackArray | None) -> Buffer:
    """Codes of bitsandbytes, whose values are those of its own table and not of that in the file."""
    scales, table, factor = _buffer(parts["scales"]), layout.table or _SIGNED_BYTES, None
    if layout.nested is not None:
        block, offset = layout.nested
        scales = _core.dequantize_codebook(
            scales,
            _buffer(parts["nested_codebook"]),
            _buffer(parts["nested_scales"]).astype(DType.float32),
            bits=8,
            block=block,
            shape=scales.shape,
            offset=offset,
            dtype=DType.float32,
        )
    if layout.table is None:
        factor = _ROW_FACTOR
    import numpy as np

    return _core.dequantize_codebook(
        _buffer(parts["packed"]),
        Buffer.of(np.array(table, np.float32)),
        scales.astype(DType.float32),
        bits=layout.bits,
        block=max(layout.block[1], 1),
        shape=layout.shape,
        factor=factor,
        dtype=dtype,
        out=out,
    )


def _matrix(layout: QuantizedLayout) -> tuple[int, int]:
    rows, columns = layout.shape
    return rows, columns
