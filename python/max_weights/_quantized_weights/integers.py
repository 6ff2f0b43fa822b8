"""Weights that are integers of two to eight bits, packed: compressed-tensors, GPTQ, AWQ and ModelOpt's int4."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from max_weights._buffer import Buffer
from max_weights._core import shown
from max_weights._quantized_weights.group import FLOAT_SCALES, Group, Part, cut
from max_weights._quantized_weights.layout import Decode, Layout
from max_weights.dtype import DType
from max_weights.errors import ArgumentError
from max_weights.quantization import dequantize_groups

if TYPE_CHECKING:
    import numpy as np

__all__ = ["awq", "gptq", "is_awq", "packed_integers", "pairs_of_outputs", "shifted_bytes"]

_PACKED = "pack-quantized"
_WORD = 32
_AWQ_BITS = 4
_GPTQ_BITS = (2, 3, 4, 8)
# Layouts of methods that have several; those that are not here are for one kernel.
_LAYOUTS = {
    "gptq": ("gptq", "gptq_v2", None),
    "awq": ("gemm", None),
    "auto-round": ("auto_round", "auto_round:auto_gptq", "auto_round:gptqmodel", "auto_round:auto_awq", "auto", None),
}
_USUAL = 128
_SCALE_RULE = "quantized.scale-shape"
_ZEROS_RULE = "quantized.zero-point-shape"
_SHAPE_RULE = "quantized.shape"


def packed_integers(group: Group) -> Layout:
    """Return the layout of `weight_packed` of compressed-tensors: a row of dense bits for each output."""
    weight, scale = group.need("weight_packed", rule="quantized.scale-orphan"), group.need("weight_scale")
    group.require_dtype(scale, *FLOAT_SCALES)
    group.require_rank(weight, 2)
    if weight.dtype is DType.int8:
        return _nibbles(group, weight, scale)
    group.require_dtype(weight, DType.int32, DType.int8, DType.uint8)
    rows, words = weight.shape
    inputs, bits, spaced = _inputs_and_bits(group, weight, rows, words)
    size = _group_of_rows(group, scale, rows, inputs)
    zeros, index = group.get("weight_zero_point"), group.get("weight_g_idx")
    if zeros is not None:
        if zeros.dtype is not DType.int32:
            raise group.refused(zeros, _PACKED, "zero points that are not packed in int32 cannot be decoded")
        expected = (_words(rows, bits, spaced=spaced), -(-inputs // size))
        group.require_shape(zeros, expected, why=f"for {rows} rows of {bits} bits", rule=_ZEROS_RULE)
    elif group.declared.symmetric is False:
        group.need("weight_zero_point", rule="quantized.zero-point-missing")
    if index is not None:
        group.require_shape(index, (inputs,), why="for the inputs of the weight", rule=_SHAPE_RULE)
        if (_values(index) == -1).all():  # as it is written where the order was kept
            index = None

    def decode(dtype: DType, out: Any) -> Buffer:
        return dequantize_groups(
            weight.buffer(),
            _scales_of_rows(scale),
            layout="rows",
            bits=bits,
            shape=(rows, inputs),
            zero_points=None if zeros is None else zeros.buffer(),
            group_index=None if index is None else index.buffer().astype(DType.int32),
            group_size=size,
            dtype=dtype,
            out=out,
        )

    reordered = index is not None
    return Layout(_PACKED, bits, (rows, inputs), (1, size), decode, zeros is None, reordered)


def _words(count: int, bits: int, *, spaced: bool) -> int:
    """Return how many words so many integers take: as one string of bits, or with whole integers in each word."""
    return -(-count // (_WORD // bits)) if spaced else -(-count * bits // _WORD)


def _inputs_and_bits(group: Group, weight: Part, rows: int, words: int) -> tuple[int, int, bool]:
    """Return how many inputs a row has, of how many bits, and whether words have unused bits (as before 0.13)."""
    stored, said = group.get("weight_shape"), group.declared.bits
    if stored is None:
        if said is None or not 2 <= said <= 8:
            group.need("weight_shape", rule=_SHAPE_RULE)
            raise AssertionError  # it is missing
        return words * _WORD // said, said, False
    group.require_shape(stored, (2,), why="for the two dimensions of the weight", rule=_SHAPE_RULE)
    group.require_dtype(stored, DType.int64, DType.int32)
    stored_rows, inputs = (int(value) for value in _values(stored))
    if stored_rows == rows and inputs >= 0:
        ways = [
            (spaced, fitting)
            for spaced in (False, True)
            if (fitting := [bits for bits in range(2, 9) if _words(inputs, bits, spaced=spaced) == words])
        ]
        for spaced, fitting in ways:
            if said in fitting:
                return inputs, said, spaced
        for spaced, fitting in ways[:1]:
            if len(fitting) == 1:
                return inputs, fitting[0], spaced
            cause = f"rows of {inputs} integers in {words} words have {fitting[0]} to {fitting[-1]} bits"
            help = "say `num_bits` in the quantization_config beside the checkpoint"
            raise group.fault("quantized.bits", weight, cause, help)
    cause = f"it says {stored_rows} x {inputs}, which {rows} rows of {words} words cannot be"
    raise group.fault(_SHAPE_RULE, stored, cause)


def _group_of_rows(group: Group, scale: Part, rows: int, inputs: int) -> int:
    """Return how many inputs share a scale, where rows have scales of their own or all have one."""
    if scale.shape in ((), (1,)):
        return max(inputs, 1)
    size = None
    if len(scale.shape) == 2 and scale.shape[0] == rows:
        size = cut(inputs, scale.shape[1], group.declared.group_size, _USUAL)
    if size is None:
        cause = f"it has the shape {list(scale.shape)}; expected [{rows}, groups] for rows of {inputs} inputs"
        raise group.fault(_SCALE_RULE, scale, cause)
    return size


def _scales_of_rows(scale: Part) -> Buffer:
    values = scale.buffer()
    return values._contiguous().view(values.dtype, (1,)) if values.shape == () else values


def _nibbles(group: Group, weight: Part, scale: Part) -> Layout:
    """Return the layout of pairs of signed integers of four bits in bytes, the low half first."""
    rows, inputs = weight.shape[0], weight.shape[1] * 2
    size = _group_of_rows(group, scale, rows, inputs)
    if "weight_zero_point" in group:
        raise group.refused(weight, "int4", "int4 in bytes with zero points cannot be decoded")
    decode = _as_words(weight, scale, (rows, inputs), bits=4, size=size, flip=0x88, zeros=None)
    return Layout("int4", 4, (rows, inputs), (1, size), decode)


def pairs_of_outputs(group: Group) -> Layout:
    """Return the layout of ModelOpt's int4: signed, two outputs in a byte, the even one in its low half."""
    weight, scale = group.need("weight"), group.need("weight_scale")
    if len(weight.shape) < 2:
        raise group.fault(_SHAPE_RULE, weight, f"it has the shape {list(weight.shape)}; expected [out / 2, in]")
    *outer, pairs, inputs = weight.shape
    shape, groups = (*outer, 2 * pairs, inputs), scale.shape[-1] if scale.shape else 0
    size = cut(inputs, groups, group.declared.group_size, _USUAL)
    if size is None or scale.shape != (*shape[:-1], groups):
        cause = f"it has the shape {list(scale.shape)}; expected {[*shape[:-1], 'groups']} for rows of {inputs} inputs"
        raise group.fault(_SCALE_RULE, scale, cause.replace("'", ""))
    matrix = math.prod(shape[:-1]), inputs

    def words() -> Buffer:
        import numpy as np

        packed = weight.buffer()._contiguous().to_numpy().reshape(-1, inputs)
        # Pairs of inputs in place of pairs of outputs, without signs, and rows that end on a word.
        rows = np.zeros((packed.shape[0], 2, -(-inputs // 8) * 4), np.uint8)
        first, second = packed[:, ::2], packed[:, 1::2]
        rows[:, 0, : first.shape[1]] = first & 0x0F
        rows[:, 1, : first.shape[1]] = first >> 4
        rows[:, 0, : second.shape[1]] |= second << 4
        rows[:, 1, : second.shape[1]] |= second & 0xF0
        rows ^= 0x88
        return Buffer.of(rows.reshape(-1, rows.shape[2]).view("<i4"))

    def decode(dtype: DType, out: Any) -> Buffer:
        if out is not None:
            out = Buffer.of(out)
            if out.shape != shape:
                raise ArgumentError(f"out must have the shape {list(shape)}; it has {list(out.shape)}")
            out = out.view(out.dtype, matrix)
        scales = scale.buffer()._contiguous()
        scales = scales.view(scales.dtype, (matrix[0], groups))
        options: dict[str, Any] = {"layout": "rows", "bits": 4, "shape": matrix, "group_size": size}
        return dequantize_groups(words(), scales, dtype=dtype, out=out, **options).view(dtype, shape)

    return Layout("modelopt-int4", 4, shape, (1, size), decode)


def shifted_bytes(group: Group, weight: Part, scale: Part, zeros: Part, block: tuple[int, int]) -> Layout:
    """Return the layout of int8 with zero points."""
    group.require_rank(weight, 2)
    group.require_dtype(zeros, DType.int8)
    group.require_dtype(scale, *FLOAT_SCALES)
    group.require_shape(zeros, scale.shape, why="as its scale has", rule=_ZEROS_RULE)
    rows, inputs = weight.shape
    if block[0] not in (1, rows) or (block[0] != 1 and block[1] < inputs):
        raise group.refused(weight, "int8", "int8 with zero points for blocks of several rows cannot be decoded")
    decode = _as_words(weight, scale, (rows, inputs), bits=8, size=block[1], flip=0x80, zeros=zeros)
    return Layout("int8", 8, (rows, inputs), block, decode, False)


def _as_words(
    weight: Part, scale: Part, shape: tuple[int, int], *, bits: int, size: int, flip: int, zeros: Part | None
) -> Decode:
    """Return what decodes signed integers in bytes as words of rows, whose integers have no sign."""
    rows, inputs = shape

    import numpy as np

    def words(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        spare = -values.shape[1] % 4
        unsigned = np.bitwise_xor(values.view(np.uint8), np.uint8(flip))
        return np.pad(unsigned, ((0, 0), (0, spare))).view("<i4") if spare else unsigned.view("<i4")

    def decode(dtype: DType, out: Any) -> Buffer:
        values: np.ndarray[Any, Any] = scale.buffer().astype(DType.float32).to_numpy().reshape(-1)
        values = values.reshape(-1, max(values.size // max(rows, 1), 1))
        scales, packed_zeros = np.ascontiguousarray(np.broadcast_to(values, (rows, values.shape[1]))), None
        if zeros is not None:
            of_rows = np.broadcast_to(_values(zeros).reshape(values.shape), scales.shape).T
            packed_zeros = Buffer.of(np.ascontiguousarray(words(np.ascontiguousarray(of_rows)).T))  # along the rows
        return dequantize_groups(
            Buffer.of(words(weight.buffer()._contiguous().to_numpy())),
            Buffer.of(scales),
            layout="rows",
            bits=bits,
            shape=(rows, inputs),
            zero_points=packed_zeros,
            group_size=size,
            dtype=dtype,
            out=out,
        )

    return decode


def is_awq(group: Group) -> bool:
    """Return whether `qweight` is packed along the outputs, as AWQ does it, and not along the inputs."""
    weight, scale = group.get("qweight"), group.get("scales")
    if weight is None or scale is None or "g_idx" in group or len(weight.shape) != 2 or len(scale.shape) != 2:
        return False
    return weight.shape[1] != scale.shape[1] and weight.shape[1] * _WORD == scale.shape[1] * _AWQ_BITS


def gptq(group: Group) -> Layout:
    """Return the layout of GPTQ: columns of dense bits, one for each output."""
    weight, scale, zeros = _integers(group)
    rows, outputs = weight.shape
    groups = scale.shape[0]
    group.require_shape(scale, (groups, outputs), why="for the columns of qweight")
    index, declared = group.get("g_idx"), group.declared
    bits = None
    if index is not None:
        group.require_rank(index, 1)
        bits = _ratio(rows, index.shape[0])
    bits = bits or _ratio(zeros.shape[1], outputs) or declared.bits
    if bits not in _GPTQ_BITS:
        cause = f"its shape {list(weight.shape)} is not that of integers of 2, 3, 4 or 8 bits for these scales"
        raise group.fault("quantized.bits", weight, cause)
    inputs = rows * _WORD // bits
    size = _group_size(group, scale, inputs)
    expected = (groups, -(-outputs * bits // _WORD))
    group.require_shape(zeros, expected, why=f"for {groups} groups of {outputs} outputs", rule=_ZEROS_RULE)
    if index is not None:
        group.require_dtype(index, DType.int32, DType.int64)
        group.require_shape(index, (inputs,), why=f"for {inputs} inputs of {bits} bits", rule=_SHAPE_RULE)
    elif declared.reordered and groups > 1:
        group.need("g_idx", rule="quantized.order-missing")
    is_second = declared.layout == "gptq_v2" or (
        declared.method == "auto-round" and "auto_gptq" not in (declared.layout or "")
    )

    def decode(dtype: DType, out: Any) -> Buffer:
        return dequantize_groups(
            weight.buffer(),
            scale.buffer(),
            layout="gptq",
            bits=bits,
            shape=(outputs, inputs),
            zero_points=zeros.buffer(),
            group_index=None if index is None or not _is_reordered(index, size) else index.buffer().astype(DType.int32),
            group_size=size,
            zero_point_offset=0 if is_second else 1,
            dtype=dtype,
            out=out,
        )

    reordered = index is not None and groups > 1 and _is_reordered(index, size)
    scheme = "gptq_v2" if is_second else "gptq"
    return Layout(scheme, bits, (outputs, inputs), (1, size), decode, declared.symmetric, reordered)


def awq(group: Group) -> Layout:
    """Return the layout of AWQ: eight outputs in a word, in the order of its kernel."""
    weight, scale, zeros = _integers(group)
    inputs, words = weight.shape
    outputs, groups = words * _WORD // _AWQ_BITS, scale.shape[0]
    group.require_shape(scale, (groups, outputs), why="for the columns of qweight and 4 bits")
    group.require_shape(zeros, (groups, words), why="for as many groups as there are scales", rule=_ZEROS_RULE)
    size = _group_size(group, scale, inputs)

    def decode(dtype: DType, out: Any) -> Buffer:
        return dequantize_groups(
            weight.buffer(),
            scale.buffer(),
            layout="awq",
            bits=_AWQ_BITS,
            shape=(outputs, inputs),
            zero_points=zeros.buffer(),
            group_size=size,
            dtype=dtype,
            out=out,
        )

    return Layout("awq", _AWQ_BITS, (outputs, inputs), (1, size), decode, group.declared.symmetric)


def _integers(group: Group) -> tuple[Part, Part, Part]:
    """Return the integers, scales and zero points of GPTQ or AWQ."""
    weight, scale = group.need("qweight", rule="quantized.scale-orphan"), group.need("scales")
    zeros, layout = group.need("qzeros", rule="quantized.zero-point-missing"), group.declared.layout
    if layout not in _LAYOUTS.get(group.declared.method or "", (layout,)):
        method = shown(group.declared.method or "")
        raise group.refused(weight, method, f"the layout '{shown(layout or '')}' of {method} cannot be decoded")
    for part in (weight, zeros):
        group.require_dtype(part, DType.int32)
    group.require_dtype(scale, *FLOAT_SCALES)
    for part in (weight, scale, zeros):
        group.require_rank(part, 2)
    return weight, scale, zeros


def _group_size(group: Group, scale: Part, inputs: int) -> int:
    size = cut(inputs, scale.shape[0], group.declared.group_size, _USUAL)
    if size is None:
        cause = f"it has {scale.shape[0]} groups, which {inputs} inputs cannot be cut into"
        raise group.fault(_SCALE_RULE, scale, cause)
    return size


def _ratio(words: int, elements: int) -> int | None:
    """Return how many bits elements have that fill so many words."""
    bits, rest = divmod(words * _WORD, max(elements, 1))
    return bits if rest == 0 and bits in _GPTQ_BITS else None


def _values(part: Part) -> np.ndarray[Any, Any]:
    return part.buffer().to_numpy()


def _is_reordered(index: Part, size: int) -> bool:
    import numpy as np

    values = _values(index)
    return not np.array_equal(values, np.arange(len(values)) // size)
