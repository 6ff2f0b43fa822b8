"""Models: `Module`, `Layer`, `LayerList`, hooks and state dicts, and the layers that models are made of."""

import sys as _sys

from max_weights._load_report import LoadReport
from max_weights.nn._base_layer import Layer, add_layer_hook, clear_hooks
from max_weights.nn._layer_list import LayerList, MissingLayer, Sequential
from max_weights.nn._layer_v2 import LayerV2
from max_weights.nn._module import Module, Shardable, recursive_named_layers
from max_weights.nn._print_hook import PrintHook
from max_weights.nn._unsupported_layers import unsupported_layers as _unsupported_layers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from max_weights.nn._activation import activation_function_from_name, clamp
    from max_weights.nn._attention import Attention, MHAMaskVariant, MultiheadAttention, scaled_dot_product_attention
    from max_weights.nn._conv import Conv1D, Conv2d
    from max_weights.nn._embedding import Embedding
    from max_weights.nn._identity import Identity
    from max_weights.nn._linear import MLP, Linear
    from max_weights.nn._norm import ConstantLayerNorm, GroupNorm, LayerNorm, RMSNorm
    from max_weights.nn._rotary_embedding import Llama3RopeScalingParams, Llama3RotaryEmbedding, RotaryEmbedding

__all__ = [
    "MLP", "Attention", "ConstantLayerNorm", "Conv1D", "Conv2d", "Embedding", "GroupNorm", "Identity", "Layer",
    "LayerList", "LayerNorm", "LayerV2", "Linear", "Llama3RopeScalingParams", "Llama3RotaryEmbedding", "LoadReport",
    "MHAMaskVariant", "MissingLayer", "Module", "MultiheadAttention", "PrintHook", "RMSNorm", "RotaryEmbedding",
    "Sequential", "Shardable", "activation_function_from_name", "add_layer_hook", "clamp", "clear_hooks",
    "recursive_named_layers", "scaled_dot_product_attention",
]  # fmt: skip

# Where each layer lives: it is imported when it is first used. The imports above repeat this for type checkers.
_HOMES = {
    name: f"max_weights.nn.{module}"
    for module, names in {
        "_attention": "Attention MHAMaskVariant MultiheadAttention scaled_dot_product_attention",
        "_norm": "ConstantLayerNorm GroupNorm LayerNorm RMSNorm",
        "_conv": "Conv1D Conv2d",
        "_embedding": "Embedding",
        "_identity": "Identity",
        "_linear": "Linear MLP",
        "_rotary_embedding": "Llama3RopeScalingParams Llama3RotaryEmbedding RotaryEmbedding",
        "_activation": "activation_function_from_name clamp",
    }.items()
    for name in names.split()
}

_unsupported = _unsupported_layers(__name__)


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        return _unsupported(name)
    __import__(home)
    value: object = getattr(_sys.modules[home], name)
    globals()[name] = value  # found directly from now on
    return value


def __dir__() -> list[str]:
    return sorted({*_HOMES, *globals()})


# Written by tools/surface.py from the imports above: run it after each change of them.
# fmt: off
__all__ = [
    "MLP", "Attention", "ConstantLayerNorm", "Conv1D", "Conv2d", "Embedding", "GroupNorm", "Identity", "LayerNorm",
    "Linear", "Llama3RopeScalingParams", "Llama3RotaryEmbedding", "MHAMaskVariant", "MultiheadAttention", "RMSNorm",
    "RotaryEmbedding", "activation_function_from_name", "clamp", "scaled_dot_product_attention",
]
_NAMES = {
    "nn._activation": "activation_function_from_name clamp",
    "nn._attention": "Attention MHAMaskVariant MultiheadAttention scaled_dot_product_attention",
    "nn._conv": "Conv1D Conv2d",
    "nn._embedding": "Embedding",
    "nn._identity": "Identity",
    "nn._linear": "Linear MLP",
    "nn._norm": "ConstantLayerNorm GroupNorm LayerNorm RMSNorm",
    "nn._rotary_embedding": "Llama3RopeScalingParams Llama3RotaryEmbedding RotaryEmbedding",
}
# fmt: on
