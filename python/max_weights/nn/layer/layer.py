"""Layers and modules under the dotted path of MAX's file of that name."""

from max_weights.nn.hooks import Layer, add_layer_hook, clear_hooks
from max_weights.nn.layer_list import LayerList, MissingLayer
from max_weights.nn.module import LayerV2, Module, Shardable, recursive_named_layers

__all__ = [
    "Layer",
    "LayerList",
    "LayerV2",
    "MissingLayer",
    "Module",
    "Shardable",
    "add_layer_hook",
    "clear_hooks",
    "recursive_named_layers",
]
