"""Weights of bitsandbytes: NF4 and FP4, whose scales may be quantized as well, and int8 with a scale for each row."""

from __future__ import annotations

import functools
import json
import math
from typing import TYPE_CHECKING, Any

from max_weights import _core
from max_weights._buffer import Buffer
from max_weights._core import shown
from max_weights._quantized_weights.group import FLOAT_SCALES, Group, Part
from max_weights._quantized_weights.layout import Layout
from max_weights._quantized_weights.names import WEIGHT
from max_weights.dtype import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["four_bits", "int8"]

# The library decodes by these, and not by the table of the file, which it only checks the kind by.
_TABLES = {
    "nf4": (
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
        *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
        *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941),
        *(0.7229568362236023, 1.0),
    ),
    "fp4": (
        *(0.0, 0.0625 / 12, 8 / 12, 1.0, 4 / 12, 6 / 12, 2 / 12, 3 / 12),
        *(0.0, -0.0625 / 12, -8 / 12, -1.0, -4 / 12, -6 / 12, -2 / 12, -3 / 12),
    ),
}
_BLOCKS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
_NESTED_VALUES = 256
# Of float32.
_GREATEST = 2.0**128 - 2.0**104
# What the library divides int8 by is 127, as a factor.
_ROW_FACTOR = 7.874015718698502e-3
# A state is a handful of words and numbers.
_MAX_STATE = 1 << 16
_MAX_RANK = 8
# Tables are made by a division, of which the last bit may differ between devices.
_TOLERANCE = 1e-6
_SHAPE_RULE = "quantized.shape"
_KIND_RULE = "quantized.method"


def four_bits(group: Group) -> Layout:
    """Return the layout of NF4 or FP4: codes of all elements one after the other, in blocks wherever rows end."""
    weight = group.need(WEIGHT, rule="quantized.scale-orphan")
    absmax, table = group.need("weight.absmax"), group.need("weight.quant_map")
    state = group.need(*map(_state_of, _TABLES))
    said = _state(group, state)
    kind, shape, block = _word(group, state, said, "quant_type"), _shape(group, state, said), _block(group, state, said)
    if kind not in _TABLES or state.name != f"{group.name}.{_state_of(kind)}":
        raise group.fault(_KIND_RULE, state, f"it says '{shown(kind)}', which is not what its name says")
    elements = math.prod(shape)
    if weight.info.bytes != -(-elements // 2):
        cause = f"it has {weight.info.bytes} bytes; expected {-(-elements // 2)} for {elements} elements of four bits"
        raise group.fault(_SHAPE_RULE, weight, cause)
    count = -(-elements // block)
    group.require_shape(absmax, (count,), why=f"for {elements} elements in blocks of {block}")
    group.require_dtype(table, DType.float32)
    group.require_shape(table, (16,), why="for the values of four bits", rule=_SHAPE_RULE)
    _require_table(group, table, kind)
    nested = None
    if absmax.dtype is DType.uint8:
        nested = _nested(group, state, said, count)
    else:
        group.require_dtype(absmax, *FLOAT_SCALES)

    def decode(dtype: DType, out: Any) -> Buffer:
        scales = absmax.buffer()
        if nested is None:
            scales = scales.astype(DType.float32)
        else:
            values, of_scales, size, offset = nested
            scales = _core.dequantize_codebook(
                scales,
                values.buffer(),
                of_scales.buffer().astype(DType.float32),
                bits=8,
                block=size,
                shape=(count,),
                offset=offset,
                dtype=DType.float32,
            )
        return _core.dequantize_codebook(
            weight.buffer(), _table(kind), scales, bits=4, block=block, shape=shape, dtype=dtype, out=out
        )

    return Layout(f"bitsandbytes-{kind}", 4, shape, (1, block), decode)


def int8(group: Group) -> Layout:
    """Return the layout of int8 with the largest magnitude of each row, which is 127."""
    weight, scale = group.need(WEIGHT, rule="quantized.scale-orphan"), group.need("SCB")
    group.require_dtype(weight, DType.int8)
    group.require_rank(weight, 2)
    group.require_dtype(scale, DType.float32)
    rows, columns = weight.shape
    group.require_shape(scale, (rows,), (rows, 1), why="for the rows of the weight")
    order = group.get("weight_format")
    if order is not None:
        group.require_dtype(order, DType.uint8)
        group.require_shape(order, (), (1,), why="for one number", rule=_SHAPE_RULE)
        if order.buffer().to_numpy().any():
            raise group.refused(weight, "bitsandbytes-int8", "int8 in the order of one kernel cannot be decoded")

    def decode(dtype: DType, out: Any) -> Buffer:
        return _core.dequantize_codebook(
            weight.buffer(),
            _signed_bytes(),
            scale.buffer(),
            bits=8,
            block=max(columns, 1),
            shape=(rows, columns),
            factor=_ROW_FACTOR,
            dtype=dtype,
            out=out,
        )

    return Layout("bitsandbytes-int8", 8, (rows, columns), (1, columns), decode)


def _nested(group: Group, state: Part, said: dict[str, Any], count: int) -> tuple[Part, Part, int, float]:
    """Return the table and the scales of scales that are codes, how many share one, and what is added to them."""
    values, scales = group.need("weight.nested_quant_map"), group.need("weight.nested_absmax")
    group.require_dtype(values, DType.float32)
    group.require_shape(values, (_NESTED_VALUES,), why="for the values of eight bits", rule=_SHAPE_RULE)
    group.require_dtype(scales, *FLOAT_SCALES)
    size, offset = said.get("nested_blocksize"), said.get("nested_offset")
    if not isinstance(size, int) or not 0 < size < 1 << 32:
        raise group.fault(_SHAPE_RULE, state, f"its nested_blocksize is {_text(size)}; expected a number of scales")
    if not isinstance(offset, int | float) or not -_GREATEST <= offset <= _GREATEST:
        raise group.fault(_SHAPE_RULE, state, f"its nested_offset is {_text(offset)}; expected a float32")
    group.require_shape(scales, (-(-count // size),), why=f"for {count} scales in blocks of {size}")
    return values, scales, size, float(offset)


def _state_of(kind: str) -> str:
    return f"weight.quant_state.bitsandbytes__{kind}"


def _state(group: Group, state: Part) -> dict[str, Any]:
    """Return what the bytes of a state say: a JSON object."""
    group.require_dtype(state, DType.uint8)
    group.require_rank(state, 1)
    if state.info.bytes > _MAX_STATE:
        raise group.fault(_SHAPE_RULE, state, f"it has {state.info.bytes:,} bytes; expected {_MAX_STATE:,} at most")
    try:
        said = json.loads(bytes(state.buffer().to_numpy()))
        if not isinstance(said, dict):
            raise ValueError(f"it is a {type(said).__name__}")
    except (ValueError, RecursionError) as problem:
        raise group.fault(_SHAPE_RULE, state, f"its bytes are no JSON object: {shown(str(problem))}") from problem
    return said


def _word(group: Group, state: Part, said: dict[str, Any], key: str) -> str:
    value = said.get(key)
    if not isinstance(value, str):
        raise group.fault(_SHAPE_RULE, state, f"its {key} is {_text(value)}; expected a word")
    return value


def _shape(group: Group, state: Part, said: dict[str, Any]) -> tuple[int, ...]:
    sizes = said.get("shape")
    if not isinstance(sizes, list) or not 0 < len(sizes) <= _MAX_RANK or not all(map(_is_size, sizes)):
        cause = f"its shape is {_text(sizes)}; expected a list of one to {_MAX_RANK} sizes"
        raise group.fault(_SHAPE_RULE, state, cause)
    return tuple(sizes)


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _block(group: Group, state: Part, said: dict[str, Any]) -> int:
    block = said.get("blocksize")
    if type(block) is not int or block not in _BLOCKS:
        cause = f"its blocksize is {_text(block)}; expected one of {', '.join(map(str, _BLOCKS))}"
        raise group.fault(_SHAPE_RULE, state, cause)
    return block


def _text(value: object) -> str:
    """Return a value of a JSON file in few words."""
    text = shown(json.dumps(value))
    return text if len(text) <= 60 else f"{text[:60]}…"


def _require_table(group: Group, table: Part, kind: str) -> None:
    import numpy as np

    if not np.allclose(table.buffer().to_numpy(), _table(kind).to_numpy(), rtol=_TOLERANCE, atol=_TOLERANCE):
        raise group.fault(_KIND_RULE, table, f"its values are not those of {kind}")


@functools.cache
def _table(kind: str) -> Buffer:
    return _floats(_TABLES[kind])


@functools.cache
def _signed_bytes() -> Buffer:
    return _floats([*range(128), *range(-128, 0)])


def _floats(values: Sequence[float]) -> Buffer:
    import numpy as np

    return Buffer.of(np.array(values, np.float32))
