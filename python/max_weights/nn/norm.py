# fmt: off
# ruff: noqa: I001, RUF100
"""The dotted path `max.nn.norm` of MAX."""

from max_weights.nn._norm import ConstantLayerNorm, GroupNorm, LayerNorm, RMSNorm
from max_weights.nn._unsupported_layers import unsupported_layers as _unsupported

__all__ = ["ConstantLayerNorm", "GroupNorm", "LayerNorm", "RMSNorm"]

__getattr__ = _unsupported(__name__)
