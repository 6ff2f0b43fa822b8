"""Values as another dtype: at once, or, where they lie in a mapped file, when they are first used."""

from __future__ import annotations

from typing import Any

from max_weights._core import Buffer
from max_weights.allocation import LazyCast
from max_weights.devices import is_virtual_device_mode
from max_weights.dtype import DType
from max_weights.nn.values import Misfit, Value
from max_weights.weight_data import WeightData


def converted(given: Any, dtype: DType) -> Any:
    """A value as `dtype`; itself, if it has it or is packed, and if it is nothing that can be converted (whoever
    examines it next says so).
    """
    try:
        value = Value(given)
    except Misfit:
        return given
    if value.encoding is not None or value.dtype is dtype:
        return given
    return _cast(_weight_data(given, value), dtype)


def decoded(data: WeightData, dtype: DType) -> Any:
    """A weight of a checkpoint as `dtype`, packed ones decoded; integers and bools stay what they are."""
    packed = data.quantization_encoding is not None and data.quantization_encoding.is_gguf
    if not packed and (data.quantization_encoding is not None or not data.dtype.is_float() or data.dtype is dtype):
        return data
    return _cast(data, dtype)


def _weight_data(given: Any, value: Value) -> WeightData:
    if isinstance(given, WeightData):
        return given
    stored = value.stored
    if isinstance(stored, LazyCast):
        stored = stored.to_buffer()
    data = stored if isinstance(stored, Buffer) else value.memory
    return WeightData(data, "", value.dtype, value.shape)


def _cast(data: WeightData, dtype: DType) -> Any:
    if is_virtual_device_mode():
        return data.astype(dtype)
    buffer = data.to_buffer()
    return LazyCast(data, dtype) if buffer.is_mapped else data.astype(dtype)
