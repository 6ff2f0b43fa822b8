# fmt: off
# ruff: noqa: I001, RUF100
"""The dotted path `max.graph.weights.format` of MAX."""

from max_weights._weights_format import WeightsFormat, weights_format

__all__ = ["WeightsFormat", "weights_format"]
