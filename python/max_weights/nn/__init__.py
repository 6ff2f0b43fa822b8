"""Models: `Module`, `Layer`, `LayerList`, hooks and state dicts, and the layers that models are made of."""

import sys

from max_weights._load_report import LoadReport
from max_weights.nn._base_layer import Layer, add_layer_hook, clear_hooks
from max_weights.nn._layer_list import LayerList, MissingLayer, Sequential
from max_weights.nn._layer_v2 import LayerV2
from max_weights.nn._module import Module, Shardable, recursive_named_layers
from max_weights.nn._unsupported_layers import unsupported_layers
from max_weights.nn.hooks import PrintHook

TYPE_CHECKING = False
if TYPE_CHECKING:
    from max_weights.nn.activation import activation_function_from_name, clamp
    from max_weights.nn.attention import Attention, MHAMaskVariant, MultiheadAttention, scaled_dot_product_attention
    from max_weights.nn.conv import Conv1D, Conv2d
    from max_weights.nn.embedding import Embedding
    from max_weights.nn.identity import Identity
    from max_weights.nn.linear import MLP, Linear
    from max_weights.nn.norm import ConstantLayerNorm, GroupNorm, LayerNorm, RMSNorm
    from max_weights.nn.rotary_embedding import Llama3RopeScalingParams, Llama3RotaryEmbedding, RotaryEmbedding

__all__ = [
    "MLP",
    "Attention",
    "ConstantLayerNorm",
    "Conv1D",
    "Conv2d",
    "Embedding",
    "GroupNorm",
    "Identity",
    "Layer",
    "LayerList",
    "LayerNorm",
    "LayerV2",
    "Linear",
    "Llama3RopeScalingParams",
    "Llama3RotaryEmbedding",
    "LoadReport",
    "MHAMaskVariant",
    "MissingLayer",
    "Module",
    "MultiheadAttention",
    "PrintHook",
    "RMSNorm",
    "RotaryEmbedding",
    "Sequential",
    "Shardable",
    "activation_function_from_name",
    "add_layer_hook",
    "clamp",
    "clear_hooks",
    "recursive_named_layers",
    "scaled_dot_product_attention",
]

# Where each layer lives: it is imported when it is first used. The imports above repeat this for type checkers.
_HOMES = {
    "Attention": "max_weights.nn.attention",
    "ConstantLayerNorm": "max_weights.nn.norm",
    "Conv1D": "max_weights.nn.conv",
    "Conv2d": "max_weights.nn.conv",
    "Embedding": "max_weights.nn.embedding",
    "GroupNorm": "max_weights.nn.norm",
    "Identity": "max_weights.nn.identity",
    "LayerNorm": "max_weights.nn.norm",
    "Linear": "max_weights.nn.linear",
    "Llama3RopeScalingParams": "max_weights.nn.rotary_embedding",
    "Llama3RotaryEmbedding": "max_weights.nn.rotary_embedding",
    "MHAMaskVariant": "max_weights.nn.attention",
    "MLP": "max_weights.nn.linear",
    "MultiheadAttention": "max_weights.nn.attention",
    "RMSNorm": "max_weights.nn.norm",
    "RotaryEmbedding": "max_weights.nn.rotary_embedding",
    "activation_function_from_name": "max_weights.nn.activation",
    "clamp": "max_weights.nn.activation",
    "scaled_dot_product_attention": "max_weights.nn.attention",
}

_unsupported = unsupported_layers(__name__)


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        return _unsupported(name)
    __import__(home)
    value: object = getattr(sys.modules[home], name)
    globals()[name] = value  # found directly from now on
    return value


def __dir__() -> list[str]:
    return sorted({*_HOMES, *globals()})
