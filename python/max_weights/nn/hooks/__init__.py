"""The hooks of layers under MAX's path."""

from max_weights.nn._base_layer import LayerHook, add_layer_hook, clear_hooks
from max_weights.nn.hooks.print_hook import PrintHook

__all__ = ["LayerHook", "PrintHook", "add_layer_hook", "clear_hooks"]
