"""Cutting the pieces of a shard out of a tensor: a view if they are one run of memory, otherwise one gathered copy.

Nothing outside the pieces is read. Data of a mapped file is copied by `Buffer`, which answers a truncated file with an
error; NumPy only ever moves bytes between blocks of memory.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import Any, Protocol

from max_weights._buffer import Buffer
from max_weights._core import WeightsNode, escape
from max_weights._dtype import DType
from max_weights._quantization import QuantizationEncoding
from max_weights._shape import Shape, listed, matches
from max_weights._weight_data import WeightData
from max_weights.sharding._pieces import Pieces

__all__ = ["readable", "require_fit", "take"]

# If pieces are adjacent in each row of the result, this much is gathered at a time.
_PART = 8 << 20


class _Declared(Protocol):
    """The attributes of a `Weight`, which is defined above this module, that are used here."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> Shape: ...
    @property
    def quantization_encoding(self) -> QuantizationEncoding | None: ...


def readable(value: object) -> Any:
    """Return a value with a shape, such as the data of a weight of a checkpoint.

    An object that only supports DLPack becomes a `Buffer`. Data that is to be loaded to a GPU is cut in host memory.
    """
    if isinstance(value, WeightsNode):
        return value.data()
    if hasattr(value, "on_host"):
        return value.on_host()
    return value if hasattr(value, "shape") else Buffer.of(value)


def require_fit(weight: _Declared, value: Any) -> None:
    """Refuse a readable value that does not belong to the whole weight.

    Symbolic dimensions fit any size, and bytes without an encoding fit any encoding.

    Raises:
        ValueError: it has another shape or encoding.
    """
    encoding = getattr(value, "quantization_encoding", None)
    if encoding is not None and encoding is not weight.quantization_encoding:
        raise ValueError(
            f"the value of weight '{escape(weight.name)}' is packed as {encoding}, but the weight was declared as "
            f"{weight.quantization_encoding}; give the weight the encoding and shape of its value"
        )
    actual = Shape(value.shape)
    if not matches(weight.shape, actual):
        raise ValueError(
            f"the value of weight '{escape(weight.name)}' has the shape {listed(actual)}, but the weight has "
            f"{listed(weight.shape)}; give the value of the whole weight"
        )


def take(value: Any, pieces: Pieces, name: str) -> Any:
    """Return the pieces of a readable value, as the same kind of object; `name` is the name of the part, if any."""
    if not isinstance(value, WeightData):
        return _cut(pieces._of_shape(Shape(value.shape).static_dims), value)
    pieces = pieces._of_shape(value.shape.static_dims)
    return dataclasses.replace(value, data=_cut(pieces, value.data), name=name, shape=pieces.shape)


def _cut(pieces: Pieces, value: object) -> Any:
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")  # the value's library has been imported
    if numpy is not None and isinstance(value, numpy.ndarray):
        parts = [value[(*index, ...)] for index in pieces.slices]  # the dots keep a scalar an array
        if pieces.axis is not None:
            return numpy.concatenate(parts, axis=pieces.axis)
        return parts[0] if parts[0].flags.c_contiguous else parts[0].copy(order="C")
    if torch is not None and isinstance(value, torch.Tensor):
        parts = [value[index] for index in pieces.slices]
        return parts[0].contiguous() if pieces.axis is None else torch.cat(parts, dim=pieces.axis)
    buffer = Buffer.of(value)
    if buffer.dtype.size_in_bits % 8:
        return _cut_packed(pieces, buffer)
    return _cut_buffer(pieces, buffer)


def _cut_buffer(pieces: Pieces, buffer: Buffer) -> Buffer:
    return _joined([buffer[index] for index in pieces.slices], pieces.axis)


def _joined(parts: list[Buffer], axis: int | None) -> Buffer:
    if axis is None:
        return parts[0] if parts[0].is_contiguous else parts[0].prefetch().copy()
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    out = Buffer.zeros(shape, parts[0].dtype)
    begin = 0
    for part in parts:
        part.prefetch()
    for part in parts:
        end = begin + part.shape[axis]
        if math.prod(shape[:axis]) == 1:
            part.astype(out.dtype, out=out[(*(slice(None),) * axis, slice(begin, end))])
        else:
            _write_companions(part, out, axis, begin)
        begin = end
    return out


def _write_companions(part: Buffer, out: Buffer, axis: int, begin: int) -> None:
    """Write a part at `begin` on the axis of `out`, a few rows at a time."""
    outer, rows = math.prod(out.shape[:axis]), part.shape[0]
    step_bytes = math.prod(out.shape[axis + 1 :]) * out.element_size
    width, first = part.shape[axis] * step_bytes, begin * step_bytes
    if not outer * width:
        return
    target = out.view(DType.uint8, [outer, out.shape[axis] * step_bytes]).to_numpy()[:, first : first + width]
    per_row = outer // rows
    step = max(1, _PART // (per_row * width))
    for start in range(0, rows, step):
        copied = part[start : start + step].copy()
        lines = copied.shape[0] * per_row
        at = start * per_row
        target[at : at + lines] = copied.view(DType.uint8, [lines, width]).to_numpy()


def _cut_packed(pieces: Pieces, buffer: Buffer) -> Buffer:
    """Cut elements smaller than a byte, which cannot be indexed, as the bytes that they share."""
    if not buffer.shape:
        return buffer
    bits = buffer.dtype.size_in_bits
    elements = 8 // math.gcd(8, bits)
    unit, row = elements * bits // 8, buffer.shape[-1]
    edges = [row, *(edge for box in pieces for edge in box[-1] if isinstance(edge, int))]
    for edge in edges:
        if edge % elements:
            raise ValueError(
                f"an edge at element {edge} of a row is inside a byte: {buffer.dtype} packs {elements} elements in "
                f"{unit} bytes; split another axis, or into shards of whole bytes"
            )
    last = len(buffer.shape) - 1
    scaled = pieces._scaled(last, row // elements * unit, elements, unit)
    part = _cut_buffer(scaled, buffer.view(DType.uint8, [*buffer.shape[:-1], row // elements * unit]))
    return part.view(buffer.dtype, [*part.shape[:-1], part.shape[-1] // unit * elements])
