"""`expectation_of_config`: names and shapes match files saved by transformers, and real checkpoints."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
import transformers

import max_weights
from max_weights import load_weights
from max_weights._expected_config import _glob, expectation_of_config
from max_weights.errors import ArgumentError, UnsupportedError
from refusals import refuses

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 40}
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("LlamaForCausalLM", {**SMALL, "tie_word_embeddings": True}),
    ("LlamaForCausalLM", {**SMALL, "tie_word_embeddings": False}),
    ("BertForMaskedLM", SMALL),
    ("GPT2LMHeadModel", {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 40, "n_positions": 8}),
    (
        "T5ForConditionalGeneration",
        {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "vocab_size": 40},
    ),
    # The experts of one layer are one parameter in the model, and several in the file.
    ("MixtralForCausalLM", {**SMALL, "num_key_value_heads": 2, "num_local_experts": 3}),
]


def shapes(folder: Path) -> dict[str, list[int]]:
    with safetensors.safe_open(folder / "model.safetensors", "pt") as file:
        return {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def check(spec: dict[str, Any], saved: dict[str, list[int]]) -> None:
    """Assert that the file matches, by those rules of the specification that a configuration uses."""
    assert spec["schema"] == "max-weights.expectation/1"
    tensors = spec["tensors"]
    assert {name: tensors[name]["shape"] for name in saved if name in tensors} == {
        name: shape for name, shape in saved.items() if name in tensors
    }
    missing = {name for name, requested in tensors.items() if name not in saved and not requested.get("optional")}
    for group in spec.get("ties", []):
        if any(name in saved for name in group):
            missing -= set(group)
    assert missing == set()


@pytest.mark.parametrize(("name", "settings"), MODELS, ids=[f"{name}-{i}" for i, (name, _) in enumerate(MODELS)])
def test_the_names_and_shapes_are_those_that_transformers_saves(name: str, settings: Any, tmp_path: Path) -> None:
    model_class = getattr(transformers, name)
    torch.manual_seed(0)
    model_class(model_class.config_class(**settings)).save_pretrained(tmp_path)
    spec = expectation_of_config(tmp_path)
    saved = shapes(tmp_path)
    check(spec, saved)
    assert set(saved) <= set(spec["tensors"])
    optional = {name for name, requested in spec["tensors"].items() if requested.get("optional")}
    assert optional == {name for group in spec.get("ties", []) for name in group[1:]}
    assert bool(spec.get("ties")) == (len(saved) < len(spec["tensors"]))
    assert json.loads(json.dumps(spec)) == spec


@pytest.mark.parametrize(
    ("config", "weights", "extra"),
    [
        ("minilm.config.json", "minilm.safetensors", {"embeddings.position_ids"}),
        ("pretrained/rxnfp/config.json", "pretrained/rxnfp/pytorch_model.bin", {"bert.embeddings.position_ids"}),
        (
            "pretrained/rxnmapper",
            "pretrained/rxnmapper/pytorch_model.bin",
            # transformers has no pooler in this class, and ignores it with a warning.
            {"albert.pooler.weight", "albert.pooler.bias", "albert.embeddings.position_ids"},
        ),
    ],
)
def test_a_real_checkpoint_is_what_its_configuration_says(
    models: Path, config: str, weights: str, extra: set[str]
) -> None:
    spec = expectation_of_config(models / config)
    saved = {info.name: list(info.shape) for info in max_weights.infos(load_weights(models / weights))}
    check(spec, saved)
    assert set(saved) - set(spec["tensors"]) <= extra
    allowed = set(spec["allow_extra"])
    assert set(saved) - set(spec["tensors"]) - allowed <= {"albert.pooler.weight", "albert.pooler.bias"}


def test_another_size_is_another_expectation(models: Path, tmp_path: Path) -> None:
    settings = json.loads((models / "minilm.config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "intermediate_size": 1000, "num_hidden_layers": 5}))
    tensors = expectation_of_config(tmp_path)["tensors"]
    assert tensors["encoder.layer.0.output.dense.weight"]["shape"] == [384, 1000]
    assert not any(name.startswith("encoder.layer.5.") for name in tensors)


def test_nothing_is_fetched_or_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even a kernel named in the configuration, which transformers itself would fetch."""

    def fetch(*_: Any, **__: Any) -> None:
        raise AssertionError("fetched")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", fetch)
    monkeypatch.setattr("socket.socket.connect", fetch)
    settings = {**SMALL, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    code = {"auto_map": {"AutoModelForCausalLM": "modeling.Model"}, "_attn_implementation": "evil/kernel"}
    (tmp_path / "modeling.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (tmp_path / "config.json").write_text(json.dumps({**settings, **code, "attn_implementation": "evil/kernel"}))
    assert len(expectation_of_config(tmp_path)["tensors"]) == 21
    (tmp_path / "config.json").write_text(json.dumps({**settings, **code, "architectures": ["EvilModel"]}))
    with refuses(UnsupportedError, "unsupported.architecture"):
        expectation_of_config(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["config.json", "modeling.py"]


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ("{", ArgumentError, "not valid JSON"),
        ("[" * 100_000, ArgumentError, "not valid JSON"),
        ("[]", ArgumentError, "no 'model_type'"),
        ('{"model_type": "nonesuch"}', UnsupportedError, "no model_type 'nonesuch'$"),
        ('{"model_type": "bert", "architectures": ["os"]}', UnsupportedError, "no class 'os'$"),
        ('{"model_type": "bert", "architectures": ["BertConfig"]}', UnsupportedError, "no class 'BertConfig'"),
        ('{"model_type": "bert", "num_hidden_layers": 1000000000}', ArgumentError, "more than 10000 layers"),
        ('{"model_type": "bert", "hidden_size": 7}', UnsupportedError, "cannot build BertModel from it: ValueError"),
        ('{"model_type": "llama", "quantization_config": {"bits": 4}}', UnsupportedError, "the weights are packed"),
    ],
)
def test_what_is_no_configuration_is_said(settings: str, error: type[Exception], says: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(settings)
    with pytest.raises(error, match=says):
        expectation_of_config(tmp_path / "config.json")


def test_what_a_class_ignores_becomes_patterns() -> None:
    assert _glob(r"rotary_emb\.inv_freq") == "*rotary_emb.inv_freq*"
    assert _glob(r"^model\.layers\.\d+\.bias$") == "model.layers.*.bias"
    assert _glob("attn.bias") == "*attn?bias*"
    assert _glob(r"(a|b)\.c") is None
