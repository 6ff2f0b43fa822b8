# fmt: off
# ruff: noqa: I001, RUF100
"""The dotted path `max.nn.linear` of MAX."""

from max_weights.nn._linear import Linear, MLP, require_no_quant_config
from max_weights.nn._unsupported_layers import unsupported_layers as _unsupported

__all__ = ["MLP", "Linear", "require_no_quant_config"]

__getattr__ = _unsupported(__name__)
