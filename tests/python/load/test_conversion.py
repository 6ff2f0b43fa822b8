"""`renamed("transformers5")`, `vllm` and `megatron`: every tensor equals that of the libraries' own conversion."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from max_weights import load_weights, renamed
from max_weights.torch import load_into

Tensors = dict[str, torch.Tensor]

_SMALL: dict[str, Any] = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
_LATENT = {
    **_SMALL,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
_EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
_CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _SMALL,
    "qwen2": _SMALL,
    "qwen3": _SMALL,
    "mixtral": {**_SMALL, "num_local_experts": 3},
    "qwen2_moe": {**_SMALL, **_EXPERTS, "shared_expert_intermediate_size": 16},
    "qwen3_moe": {**_SMALL, **_EXPERTS},
    "deepseek_v2": {**_LATENT, "topk_method": "greedy"},
    "deepseek_v3": _LATENT,
    "gemma3_text": {**_SMALL, "sliding_window": 16},
    "gpt_oss": {**_SMALL, "num_local_experts": 3, "num_experts_per_tok": 2},
    "phi3": {**_SMALL, "pad_token_id": 0},
}


def _model(kind: str, values: dict[str, Any]) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **copy.deepcopy(values)))
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            torch.nn.init.normal_(tensor)
    return model.to(torch.bfloat16)


@pytest.fixture(scope="module", params=_CONFIGS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Tensors]:
    """Give a model type, the folder where transformers saved a model of it, and the tensors of the model itself."""
    kind: str = request.param
    folder = tmp_path_factory.mktemp(kind)
    model = _model(kind, _CONFIGS[kind])
    model.save_pretrained(folder)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return kind, folder, state


def _assert_equal(found: Tensors, expected: Tensors) -> None:
    assert sorted(found) == sorted(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name].view(torch.uint8), tensor.contiguous().view(torch.uint8)), name


def _write(path: Path, tensors: Tensors, config: dict[str, Any] | None = None) -> Any:
    path.parent.mkdir(exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    if config is not None:
        (path.parent / "config.json").write_text(json.dumps(config))
    return load_weights(path)


def _config(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return values


def test_transformers5_gives_the_tensors_of_the_model_and_hf_those_of_its_checkpoint(
    saved: tuple[str, Path, Tensors], tmp_path: Path
) -> None:
    kind, folder, state = saved
    hub = load_weights(folder)
    view = renamed(hub, "transformers5")
    _assert_equal(view.load(framework="torch"), state)
    _assert_equal({name: node.torch() for name, node in view.items()}, state)
    # And back, from a file in the layout of the model.
    other = _write(tmp_path / kind / "model.safetensors", state, _config(folder))
    _assert_equal(renamed(other, "hf").load(framework="torch"), load_file(folder / "model.safetensors"))


def test_load_into_fills_the_model(saved: tuple[str, Path, Tensors]) -> None:
    kind, folder, state = saved
    model = _model(kind, _CONFIGS[kind])
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    load_into(model, folder, rename="transformers5")
    _assert_equal({name: tensor.detach() for name, tensor in model.state_dict().items()}, state)


def _cat(tensors: Tensors, names: list[str], dim: int = 0) -> torch.Tensor:
    return torch.cat([tensors[name] for name in names], dim)


def _fused_by_torch(kind: str, config: dict[str, Any], hub: Tensors) -> Tensors:
    """Convert the hub's tensors as vLLM's loaders do, by torch alone."""
    made = dict(hub)

    def fuse(new: str, names: list[str], dim: int = 0) -> None:
        if all(name in made for name in names):
            made[new] = _cat(made, names, dim)
            for name in names:
                del made[name]

    for layer in (f"model.layers.{number}" for number in range(config["num_hidden_layers"])):
        attention = "attn" if kind == "gpt_oss" else "self_attn"
        for end in ("weight", "bias"):
            fuse(f"{layer}.{attention}.qkv_proj.{end}", [f"{layer}.self_attn.{name}_proj.{end}" for name in "qkv"])
        fuse(f"{layer}.self_attn.fused_qkv_a_proj.weight", [f"{layer}.self_attn.{n}.weight" for n in _LATENT_INPUTS])
        for mlp in ("mlp", "mlp.shared_expert", "mlp.shared_experts"):
            fuse(f"{layer}.{mlp}.gate_up_proj.weight", [f"{layer}.{mlp}.{name}_proj.weight" for name in ("gate", "up")])
        block = "block_sparse_moe" if kind == "mixtral" else "mlp"
        gate, up, down = ("w1", "w3", "w2") if kind == "mixtral" else ("gate_proj", "up_proj", "down_proj")
        experts = f"{layer}.{block}.experts"
        count = sum(name.startswith(f"{experts}.") and name.endswith(f".{gate}.weight") for name in hub)
        if count:
            gates, ups, downs = (
                torch.stack([made.pop(f"{experts}.{number}.{name}.weight") for number in range(count)])
                for name in (gate, up, down)
            )
            made[f"{experts}.w13_weight"], made[f"{experts}.w2_weight"] = torch.cat([gates, ups], 1), downs
    return _gpt_oss_in_vllm(made) if kind == "gpt_oss" else made


_LATENT_INPUTS = ("q_a_proj", "kv_a_proj_with_mqa")


def _gpt_oss_in_vllm(tensors: Tensors) -> Tensors:
    made: Tensors = {}
    for name, tensor in tensors.items():
        new = name.replace(".self_attn.", ".attn.").replace("embed_tokens.", "embedding.")
        for hub, theirs in (("gate_up_proj", "w13"), ("down_proj", "w2")):
            if name.endswith(f".experts.{hub}"):
                new, tensor = new.replace(hub, f"{theirs}_weight"), tensor.transpose(1, 2).contiguous()
            new = new.replace(f"experts.{hub}_bias", f"experts.{theirs}_bias")
        made[new] = tensor
    return made


def test_vllm_gives_fused_projections_and_packed_experts_and_leads_back(
    saved: tuple[str, Path, Tensors], tmp_path: Path
) -> None:
    kind, folder, _ = saved
    hub, config = load_file(folder / "model.safetensors"), _config(folder)
    expected = _fused_by_torch(kind, config, hub)
    if kind != "phi3":
        assert expected.keys() != hub.keys()
    _assert_equal(renamed(load_weights(folder), "vllm").load(framework="torch"), expected)
    back = _write(tmp_path / kind / "model.safetensors", expected, config)
    _assert_equal(renamed(back, "hf").load(framework="torch"), hub)
    # From one library's layout to another's, through the hub's.
    _assert_equal(renamed(back, "transformers5").load(framework="torch"), saved[2])


def _groups_by_torch(config: dict[str, Any], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Interleave queries, keys and values as Megatron's `linear_qkv` has them: group by group of the keys' heads."""
    groups = config["num_key_value_heads"]
    parts = [tensor.reshape(groups, -1, *tensor.shape[1:]) for tensor in (q, k, v)]
    return torch.cat(parts, 1).reshape(-1, *q.shape[1:])


def _megatron_by_torch(kind: str, config: dict[str, Any], hub: Tensors) -> Tensors:
    """Convert the hub's tensors as Megatron Bridge does, by torch alone."""
    names = {
        "model.embed_tokens.weight": "embedding.word_embeddings.weight",
        "model.norm.weight": "decoder.final_layernorm.weight",
        "lm_head.weight": "output_layer.weight",
    }
    left, made = dict(hub), {}
    for layer in range(config["num_hidden_layers"]):
        ours, theirs = f"model.layers.{layer}", f"decoder.layers.{layer}"
        attention = f"{theirs}.self_attention"
        for end in ("weight", "bias"):
            qkv = [left.pop(f"{ours}.self_attn.{name}_proj.{end}", None) for name in "qkv"]
            if kind == "phi3" and end == "weight":
                heads, size = config["num_attention_heads"], config["hidden_size"] // config["num_attention_heads"]
                sizes = [heads * size, *[config["num_key_value_heads"] * size] * 2]
                qkv = list(left.pop(f"{ours}.self_attn.qkv_proj.weight").split(sizes))
            if qkv[0] is not None:
                made[f"{attention}.linear_qkv.{end}"] = _groups_by_torch(config, *qkv)
        for end in ("weight", "bias"):
            names[f"{ours}.self_attn.o_proj.{end}"] = f"{attention}.linear_proj.{end}"
            names[f"{ours}.mlp.router.{end}"] = f"{theirs}.mlp.router.{end}"
        if kind == "gpt_oss":
            made[f"{attention}.core_attention.softmax_offset"] = left.pop(f"{ours}.self_attn.sinks")
            for end, new in (("", "weight"), ("_bias", "bias")):
                gate_up, down = (left.pop(f"{ours}.mlp.experts.{name}_proj{end}") for name in ("gate_up", "down"))
                for expert in range(config["num_local_experts"]):
                    front = f"{theirs}.mlp.experts.linear_fc"
                    rows = gate_up[expert].T if gate_up.ndim == 3 else gate_up[expert]
                    made[f"{front}1.{new}{expert}"] = torch.cat([rows[::2], rows[1::2]])
                    made[f"{front}2.{new}{expert}"] = down[expert].T if down.ndim == 3 else down[expert]
        block = f"{ours}.block_sparse_moe" if kind == "mixtral" else f"{ours}.mlp"
        gate, up, down = ("w1", "w3", "w2") if kind == "mixtral" else ("gate_proj", "up_proj", "down_proj")
        for expert in range(config.get("num_experts") or config.get("num_local_experts") or 0):
            front, new = f"{block}.experts.{expert}", f"{theirs}.mlp.experts"
            if f"{front}.{gate}.weight" in left:
                fc1 = torch.cat([left.pop(f"{front}.{name}.weight") for name in (gate, up)])
                made[f"{new}.linear_fc1.weight{expert}"] = fc1
                made[f"{new}.linear_fc2.weight{expert}"] = left.pop(f"{front}.{down}.weight")
        for front, new in ((f"{ours}.mlp", "mlp"), (f"{ours}.mlp.shared_expert", "mlp.shared_experts")):
            if f"{front}.gate_proj.weight" in left:
                fc1 = torch.cat([left.pop(f"{front}.{name}_proj.weight") for name in ("gate", "up")])
                made[f"{theirs}.{new}.linear_fc1.weight"] = fc1
            for end, fc in (("down_proj", "linear_fc2"), ("gate_up_proj", "linear_fc1")):
                names[f"{front}.{end}.weight"] = f"{theirs}.{new}.{fc}.weight"
        is_sparse = any(name.startswith(f"{theirs}.mlp.experts.") for name in made)
        after = f"{theirs}.pre_mlp_layernorm" if is_sparse else f"{theirs}.mlp.linear_fc1.layer_norm"
        names |= {
            f"{ours}.input_layernorm.weight": f"{attention}.linear_qkv.layer_norm_weight",
            f"{ours}.self_attn.q_norm.weight": f"{attention}.q_layernorm.weight",
            f"{ours}.self_attn.k_norm.weight": f"{attention}.k_layernorm.weight",
            f"{block}.gate.weight": f"{theirs}.mlp.router.weight",
            f"{ours}.mlp.shared_expert_gate.weight": f"{theirs}.mlp.shared_experts.gate_weight",
            f"{ours}.post_attention_layernorm.weight": f"{after}{'.' if is_sparse else '_'}weight",
        }
        if kind == "gemma3_text":
            names |= {
                f"{ours}.post_attention_layernorm.weight": f"{attention}.linear_proj.post_layernorm.weight",
                f"{ours}.pre_feedforward_layernorm.weight": f"{theirs}.mlp.linear_fc1.layer_norm_weight",
                f"{ours}.post_feedforward_layernorm.weight": f"{theirs}.mlp.linear_fc2.post_layernorm.weight",
            }
    return made | {names[name]: tensor for name, tensor in left.items()}


def _latent_megatron_by_torch(_: str, config: dict[str, Any], hub: Tensors) -> Tensors:
    """Convert the hub's tensors with latent attention as Megatron Bridge does, by torch alone."""
    attention = {"o_proj": "linear_proj", "q_proj": "linear_q_proj", "q_a_proj": "linear_q_down_proj"}
    attention |= {"q_b_proj": "linear_q_up_proj", "kv_b_proj": "linear_kv_up_proj"}
    attention |= {"kv_a_proj_with_mqa": "linear_kv_down_proj"}
    made = {}
    for name, tensor in hub.items():
        layer = name.removeprefix("model.layers.").partition(".")[0]
        is_dense = layer.isdecimal() and int(layer) < config["first_k_dense_replace"]
        norm = "mlp.linear_fc1.layer_norm_weight" if is_dense else "pre_mlp_layernorm.weight"
        new = name.replace("model.layers", "decoder.layers").replace("post_attention_layernorm.weight", norm)
        for old, their in attention.items():
            new = new.replace(f"self_attn.{old}.", f"self_attention.{their}.")
        for old in ("q", "kv"):
            new = new.replace(f"self_attn.{old}_a_layernorm.", f"self_attention.linear_{old}_up_proj.layer_norm_")
        new = new.replace("mlp.gate.e_score_correction_bias", "mlp.router.expert_bias").replace(".gate.", ".router.")
        new = new.replace("model.norm", "decoder.final_layernorm").replace("lm_head", "output_layer")
        new = new.replace("model.embed_tokens", "embedding.word_embeddings")
        front, _, end = new.rpartition(".mlp.")
        if front and end.endswith("up_proj.weight"):
            continue
        if end.endswith("gate_proj.weight"):
            tensor = torch.cat([tensor, hub[name.replace("gate_proj", "up_proj")]])
        end = end.replace("gate_proj", "linear_fc1").replace("down_proj", "linear_fc2")
        if end.startswith("experts."):
            _, expert, fc, _ = end.split(".")
            end = f"experts.{fc}.weight{expert}"
        made[f"{front}.mlp.{end}" if front else new] = tensor
    return made


def test_layers_that_predict_more_tokens_stand_by_themselves_in_megatron(tmp_path: Path) -> None:
    config = {**_LATENT, "model_type": "deepseek_v3", "num_nextn_predict_layers": 1}
    tensors = {f"model.layers.2.{name}": torch.rand(4, 2) for name in ("eh_proj.weight", "self_attn.kv_b_proj.weight")}
    tensors |= {f"model.layers.2.mlp.experts.0.{name}_proj.weight": torch.rand(4, 2) for name in ("gate", "up", "down")}
    found = renamed(_write(tmp_path / "model.safetensors", tensors, config), "megatron").load(framework="torch")
    layer = "mtp.layers.0.mtp_model_layer"
    _assert_equal(
        found,
        {
            "mtp.layers.0.eh_proj.weight": tensors["model.layers.2.eh_proj.weight"],
            f"{layer}.self_attention.linear_kv_up_proj.weight": tensors["model.layers.2.self_attn.kv_b_proj.weight"],
            f"{layer}.mlp.experts.linear_fc1.weight0": torch.cat(
                [tensors[f"model.layers.2.mlp.experts.0.{name}_proj.weight"] for name in ("gate", "up")]
            ),
            f"{layer}.mlp.experts.linear_fc2.weight0": tensors["model.layers.2.mlp.experts.0.down_proj.weight"],
        },
    )


def test_megatron_gives_the_groups_of_its_projections_and_leads_back(
    saved: tuple[str, Path, Tensors], tmp_path: Path
) -> None:
    kind, folder, _ = saved
    weights = load_weights(folder)
    hub, config = load_file(folder / "model.safetensors"), _config(folder)
    by_torch = _latent_megatron_by_torch if kind.startswith("deepseek") else _megatron_by_torch
    expected = by_torch(kind, config, hub)
    _assert_equal(renamed(weights, "megatron").load(framework="torch"), expected)
    back = _write(tmp_path / kind / "model.safetensors", expected, config)
    _assert_equal(renamed(back, "hf").load(framework="torch"), hub)


def test_gemma3_with_images_has_the_names_of_the_model(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForImageTextToText

    vision = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = AutoConfig.for_model(
        "gemma3",
        text_config=_CONFIGS["gemma3_text"],
        vision_config={**vision, "image_size": 8, "patch_size": 4},
        mm_tokens_per_image=4,
        image_token_index=47,
    )
    model = AutoModelForImageTextToText.from_config(config)
    model.save_pretrained(tmp_path / "hub")
    state = {name: tensor.clone() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}  # tied
    hub, values = load_weights(tmp_path / "hub"), _config(tmp_path / "hub")
    own = load_file(tmp_path / "hub" / "model.safetensors")
    _assert_equal(renamed(hub, "transformers5").load(framework="torch"), state)
    back = _write(tmp_path / "transformers5" / "model.safetensors", state, values)
    _assert_equal(renamed(back, "hf").load(framework="torch"), own)
    # vLLM has the hub's names here, with fused projections of both towers.
    vllm = renamed(hub, "vllm").load(framework="torch")
    for front in ("language_model.model.layers.1", "vision_tower.encoder.layers.0"):
        qkv = [own[f"{front}.self_attn.{name}_proj.weight"] for name in "qkv"]
        assert torch.equal(vllm[f"{front}.self_attn.qkv_proj.weight"], torch.cat(qkv))
    _assert_equal(
        renamed(_write(tmp_path / "vllm" / "model.safetensors", vllm, values), "hf").load(framework="torch"), own
    )
