"""Quantised weights of checkpoints: what they are made of, and their values. See `WeightsNode.quantised`.

>>> weight = max_weights.load_weights("model").quantised("model.layers.0.mlp.down_proj")
>>> weight.scheme, weight.bits, weight.shape, weight.block
>>> weight.astype("bfloat16")
"""

from max_weights.quantised.view import QuantisedWeight, QuantisedWeights, quantised

__all__ = ["QuantisedWeight", "QuantisedWeights", "quantised"]
