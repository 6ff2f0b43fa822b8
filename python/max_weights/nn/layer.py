"""Layers and modules under the dotted paths of MAX."""

from max_weights.nn.hooks import Layer, add_layer_hook, clear_hooks
from max_weights.nn.layer_list import LayerList
from max_weights.nn.layer_v2 import LayerV2
from max_weights.nn.module import Module, recursive_named_layers

__all__ = ["Layer", "LayerList", "LayerV2", "Module", "add_layer_hook", "clear_hooks", "recursive_named_layers"]
