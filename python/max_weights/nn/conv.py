# fmt: off
# ruff: noqa: I001, RUF100
"""The dotted path `max.nn.conv` of MAX."""

from max_weights.nn._conv import Conv1D, Conv2d
from max_weights.nn._unsupported_layers import unsupported_layers as _unsupported

__all__ = ["Conv1D", "Conv2d"]

__getattr__ = _unsupported(__name__)
