"""Encodings under the dotted path of MAX."""

from max_weights.quantization import BlockParameters, QuantizationConfig, QuantizationEncoding

__all__ = ["BlockParameters", "QuantizationConfig", "QuantizationEncoding"]
