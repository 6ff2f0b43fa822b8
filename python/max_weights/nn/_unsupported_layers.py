"""Layers of MAX that this package does not have; importing one raises an error with the alternative."""

from __future__ import annotations

from collections.abc import Callable

from max_weights._unsupported import unsupported_names

__all__ = ["unsupported_layers"]

# The alternative, and the names.
_INSTEAD = (
    (
        "it reads keys and values from the cache of MAX Serve. Attention computes the same over a whole sequence, "
        "with grouped heads, rotary positions and a mask",
        "AttentionWithRope GGUFQAttentionWithRope GPTQAttentionWithRope KVCacheInputs KVCacheMetrics KVCacheParams "
        "LatentAttentionWithRope RaggedAttention Transformer TransformerBlock build_max_lengths_tensors",
    ),
    (
        "it needs MAX's collectives and several GPUs. The `shard` of a layer gives one layer per device: add or join "
        "their outputs",
        "Allreduce ColumnParallelLinear DistributedAttentionImpl DistributedTransformer DistributedTransformerBlock "
        "Signals TensorParallelAttentionWithRope TensorParallelLatentAttentionWithRope VocabParallelEmbedding "
        "forward_moe_sharded_layers split_batch split_batch_replicated",
    ),
    (
        "it needs kernels of MAX's compiler. Load the weights as floats, and use Linear or MLP",
        "GPTQLinear InputScaleSpec MoE MoEGate MoEQuantized QuantConfig QuantFormat ScaleGranularity ScaleOrigin "
        "WeightScaleSpec",
    ),
    (
        "it belongs to MAX's serving. A model here is called with whole sequences and returns tensors",
        "MinPSampler RejectionSampler RejectionSamplerWithResiduals ReturnHiddenStates ReturnLogits",
    ),
    (
        "RotaryEmbedding takes your own table as _freqs_cis, and your own class can define freqs_cis_base",
        "DynamicRotaryEmbedding LinearScalingParams LongRoPERotaryEmbedding LongRoPEScalingParams "
        "YarnRotaryEmbedding YarnScalingParams",
    ),
    (
        "only convolutions of one and two axes are here: Conv1D and Conv2d",
        "Conv3D ConvTranspose1d WeightNormConvTranspose1d",
    ),
    ("compose it from ops: `mean`, `rsqrt` and `reshape` are available", "HyperConnection"),
    ("use MLP, which has its first two weights separate", "FusedMLP"),
    (
        "Attention(stacked_qkv=True) has one weight for queries, keys and values; elsewhere, use ops.split on the "
        "output of a Linear",
        "StackedLinear",
    ),
)


def unsupported_layers(module: str) -> Callable[[str], object]:
    """Return a `__getattr__` for a module under whose path MAX has some of them; see `unsupported_names`."""
    return unsupported_names(module, **{name: advice for advice, names in _INSTEAD for name in names.split()})
