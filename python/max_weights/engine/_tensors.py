"""Conversion of tensors of any library to ONNX Runtime's, and back, over the same memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from max_weights._buffer import Buffer
from max_weights._dtype import DType
from max_weights.errors import ArgumentError
from max_weights.graph._lowering.dtypes import ONNX_TYPES

if TYPE_CHECKING:
    import onnxruntime

    from max_weights._buffer import DLPackArray

__all__ = ["from_value", "to_value"]


def to_value(buffer: Buffer) -> onnxruntime.OrtValue:
    """Return a contiguous `Buffer` of host memory as a tensor of ONNX Runtime, which keeps it alive."""
    from onnxruntime import OrtValue

    number = ONNX_TYPES.get(buffer.dtype)
    if number is None:
        raise ArgumentError(f"ONNX Runtime does not support tensors of {buffer.dtype!r}")
    if buffer.dtype is DType.bfloat16 or buffer.dtype.is_float8():
        bits = buffer.view(DType.uint16 if buffer.dtype is DType.bfloat16 else DType.uint8)
        return OrtValue.ortvalue_from_numpy_with_onnx_type(bits.to_numpy(), number)
    return OrtValue.ortvalue_from_numpy(buffer.to_numpy())


def from_value(value: DLPackArray) -> Buffer:
    """Return a result of a run as a `Buffer` over the same memory."""
    return Buffer.from_dlpack(value)
