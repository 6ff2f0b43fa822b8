"""Quantized layers under the dotted path of MAX, which are not here; importing one says what to do instead."""

from max_weights.nn._unsupported_layers import unsupported_layers

__getattr__ = unsupported_layers(__name__)
