# fmt: off
# ruff: noqa: I001, RUF100
"""The dotted path `max.nn.layer` of MAX."""

from max_weights.nn._base_layer import Layer, add_layer_hook, clear_hooks
from max_weights.nn._layer_v2 import LayerV2
from max_weights.nn._module import LayerList, MissingLayer, Module, Shardable, recursive_named_layers
from max_weights._unsupported import unsupported_names as _unsupported

__all__ = [
    "Layer", "LayerList", "LayerV2", "MissingLayer", "Module", "Shardable", "add_layer_hook", "clear_hooks",
    "recursive_named_layers",
]

__getattr__ = _unsupported(__name__)
