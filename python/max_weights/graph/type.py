# fmt: off
# ruff: noqa: I001, RUF100
"""The dotted path `max.graph.type` of MAX."""

from max_weights._devices import DeviceRef
from max_weights._shape import Shape
from max_weights.graph._type import BufferType, ConvInputLayout, FilterLayout, TensorType, Type

__all__ = ["BufferType", "ConvInputLayout", "DeviceRef", "FilterLayout", "Shape", "TensorType", "Type"]
