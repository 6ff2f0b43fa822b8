"""How elements are packed in blocks: the encodings, and functions that pack and unpack on all cores."""

from max_weights._quantization import (
    BlockParameters,
    QuantizationConfig,
    QuantizationEncoding,
    dequantize,
    dequantize_groups,
    quantize,
    scale_blocks,
)

__all__ = [
    "BlockParameters",
    "QuantizationConfig",
    "QuantizationEncoding",
    "dequantize",
    "dequantize_groups",
    "quantize",
    "scale_blocks",
]
