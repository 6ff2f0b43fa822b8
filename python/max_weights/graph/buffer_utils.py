# fmt: off
# ruff: noqa: I001, RUF100
"""The dotted path `max.graph.buffer_utils` of MAX."""

from max_weights.graph._buffer_utils import cast_dlpack_to, cast_tensor_to, cast_tensors_to

__all__ = ["cast_dlpack_to", "cast_tensor_to", "cast_tensors_to"]
