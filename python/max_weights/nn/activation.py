# fmt: off
# ruff: noqa: I001, RUF100
"""The dotted path `max.nn.activation` of MAX."""

from max_weights.nn._linear import Activation, activation_function_from_name, clamp

__all__ = ["Activation", "activation_function_from_name", "clamp"]
