"""Layers under the dotted path of earlier versions of MAX."""

from max_weights.nn.layer import (
    Layer,
    LayerList,
    LayerV2,
    Module,
    add_layer_hook,
    clear_hooks,
    recursive_named_layers,
)

__all__ = ["Layer", "LayerList", "LayerV2", "Module", "add_layer_hook", "clear_hooks", "recursive_named_layers"]
