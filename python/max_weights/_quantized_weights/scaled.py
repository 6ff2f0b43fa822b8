"""Weights that are numbers times the scale of their block: FP8, MXFP8, MXFP6, MXFP4, NVFP4 and int8.

`scale_blocks` decodes all of them, from the tensors where they are. Only scales that are not a matrix yet, or of which
there are two, are put together first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from max_weights._buffer import Buffer
from max_weights._quantized_weights.group import FLOAT_SCALES, Group, Part, blocks_of
from max_weights._quantized_weights.integers import shifted_bytes
from max_weights._quantized_weights.layout import Decode, Layout
from max_weights._quantized_weights.names import BARE, FLOAT8, WEIGHT
from max_weights.dtype import DType
from max_weights.errors import ArgumentError
from max_weights.quantization import scale_blocks

__all__ = ["mxfp4_of_blocks", "nvfp4", "packed_floats", "scaled"]

_EXPONENTS = (DType.uint8, DType.float8_e8m0fnu)
_NVFP4_GROUP = 16
_MX_GROUP = 32
_BLOCK_BYTES = 16
# Where one scale is for all rows, so many are decoded as a block, so that all cores have some.
_ROWS = 128

# One scale for each block of a matrix is also what a smaller tensor of scales stands for.
_Scales = Callable[[], Buffer]


def scaled(group: Group) -> Layout:
    """Return the layout of a weight of eight bits, or of pairs of FP4, with scales beside it."""
    weight = group.need(WEIGHT, BARE)
    scale = group.need("weight_scale_inv", "_scale_inv", "weight_scale", "scale", "qscale_weight")
    group.require_dtype(scale, *FLOAT_SCALES, *_EXPONENTS)
    is_exponent = scale.dtype in _EXPONENTS
    if weight.dtype is DType.uint8 and is_exponent:  # as ModelOpt writes MXFP4
        return _fp4(group, weight, scale, "mxfp4", _MX_GROUP)
    if weight.dtype is DType.int8 and scale.name != f"{group.name}.weight_scale":
        *outer, columns = weight.shape or (0,)
        if scale.shape == (*outer, -(-2 * columns // _MX_GROUP)):
            return _fp4(group, weight, scale, "mxfp4" if is_exponent else "fp4", _MX_GROUP)
    group.require_dtype(weight, *FLOAT8, DType.int8)
    matrix = _matrix(weight.shape, scale)
    block, step, scales = _grid(group, matrix, weight.shape, scale)
    is_mx = is_exponent and block == (1, _MX_GROUP)
    scheme = "int8" if weight.dtype is DType.int8 else "mxfp8" if is_mx else "fp8"
    zeros = group.get("weight_zero_point")
    if zeros is None:
        return Layout(scheme, 8, weight.shape, block, _decoder(weight, None, matrix, scales, step, weight.shape))
    if weight.dtype is not DType.int8:
        raise group.refused(zeros, scheme, "float8 with zero points cannot be decoded")
    return shifted_bytes(group, weight, scale, zeros, block)


def nvfp4(group: Group) -> Layout:
    """Return the layout of ModelOpt's NVFP4: the scale of all is a factor."""
    weight, scale = group.need(WEIGHT, BARE), group.need("weight_scale")
    group.require_dtype(weight, DType.uint8)
    group.require_dtype(scale, *FLOAT8)
    return _nvfp4(group, weight, scale, group.need("weight_scale_2"), divides=False)


def packed_floats(group: Group) -> Layout:
    """Return the layout of NVFP4, MXFP4 or MXFP6 of compressed-tensors, whose NVFP4 is divided by the scale of all."""
    weight, scale = group.need("weight_packed", rule="quantized.scale-orphan"), group.need("weight_scale")
    if scale.dtype in FLOAT8:
        return _nvfp4(group, weight, scale, group.need("weight_global_scale"), divides=True)
    group.require_dtype(scale, *_EXPONENTS, *FLOAT8)
    of_six = scale.shape and weight.shape == (*scale.shape[:-1], scale.shape[-1] * _MX_GROUP * 6 // 8)
    if group.declared.bits == 6 or (of_six and group.declared.bits is None):
        return _packed(group, weight, scale, "mxfp6", DType.float6_e2m3fn, _MX_GROUP)
    return _fp4(group, weight, scale, "mxfp4", _MX_GROUP)


def mxfp4_of_blocks(group: Group) -> Layout:
    """Return the layout of gpt-oss: bytes [..., out, in / 32, 16], and an exponent for each 32."""
    blocks, scale = group.need("_blocks", rule="quantized.scale-orphan"), group.need("_scales")
    group.require_dtype(blocks, DType.uint8)
    group.require_dtype(scale, *_EXPONENTS)
    *outer, count, size = blocks.shape if len(blocks.shape) >= 3 else (0, 0, 0)
    if size != _BLOCK_BYTES:
        cause = f"it has the shape {list(blocks.shape)}; expected [..., out, in / 32, 16], blocks of 32 elements"
        raise group.fault("quantized.shape", blocks, cause)
    group.require_shape(scale, blocks.shape[:-1], why="for one scale of each block")
    shape, block = (*outer, count * _MX_GROUP), (1, _MX_GROUP)
    return Layout("mxfp4", 4, shape, block, _decoder(blocks, DType.float4_e2m1fn, shape, _whole(scale), block))


def _fp4(group: Group, weight: Part, scale: Part, scheme: str, size: int) -> Layout:
    """Return the layout of rows of pairs, low half first, with a scale for each group of a row."""
    return _packed(group, weight, scale, scheme, DType.float4_e2m1fn, size)


def _packed(group: Group, weight: Part, scale: Part, scheme: str, dtype: DType, size: int) -> Layout:
    """Return the layout of rows of a float of four or six bits, the lowest bits first, with a scale for each group."""
    bits = dtype.size_in_bits
    shape = _shape_of_packed(group, weight, scale, size, bits)
    block = (1, size)
    return Layout(scheme, bits, shape, block, _decoder(weight, dtype, shape, _whole(scale), block))


def _nvfp4(group: Group, weight: Part, scale: Part, whole: Part, *, divides: bool) -> Layout:
    group.require_dtype(whole, *FLOAT_SCALES)
    shape = _shape_of_packed(group, weight, scale, _NVFP4_GROUP, 4)
    outer = shape[:-2]
    shapes = [(), (1,), *([outer, (*outer, 1), (*outer, 1, 1)] if outer else [])]
    group.require_shape(whole, *shapes, why="for the one scale of a whole weight")

    def scales() -> Buffer:
        # As the libraries do it: the two scales make one, in float32, by which elements are multiplied.
        made = Buffer.of(scale.buffer()).astype(DType.float32).to_numpy()
        of_all = whole.buffer().astype(DType.float32).to_numpy()
        of_all = of_all.reshape((*outer, 1, 1) if of_all.size > 1 else ())
        import numpy as np

        with np.errstate(all="ignore"):  # a scale of 0 gives what the libraries give
            (np.divide if divides else np.multiply)(made, of_all, out=made)
        return Buffer.of(made)

    block = (1, _NVFP4_GROUP)
    return Layout("nvfp4", 4, shape, block, _decoder(weight, DType.float4_e2m1fn, shape, scales, block))


def _shape_of_packed(group: Group, weight: Part, scale: Part, size: int, bits: int) -> tuple[int, ...]:
    group.require_dtype(weight, DType.uint8, DType.int8)
    *outer, columns = weight.shape or (0,)
    inputs, rest = divmod(8 * columns, bits)
    if not outer or rest:
        cause = f"it has the shape {list(weight.shape)}; expected [out, in {'/ 2' if bits == 4 else '* 3 / 4'}]"
        raise group.fault("quantized.shape", weight, cause)
    why = f"for rows of {inputs} elements in groups of {size}"
    group.require_shape(scale, (*outer, -(-inputs // size)), why=why)
    return (*outer, inputs)


def _matrix(shape: tuple[int, ...], scale: Part) -> tuple[int, ...]:
    """Return the shape to decode a weight in: large matrices where one scale is for all, as of a convolution."""
    if math.prod(scale.shape) != 1 or len(shape) == 2:
        return shape
    if not shape or shape[-1] >= _ROWS:
        return math.prod(shape[:-1]), math.prod(shape[-1:])
    return shape[0], math.prod(shape[1:])


def _grid(
    group: Group, matrix: tuple[int, ...], shape: tuple[int, ...], scale: Part
) -> tuple[tuple[int, int], tuple[int, int], _Scales]:
    """Return the block of a weight that has one scale, and the blocks that it is decoded in, and their scales."""
    found = scale.shape
    if len(matrix) < 2:
        cause = f"it has the shape {list(found)}, and the weight {list(shape)}; expected one scale"
        raise group.fault("quantized.scale-shape", scale, cause)
    *outer, rows, columns = matrix
    columns = max(columns, 1)
    if math.prod(found) == 1 or (outer and found in (tuple(outer), (*outer, 1, 1))):

        def spread() -> Buffer:
            import numpy as np

            values = _numbers(scale).astype(DType.float32).to_numpy()
            fronts = tuple(outer) if values.size > 1 else ()
            grid = (*outer, -(-rows // _ROWS), 1)
            return Buffer.of(np.ascontiguousarray(np.broadcast_to(values.reshape((*fronts, 1, 1)), grid)))

        return (max(rows, 1), columns), (_ROWS, columns), spread
    if found == (*outer, rows):
        return (1, columns), (1, columns), _whole(scale, (*outer, rows, 1))
    said = group.declared.block
    if not outer and len(found) == 4 and found[1] == found[3] == 1:  # dimensions that ModelOpt leaves
        block = blocks_of((rows, columns), (found[0], found[2]), said)
        if block is not None:
            return block, block, _whole(scale, (found[0], found[2]))
    if len(found) == len(matrix) and found[:-2] == tuple(outer):
        size = group.declared.group_size
        if said is None and size is not None and size > 0 and found[-2] == rows:
            said = (1, size)
        block = blocks_of((rows, columns), found, said)
        if block is not None:
            return block, block, _whole(scale)
    cause = f"it has the shape {list(found)}, which fits neither blocks nor rows nor all of a weight {list(shape)}"
    raise group.fault("quantized.scale-shape", scale, cause)


def _whole(scale: Part, shape: tuple[int, ...] | None = None) -> _Scales:
    """Return what takes scales that are a matrix already, if they are viewed so."""

    def scales() -> Buffer:
        values = _numbers(scale)
        return values if shape is None else values._contiguous().view(values.dtype, shape)

    return scales


def _numbers(scale: Part) -> Buffer:
    """Return scales as numbers: bytes are exponents."""
    values = scale.buffer()
    return values._contiguous().view(DType.float8_e8m0fnu) if values.dtype is DType.uint8 else values


def _decoder(
    weight: Part,
    dtype: DType | None,
    matrix: tuple[int, ...],
    scales: _Scales,
    block: tuple[int, int],
    shape: tuple[int, ...] | None = None,
) -> Decode:
    """Return what multiplies the elements of a part, viewed as a dtype and a matrix, by the scales of these blocks."""
    shape = shape or matrix

    def decode(to: DType, out: Any) -> Buffer:
        data = weight.buffer()
        if dtype is not None or matrix != shape:
            data = data._contiguous().view(dtype or data.dtype, matrix)
        if matrix == shape:
            return scale_blocks(data, scales(), block, dtype=to, out=out)
        if out is not None:
            out = Buffer.of(out)
            if out.shape != shape:
                raise ArgumentError(f"out must have the shape {list(shape)}; it has {list(out.shape)}")
            out = out.view(out.dtype, matrix)
        return scale_blocks(data, scales(), block, dtype=to, out=out).view(to, shape)

    return decode
