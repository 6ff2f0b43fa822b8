# fmt: off
# ruff: noqa: I001, RUF100
"""The dotted path `max.nn.attention` of MAX."""

from max_weights.nn._attention import (
    Attention, MHAMaskVariant, MultiheadAttention, num_heads_for_device, scaled_dot_product_attention,
)
from max_weights.nn._unsupported_layers import unsupported_layers as _unsupported

__all__ = ["Attention", "MHAMaskVariant", "MultiheadAttention", "num_heads_for_device", "scaled_dot_product_attention"]

__getattr__ = _unsupported(__name__)
