# fmt: off
# ruff: noqa: I001, RUF100
"""The dotted path `max.graph.value` of MAX."""

from max_weights.graph._value import BufferValue, TensorValue, TensorValueLike, Value

__all__ = ["BufferValue", "TensorValue", "TensorValueLike", "Value"]
