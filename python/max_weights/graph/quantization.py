# fmt: off
# ruff: noqa: I001, RUF100
"""The dotted path `max.graph.quantization` of MAX."""

from max_weights._quantization import BlockParameters, QuantizationConfig, QuantizationEncoding

__all__ = ["BlockParameters", "QuantizationConfig", "QuantizationEncoding"]
