"""From tensors of any library to ONNX Runtime's, and back, over the same memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from max_weights.buffer import Buffer
from max_weights.dtype import DType
from max_weights.errors import ArgumentError
from max_weights.graph.lowering.dtypes import ONNX_TYPES
from max_weights.weight_data import WeightData

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["as_buffer", "from_value", "to_value"]


def as_buffer(given: Any, what: str) -> Buffer:
    """A tensor of any library as a contiguous `Buffer` of host memory, over the same memory where that can be.

    Args:
        given: A `Buffer`, an array, anything that speaks DLPack, a `WeightData`, a number.
        what: Which it is, for messages.

    Raises:
        TypeError: it is no tensor.
    """
    import numpy as np

    if isinstance(given, WeightData):
        given = given.to_buffer()
    if isinstance(given, (bool, int, float, list, np.generic)):
        given = np.asarray(given)
    if isinstance(given, np.ndarray):
        given = Buffer.from_numpy(given)
    if not isinstance(given, Buffer):
        if not hasattr(given, "__dlpack__"):
            raise TypeError(f"{what} is a {type(given).__name__}, and not a tensor")
        given = Buffer.from_dlpack(given.detach() if hasattr(given, "detach") else given)
    if not given.device.is_host:
        given = given.to("cpu")
    made = given.contiguous()
    aligned: Buffer = made if made.aligned else made.copy()
    return aligned


def to_value(buffer: Buffer) -> onnxruntime.OrtValue:
    """A contiguous `Buffer` of host memory as a tensor of ONNX Runtime, which keeps it alive.

    Raises:
        ArgumentError: a dtype that ONNX Runtime does not take.
    """
    from onnxruntime import OrtValue

    number = ONNX_TYPES.get(buffer.dtype)
    if number is None:
        raise ArgumentError(f"ONNX Runtime does not take tensors of {buffer.dtype!r}")
    if buffer.dtype is DType.bfloat16 or buffer.dtype.is_float8():
        bits = buffer.view(DType.uint16 if buffer.dtype is DType.bfloat16 else DType.uint8)
        return OrtValue.ortvalue_from_numpy_with_onnx_type(bits.to_numpy(), number)
    return OrtValue.ortvalue_from_numpy(buffer.to_numpy())


def from_value(value: onnxruntime.OrtValue) -> Buffer:
    """A tensor of ONNX Runtime as a `Buffer`."""
    return Buffer.from_dlpack(value._ortvalue)
