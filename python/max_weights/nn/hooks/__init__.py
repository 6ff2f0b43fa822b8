# fmt: off
# ruff: noqa: I001, RUF100
"""The dotted path `max.nn.hooks` of MAX."""

from max_weights.nn._base_layer import LayerHook, add_layer_hook, clear_hooks
from max_weights.nn._print_hook import PrintHook
from max_weights._unsupported import unsupported_names as _unsupported

__all__ = ["LayerHook", "PrintHook", "add_layer_hook", "clear_hooks"]

__getattr__ = _unsupported(__name__)
