"""Encodings under the dotted path of MAX."""

from max_weights._quantization import BlockParameters, QuantizationConfig, QuantizationEncoding

__all__ = ["BlockParameters", "QuantizationConfig", "QuantizationEncoding"]
