# fmt: off
# ruff: noqa: I001, RUF100
"""The dotted path `max.nn.rotary_embedding` of MAX."""

from max_weights.nn._rotary_embedding import Llama3RopeScalingParams, Llama3RotaryEmbedding, RotaryEmbedding
from max_weights.nn._unsupported_layers import unsupported_layers as _unsupported

__all__ = ["Llama3RopeScalingParams", "Llama3RotaryEmbedding", "RotaryEmbedding"]

__getattr__ = _unsupported(__name__)
