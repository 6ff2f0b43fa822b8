"""Models: `Module`, `Layer`, `LayerList`, hooks and state dicts, and the layers that models are composed of."""

from max_weights._facade import facade as _facade
from max_weights.nn._unsupported_layers import unsupported_layers as _unsupported_layers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from max_weights._load_report import LoadReport
    from max_weights.nn._attention import Attention, MHAMaskVariant, MultiheadAttention, scaled_dot_product_attention
    from max_weights.nn._base_layer import Layer, add_layer_hook, clear_hooks
    from max_weights.nn._conv import Conv1D, Conv2d
    from max_weights.nn._layer_v2 import LayerV2
    from max_weights.nn._linear import MLP, Embedding, Identity, Linear, activation_function_from_name, clamp
    from max_weights.nn._module import LayerList, MissingLayer, Module, Sequential, Shardable, recursive_named_layers
    from max_weights.nn._norm import ConstantLayerNorm, GroupNorm, LayerNorm, RMSNorm
    from max_weights.nn._print_hook import PrintHook
    from max_weights.nn._rotary_embedding import Llama3RopeScalingParams, Llama3RotaryEmbedding, RotaryEmbedding
del TYPE_CHECKING

# Written by tools/surface.py from the imports above: run it after each change of them.
# fmt: off
__all__ = [
    "MLP", "Attention", "ConstantLayerNorm", "Conv1D", "Conv2d", "Embedding", "GroupNorm", "Identity", "Layer",
    "LayerList", "LayerNorm", "LayerV2", "Linear", "Llama3RopeScalingParams", "Llama3RotaryEmbedding", "LoadReport",
    "MHAMaskVariant", "MissingLayer", "Module", "MultiheadAttention", "PrintHook", "RMSNorm", "RotaryEmbedding",
    "Sequential", "Shardable", "activation_function_from_name", "add_layer_hook", "clamp", "clear_hooks",
    "recursive_named_layers", "scaled_dot_product_attention",
]
_NAMES = {
    "_load_report": "LoadReport",
    "nn._attention": "Attention MHAMaskVariant MultiheadAttention scaled_dot_product_attention",
    "nn._base_layer": "Layer add_layer_hook clear_hooks",
    "nn._conv": "Conv1D Conv2d",
    "nn._layer_v2": "LayerV2",
    "nn._linear": "Embedding Identity Linear MLP activation_function_from_name clamp",
    "nn._module": "LayerList MissingLayer Module Sequential Shardable recursive_named_layers",
    "nn._norm": "ConstantLayerNorm GroupNorm LayerNorm RMSNorm",
    "nn._print_hook": "PrintHook",
    "nn._rotary_embedding": "Llama3RopeScalingParams Llama3RotaryEmbedding RotaryEmbedding",
}
# fmt: on
__getattr__, __dir__ = _facade(__name__, _NAMES, _unsupported_layers(__name__))
