# fmt: off
# ruff: noqa: I001, RUF100
"""The dotted path `max.nn.quant_config` of MAX."""

from max_weights.nn._unsupported_layers import unsupported_layers as _unsupported

__getattr__ = _unsupported(__name__)
