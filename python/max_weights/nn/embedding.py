# fmt: off
# ruff: noqa: I001, RUF100
"""The dotted path `max.nn.embedding` of MAX."""

from max_weights.nn._linear import Embedding
from max_weights.nn._unsupported_layers import unsupported_layers as _unsupported

__all__ = ["Embedding"]

__getattr__ = _unsupported(__name__)
