"""Models: `Module`, `Layer`, `LayerList`, hooks, and state dicts."""

from max_weights.nn.hooks import Layer, PrintHook, add_layer_hook, clear_hooks
from max_weights.nn.layer_list import LayerList, MissingLayer, Sequential
from max_weights.nn.load_state import LoadReport
from max_weights.nn.module import LayerV2, Module, Shardable, recursive_named_layers

__all__ = [
    "Layer",
    "LayerList",
    "LayerV2",
    "LoadReport",
    "MissingLayer",
    "Module",
    "PrintHook",
    "Sequential",
    "Shardable",
    "add_layer_hook",
    "clear_hooks",
    "recursive_named_layers",
]
