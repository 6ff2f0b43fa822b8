"""Quantized weights of checkpoints: their parts, and their values.

>>> weights = max_weights.load_weights("model")
>>> weight = max_weights.quantized(weights, "model.layers.0.mlp.down_proj")
>>> weight.scheme, weight.bits, weight.shape, weight.block
>>> weight.astype("bfloat16")
"""

from max_weights._quantized_weights.decoded import (
    CODES,
    KEEP,
    DecodedAs,
    StoredWeights,
    require_no_codes,
    stored_weights,
)
from max_weights._quantized_weights.view import QuantizedWeight, QuantizedWeights, quantized

# fmt: off
__all__ = [
    "CODES", "KEEP", "DecodedAs", "QuantizedWeight", "QuantizedWeights", "StoredWeights", "quantized",
    "require_no_codes", "stored_weights",
]
# fmt: on
