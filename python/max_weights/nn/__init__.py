"""Models: `Module`, `Layer`, `LayerList`, hooks, and state dicts."""

from max_weights.nn.hooks import Layer, add_layer_hook, clear_hooks
from max_weights.nn.layer_list import LayerList
from max_weights.nn.layer_v2 import LayerV2
from max_weights.nn.load_report import LoadReport
from max_weights.nn.module import Module, recursive_named_layers
from max_weights.nn.sequential import Sequential

__all__ = [
    "Layer",
    "LayerList",
    "LayerV2",
    "LoadReport",
    "Module",
    "Sequential",
    "add_layer_hook",
    "clear_hooks",
    "recursive_named_layers",
]
