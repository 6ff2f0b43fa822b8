"""The rules from the checkpoints of the Hugging Face hub to the layouts of other libraries, by architecture.

A table is read from the top: the first rule that matches a name applies. Names and layouts are those of the libraries'
own conversions: of transformers 5 (`WeightConverter`), of the models of vLLM (`packed_modules_mapping`), and of
Megatron Core in Megatron Bridge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from max_weights.conversion._rules import (
    Concatenate,
    ConversionRule,
    Deinterleave,
    Interleave,
    Size,
    Split,
    Stack,
    Transpose,
    Unstack,
)

__all__ = ["LAYOUTS", "MODEL_TYPES"]

Rules = list[ConversionRule]
Table = Callable[[Mapping[str, Any]], Rules]

Rule = ConversionRule
_HEADS: tuple[Size, ...] = ("num_attention_heads", "num_key_value_heads", "num_key_value_heads")
_GATED = ("gate_proj", "up_proj")


def _packed_experts(front: str, names: tuple[str, str, str], gate_up: str, down: str) -> Rules:
    """Return the rules that stack experts: gate and up projections in one tensor, down projections in another."""
    gate, up, out = (f"{front}.#.{name}.weight" for name in names)
    return [Rule([gate, up], gate_up, [Stack(0), Concatenate(1)]), Rule(out, down, Stack(0))]


# transformers 5


def _mixtral_transformers5(_: Mapping[str, Any]) -> Rules:
    experts = "*.mlp.experts"
    return [
        *_packed_experts(
            "*.block_sparse_moe.experts", ("w1", "w3", "w2"), f"{experts}.gate_up_proj", f"{experts}.down_proj"
        ),
        Rule("*.block_sparse_moe.*", "*.mlp.*"),
    ]


def _moe_transformers5(_: Mapping[str, Any]) -> Rules:
    experts = "*.mlp.experts"
    return _packed_experts(experts, (*_GATED, "down_proj"), f"{experts}.gate_up_proj", f"{experts}.down_proj")


def _gemma3_transformers5(_: Mapping[str, Any]) -> Rules:
    return [
        Rule("language_model.model.*", "model.language_model.*"),
        Rule("language_model.lm_head.*", "lm_head.*"),
        Rule("vision_tower.*", "model.vision_tower.*"),
        Rule("multi_modal_projector.*", "model.multi_modal_projector.*"),
    ]


def _same(_: Mapping[str, Any]) -> Rules:
    """Return no rules: the library has the hub's layout."""
    return []


# vLLM


def _fused(front: str, sources: tuple[str, ...], target: str, parts: tuple[Size, ...] = ()) -> ConversionRule:
    return Rule([f"{front}.{source}.*" for source in sources], f"{front}.{target}.*", Concatenate(0, parts))


_QKV = ("q_proj", "k_proj", "v_proj")


def _llama_vllm(_: Mapping[str, Any]) -> Rules:
    return [_fused("*.self_attn", _QKV, "qkv_proj", _HEADS), _fused("*.mlp", _GATED, "gate_up_proj")]


def _gemma3_vllm(_: Mapping[str, Any]) -> Rules:
    text = "language_model.*"
    return [
        _fused(f"{text}.self_attn", _QKV, "qkv_proj", _HEADS),
        _fused(f"{text}.mlp", _GATED, "gate_up_proj"),
        _fused("vision_tower.*.self_attn", _QKV, "qkv_proj"),
    ]


def _mixtral_vllm(_: Mapping[str, Any]) -> Rules:
    experts = "*.block_sparse_moe.experts"
    return [
        _fused("*.self_attn", _QKV, "qkv_proj", _HEADS),
        *_packed_experts(experts, ("w1", "w3", "w2"), f"{experts}.w13_weight", f"{experts}.w2_weight"),
    ]


def _moe_vllm(_: Mapping[str, Any]) -> Rules:
    experts = "*.mlp.experts"
    return [
        _fused("*.self_attn", _QKV, "qkv_proj", _HEADS),
        *_packed_experts(experts, (*_GATED, "down_proj"), f"{experts}.w13_weight", f"{experts}.w2_weight"),
        _fused("*.mlp.shared_expert", _GATED, "gate_up_proj"),
        _fused("*.mlp", _GATED, "gate_up_proj"),
    ]


def _deepseek_vllm(config: Mapping[str, Any]) -> Rules:
    experts = "*.mlp.experts"
    rules = [
        *_packed_experts(experts, (*_GATED, "down_proj"), f"{experts}.w13_weight", f"{experts}.w2_weight"),
        _fused("*.mlp.shared_experts", _GATED, "gate_up_proj"),
        _fused("*.mlp", _GATED, "gate_up_proj"),
    ]
    if config.get("q_lora_rank"):
        parts = ("q_lora_rank", "kv_lora_rank+qk_rope_head_dim")
        rules.insert(0, _fused("*.self_attn", ("q_a_proj", "kv_a_proj_with_mqa"), "fused_qkv_a_proj", parts))
    return rules


def _gpt_oss_vllm(_: Mapping[str, Any]) -> Rules:
    experts = "*.mlp.experts"
    return [
        Rule(
            [f"*.self_attn.{name}.*" for name in _QKV],
            "*.attn.qkv_proj.*",
            Concatenate(0, _HEADS),
        ),
        Rule("*.self_attn.*", "*.attn.*"),
        Rule(f"{experts}.gate_up_proj", f"{experts}.w13_weight", Transpose(1, 2)),
        Rule(f"{experts}.down_proj", f"{experts}.w2_weight", Transpose(1, 2)),
        Rule(f"{experts}.gate_up_proj_blocks", f"{experts}.w13_weight"),
        Rule(f"{experts}.gate_up_proj_scales", f"{experts}.w13_weight_scale"),
        Rule(f"{experts}.gate_up_proj_bias", f"{experts}.w13_bias"),
        Rule(f"{experts}.down_proj_blocks", f"{experts}.w2_weight"),
        Rule(f"{experts}.down_proj_scales", f"{experts}.w2_weight_scale"),
        Rule(f"{experts}.down_proj_bias", f"{experts}.w2_bias"),
        Rule("*.embed_tokens.weight", "*.embedding.weight"),
    ]


# Megatron Core

_LAYER, _THEIRS = "model.layers.*", "decoder.layers.*"
_AROUND = [
    Rule("model.embed_tokens.weight", "embedding.word_embeddings.weight"),
    Rule("model.norm.weight", "decoder.final_layernorm.weight"),
    Rule("lm_head.weight", "output_layer.weight"),
]


def _layer(names: str, hub: str = _LAYER, theirs: str = _THEIRS) -> Rules:
    """Return rules for weights of a layer that have other names there: pairs of words."""
    words = names.split()
    return [Rule(f"{hub}.{one}", f"{theirs}.{other}") for one, other in zip(words[::2], words[1::2], strict=True)]


def _attention_megatron() -> Rules:
    fused = [
        Rule(
            [f"{_LAYER}.self_attn.{name}.{kind}" for name in _QKV],
            f"{_THEIRS}.self_attention.linear_qkv.{kind}",
            Interleave(0, "num_key_value_heads", _HEADS),
        )
        for kind in ("weight", "bias")
    ]
    return fused + _layer("""
        input_layernorm.weight self_attention.linear_qkv.layer_norm_weight
        self_attn.q_norm.weight self_attention.q_layernorm.weight
        self_attn.k_norm.weight self_attention.k_layernorm.weight
        self_attn.o_proj.weight self_attention.linear_proj.weight
        self_attn.o_proj.bias self_attention.linear_proj.bias""")


def _mlp_megatron(theirs: str = "mlp", hub: str = "mlp") -> Rules:
    gated = [f"{_LAYER}.{hub}.{name}.weight" for name in _GATED]
    down = _layer(f"{hub}.down_proj.weight {theirs}.linear_fc2.weight")
    return [Rule(gated, f"{_THEIRS}.{theirs}.linear_fc1.weight", Concatenate(0)), *down]


def _experts_megatron(hub: str = "mlp.experts", names: tuple[str, str, str] = (*_GATED, "down_proj")) -> Rules:
    gate, up, down = (f"{_LAYER}.{hub}.#.{name}.weight" for name in names)
    return [
        Rule([gate, up], f"{_THEIRS}.mlp.experts.linear_fc1.weight#", Concatenate(0)),
        Rule(down, f"{_THEIRS}.mlp.experts.linear_fc2.weight#"),
    ]


def _llama_megatron(_: Mapping[str, Any]) -> Rules:
    norm = _layer("post_attention_layernorm.weight mlp.linear_fc1.layer_norm_weight")
    return [*_AROUND, *_attention_megatron(), *norm, *_mlp_megatron()]


def _phi3_megatron(_: Mapping[str, Any]) -> Rules:
    qkv = [Split(0, _HEADS), Interleave(0, "num_key_value_heads", _HEADS)]
    fused = Rule(f"{_LAYER}.self_attn.qkv_proj.weight", f"{_THEIRS}.self_attention.linear_qkv.weight", qkv)
    return [
        *_AROUND,
        fused,
        *_layer("""
            input_layernorm.weight self_attention.linear_qkv.layer_norm_weight
            self_attn.o_proj.weight self_attention.linear_proj.weight
            post_attention_layernorm.weight mlp.linear_fc1.layer_norm_weight
            mlp.gate_up_proj.weight mlp.linear_fc1.weight
            mlp.down_proj.weight mlp.linear_fc2.weight"""),
    ]


def _gemma3_megatron(_: Mapping[str, Any]) -> Rules:
    norms = _layer("""
        post_attention_layernorm.weight self_attention.linear_proj.post_layernorm.weight
        pre_feedforward_layernorm.weight mlp.linear_fc1.layer_norm_weight
        post_feedforward_layernorm.weight mlp.linear_fc2.post_layernorm.weight""")
    return [*_AROUND, *_attention_megatron(), *norms, *_mlp_megatron()]


def _mixtral_megatron(_: Mapping[str, Any]) -> Rules:
    names = _layer("""
        post_attention_layernorm.weight pre_mlp_layernorm.weight
        block_sparse_moe.gate.weight mlp.router.weight""")
    experts = _experts_megatron("block_sparse_moe.experts", ("w1", "w3", "w2"))
    return [*_AROUND, *_attention_megatron(), *names, *experts]


def _moe_megatron(_: Mapping[str, Any]) -> Rules:
    names = _layer("""
        post_attention_layernorm.weight pre_mlp_layernorm.weight
        mlp.gate.weight mlp.router.weight
        mlp.shared_expert_gate.weight mlp.shared_experts.gate_weight""")
    shared = _mlp_megatron("mlp.shared_experts", "mlp.shared_expert")
    return [*_AROUND, *_attention_megatron(), *names, *_experts_megatron(), *shared]


def _gpt_oss_megatron(_: Mapping[str, Any]) -> Rules:
    experts, theirs = f"{_LAYER}.mlp.experts", f"{_THEIRS}.mlp.experts"
    # On the hub, the columns of gate and up alternate; there, the rows of gate come before those of up.
    apart = [Deinterleave(1, None, (1, 1)), Concatenate(1, (1, 1)), Unstack(0)]
    return [
        *_AROUND,
        *_attention_megatron(),
        *_layer("""
            self_attn.sinks self_attention.core_attention.softmax_offset
            post_attention_layernorm.weight pre_mlp_layernorm.weight
            mlp.router.* mlp.router.*"""),
        Rule(f"{experts}.gate_up_proj", f"{theirs}.linear_fc1.weight#", [Transpose(1, 2), *apart]),
        Rule(f"{experts}.gate_up_proj_bias", f"{theirs}.linear_fc1.bias#", apart),
        Rule(f"{experts}.down_proj", f"{theirs}.linear_fc2.weight#", [Transpose(1, 2), Unstack(0)]),
        Rule(f"{experts}.down_proj_bias", f"{theirs}.linear_fc2.bias#", Unstack(0)),
    ]


_MAX_LAYERS = 1000


def _count(config: Mapping[str, Any], name: str) -> int:
    found = config.get(name)
    return found if isinstance(found, int) and 0 < found <= _MAX_LAYERS else 0


def _deepseek_megatron(config: Mapping[str, Any]) -> Rules:
    layers = _count(config, "num_hidden_layers")
    norm, fused = "post_attention_layernorm.weight", "mlp.linear_fc1.layer_norm_weight"
    rules = [*_AROUND]
    # Layers that predict more tokens come after the others on the hub.
    for number in range(_count(config, "num_nextn_predict_layers")):
        hub, theirs = f"model.layers.{layers + number}", f"mtp.layers.{number}"
        same = "enorm.weight enorm.weight hnorm.weight hnorm.weight eh_proj.weight eh_proj.weight"
        rules += _layer(f"{same} shared_head.norm.weight final_layernorm.weight", hub, theirs)
        rules += _latent_layer_megatron(hub, f"{theirs}.mtp_model_layer")
    dense = range(min(_count(config, "first_k_dense_replace"), layers))
    rules += [Rule(f"model.layers.{number}.{norm}", f"decoder.layers.{number}.{fused}") for number in dense]
    return rules + _latent_layer_megatron(_LAYER, _THEIRS)


def _latent_layer_megatron(hub: str, theirs: str) -> Rules:
    """Return the rules for a layer with latent attention, except for the norm after that of dense layers."""
    rules = _layer(
        """
        input_layernorm.weight input_layernorm.weight
        post_attention_layernorm.weight pre_mlp_layernorm.weight
        mlp.gate.weight mlp.router.weight
        mlp.gate.e_score_correction_bias mlp.router.expert_bias
        self_attn.o_proj.weight self_attention.linear_proj.weight
        self_attn.q_proj.weight self_attention.linear_q_proj.weight
        self_attn.q_a_proj.weight self_attention.linear_q_down_proj.weight
        self_attn.q_b_proj.weight self_attention.linear_q_up_proj.weight
        self_attn.q_a_layernorm.weight self_attention.linear_q_up_proj.layer_norm_weight
        self_attn.kv_a_proj_with_mqa.weight self_attention.linear_kv_down_proj.weight
        self_attn.kv_b_proj.weight self_attention.linear_kv_up_proj.weight
        self_attn.kv_a_layernorm.weight self_attention.linear_kv_up_proj.layer_norm_weight""",
        hub,
        theirs,
    )
    for part, number in (("mlp.experts", "#"), ("mlp.shared_experts", ""), ("mlp", "")):
        front = f"{hub}.{part}.#" if number else f"{hub}.{part}"
        fc1, fc2 = (f"{theirs}.{part}.linear_fc{of}.weight{number}" for of in (1, 2))
        rules.append(Rule([f"{front}.{name}.weight" for name in _GATED], fc1, Concatenate(0)))
        rules.append(Rule(f"{front}.down_proj.weight", fc2))
    return rules


LAYOUTS = ("transformers5", "vllm", "megatron")
"""The layouts that have tables, in addition to that of the hub, `hf`."""

_DENSE = {"transformers5": _same, "vllm": _llama_vllm, "megatron": _llama_megatron}
_MOE = {"transformers5": _moe_transformers5, "vllm": _moe_vllm, "megatron": _moe_megatron}
_DEEPSEEK = {"transformers5": _moe_transformers5, "vllm": _deepseek_vllm, "megatron": _deepseek_megatron}

MODEL_TYPES: Mapping[str, Mapping[str, Table]] = {
    "llama": _DENSE,
    "mistral": _DENSE,
    "qwen2": _DENSE,
    "qwen3": _DENSE,
    "mixtral": {"transformers5": _mixtral_transformers5, "vllm": _mixtral_vllm, "megatron": _mixtral_megatron},
    "qwen2_moe": _MOE,
    "qwen3_moe": _MOE,
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "gemma3_text": {"transformers5": _same, "vllm": _llama_vllm, "megatron": _gemma3_megatron},
    "gemma3": {"transformers5": _gemma3_transformers5, "vllm": _gemma3_vllm},
    "gpt_oss": {"transformers5": _same, "vllm": _gpt_oss_vllm, "megatron": _gpt_oss_megatron},
    "phi3": {"transformers5": _same, "vllm": _same, "megatron": _phi3_megatron},
}
"""`model_type` of config.json -> layout -> its table."""
