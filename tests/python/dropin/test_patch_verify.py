"""`MAX_WEIGHTS_VERIFY=1`: the result of `from_pretrained` is compared with its files; differences are errors."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import max_weights
from max_weights.errors import VerificationError
from refusals import refuses
from test_conversion import _CONFIGS, _SMALL, _model
from warm import Parent


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """Patch, and return the log lines about verifications since the last call."""
    caplog.set_level(logging.INFO, "max_weights.dropin")
    max_weights.patch(verify=True)

    def reported() -> list[str]:
        found = [
            record.message for record in caplog.records if "verified" in record.message or "equal" in record.message
        ]
        caplog.clear()
        return found

    yield reported
    max_weights.unpatch()


def _saved(kind: str, folder: Path, **values: Any) -> Any:
    model = _model(kind, {**_CONFIGS[kind], **values})
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("kind", _CONFIGS)
def test_every_parameter_of_every_architecture_is_verified(
    kind: str, tmp_path: Path, lines: Callable[[], list[str]]
) -> None:
    from transformers import AutoModel, AutoModelForCausalLM

    _saved(kind, tmp_path)
    for loader, options in (
        (AutoModelForCausalLM, {}),
        (AutoModelForCausalLM, {"dtype": torch.float32}),
        (AutoModelForCausalLM, {"dtype": torch.float16}),
        (AutoModel, {}),
    ):
        model = loader.from_pretrained(tmp_path, **options)
        (line,) = lines()
        assert line.startswith(
            f"{type(model).__name__}: {len(model.state_dict())} parameters and buffers are equal to "
        )
        assert "not verified" not in line
        # The only unused weights of a class are those of the head.
        used = "unused: 1 weight of the files ('lm_head.weight' first)" if loader is AutoModel else ""
        assert line.endswith(used)
        assert ("unused" in line) is (loader is AutoModel)


def _load_wrongly(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None]) -> None:
    """Inject an error at the end of transformers' loading."""
    from transformers import PreTrainedModel

    original = PreTrainedModel._finalize_model_loading

    def finalize(model: Any, *arguments: Any) -> Any:
        result = original(model, *arguments)
        with torch.no_grad():
            change(model)
        return result

    monkeypatch.setattr(PreTrainedModel, "_finalize_model_loading", staticmethod(finalize))


def _one_bit(model: Any) -> None:
    model.model.layers[0].self_attn.o_proj.weight.view(torch.int16)[7, 3] ^= 1


def _swapped(model: Any) -> None:
    one, other = (model.model.layers[0].self_attn.k_proj.weight, model.model.layers[0].self_attn.v_proj.weight)
    before = one.clone()
    one.copy_(other)
    other.copy_(before)


def _expert(model: Any) -> None:
    experts = model.model.layers[0].mlp.experts.gate_up_proj
    experts[0] = experts[1].clone()


def _nan(model: Any) -> None:
    model.model.norm.weight[5] = torch.nan


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        (_one_bit, "o_proj.weight': 1 of 32 rows differ from the weight 'model.layers.0.self_attn.o_proj.weight': 7"),
        (_swapped, "k_proj.weight': it holds 'model.layers.0.self_attn.v_proj.weight'"),
        (_expert, "rows 0-23 hold rows 24-47 of 'model.layers.0.mlp.experts.gate_up_proj'"),
        (_nan, "model.norm.weight': 1 of its values are NaN"),
    ],
)
def test_a_model_that_was_loaded_wrongly_is_an_error_that_names_parameter_and_rows(
    change: Callable[[Any], None], reported: str, tmp_path: Path, lines: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from transformers import AutoModelForCausalLM

    _saved("qwen3_moe", tmp_path)
    _load_wrongly(monkeypatch, change)
    with pytest.raises(VerificationError) as raised:
        AutoModelForCausalLM.from_pretrained(tmp_path)
    assert reported in str(raised.value)
    assert raised.value.findings
    assert lines() == []


def test_what_views_of_the_file_were_written_to_is_found(
    tmp_path: Path, lines: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is copied where the dtype is that of the file: the parameters are pages of it, until one is written."""
    from transformers import AutoModelForCausalLM

    _saved("llama", tmp_path, hidden_size=256, intermediate_size=256)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert "0 differ" not in lines()[0]
    _load_wrongly(monkeypatch, _one_bit)
    with refuses(VerificationError, "model.differs"):
        AutoModelForCausalLM.from_pretrained(tmp_path)
    assert (model.state_dict()["lm_head.weight"] == load_file(tmp_path / "model.safetensors")["lm_head.weight"]).all()


def test_tied_parameters_and_new_heads(tmp_path: Path, lines: Callable[[], list[str]]) -> None:
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    _saved("llama", tmp_path, tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert f": {len(model.state_dict())} parameters and buffers are equal" in lines()[0]
    AutoModelForSequenceClassification.from_pretrained(tmp_path)
    (line,) = lines()
    assert line.endswith("; not verified: 1 ('score.weight' first): the files do not have it")


def test_weights_that_the_model_has_no_parameter_for_are_listed_and_are_no_error(
    tmp_path: Path, lines: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    from transformers import AutoModel, BertConfig, BertForMaskedLM

    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 50}
    BertForMaskedLM(BertConfig(num_hidden_layers=6, **sizes)).save_pretrained(tmp_path)
    AutoModel.from_pretrained(tmp_path, num_hidden_layers=2, add_pooling_layer=False)
    level = next(record.levelname for record in caplog.records if "are equal to" in record.message)
    (line,) = lines()
    assert level == "WARNING"
    unused = [name for name in load_file(tmp_path / "model.safetensors") if not name.startswith("bert.embeddings")]
    unused = [name for name in unused if not name.startswith(("bert.encoder.layer.0.", "bert.encoder.layer.1."))]
    assert f"unused: {len(unused)} weights of the files (" in line
    assert len(unused) > 60


def test_a_head_that_is_tied_by_mistake_is_an_error(
    tmp_path: Path, lines: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM

    _saved("llama", tmp_path)

    def tie(model: Any) -> None:
        model.lm_head.weight = model.model.embed_tokens.weight

    _load_wrongly(monkeypatch, tie)
    with refuses(VerificationError, "model.differs"):
        AutoModelForCausalLM.from_pretrained(tmp_path)
    assert lines() == []


def test_shards_and_pickles_and_names_of_old_models(tmp_path: Path, lines: Callable[[], list[str]]) -> None:
    from transformers import AutoModel, AutoModelForCausalLM, BertConfig, BertModel

    model = _model("llama", _SMALL)
    model.save_pretrained(tmp_path / "shards", max_shard_size="10KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    AutoModelForCausalLM.from_pretrained(tmp_path / "shards")
    assert f"{len(model.state_dict())} parameters and buffers are equal to {tmp_path / 'shards'}" in lines()[0]
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    old = BertModel(BertConfig(vocab_size=50, **sizes))
    old.save_pretrained(tmp_path / "old")
    state = load_file(tmp_path / "old/model.safetensors")
    renamed = {"bert." + name.replace("LayerNorm.weight", "LayerNorm.gamma"): value for name, value in state.items()}
    (tmp_path / "old/model.safetensors").unlink()
    torch.save(renamed, tmp_path / "old/pytorch_model.bin")
    loaded = AutoModel.from_pretrained(tmp_path / "old")
    (line,) = lines()
    assert line.startswith(f"BertModel: {len(loaded.state_dict())} parameters and buffers are equal to")
    assert "not verified" not in line


def test_the_program_of_a_user_is_verified_by_the_environment(tmp_path: Path, warm_transformers: Parent) -> None:
    _saved("llama", tmp_path)
    code = (
        "import logging, os\n"
        "logging.basicConfig(level=logging.INFO)\n"
        "os.environ['MAX_WEIGHTS_VERIFY'] = '1'\n"
        "import max_weights\n"
        "max_weights.patch()\n"
        "from transformers import AutoModelForCausalLM\n"
        f"AutoModelForCausalLM.from_pretrained({str(tmp_path)!r})\n"
        "max_weights.unpatch()\n"
        f"AutoModelForCausalLM.from_pretrained({str(tmp_path)!r})\n"
    )
    ended = warm_transformers.run(code, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("parameters and buffers are equal to") == 1


def test_models_of_diffusers_are_verified(tmp_path: Path, lines: Callable[[], list[str]]) -> None:
    from diffusers import AutoencoderKL

    model = AutoencoderKL(block_out_channels=(4,), norm_num_groups=2)
    model.save_pretrained(tmp_path)
    AutoencoderKL.from_pretrained(tmp_path)
    assert f"{len(model.state_dict())} parameters and buffers are equal" in lines()[0]
    AutoencoderKL.from_pretrained(tmp_path, torch_dtype=torch.bfloat16)
    assert f"{len(model.state_dict())} parameters and buffers are equal" in lines()[0]


def test_gguf_models_are_verified(models: Path, lines: Callable[[], list[str]]) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(models, gguf_file="smollm2-135m.Q4_1.gguf")
    (line,) = lines()
    assert f"{len(model.state_dict())} parameters and buffers are equal" in line, line


def test_a_head_of_another_size_is_not_verified_and_said_to_be(tmp_path: Path, lines: Callable[[], list[str]]) -> None:
    from transformers import AutoModelForCausalLM

    _saved("llama", tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    state["lm_head.weight"] = state["lm_head.weight"][:20].clone()
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    AutoModelForCausalLM.from_pretrained(tmp_path, ignore_mismatched_sizes=True)
    assert "1 ('lm_head.weight' first): its shape differs" in lines()[0]


def test_of_a_quantized_model_what_is_as_in_the_file_is_verified_and_the_rest_said_not_to_be(
    tmp_path: Path, lines: Callable[[], list[str]]
) -> None:
    from transformers import AutoModelForCausalLM

    _saved("llama", tmp_path)
    state: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        if "_proj" not in name:
            state[name] = tensor
            continue
        rows, columns = tensor.shape
        state[f"{name}_packed"] = torch.randint(-(1 << 30), 1 << 30, (rows, columns // 4), dtype=torch.int32)
        state[f"{name}_scale"] = torch.rand(rows, 1).bfloat16()
        if "q_proj" not in name:
            state[f"{name}_shape"] = torch.tensor([rows, columns])
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    scheme = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True, "dynamic": False}
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
        "ignore": ["lm_head"], "config_groups": {"group_0": {"targets": ["Linear"], "weights": scheme}},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    AutoModelForCausalLM.from_pretrained(tmp_path)
    (line,) = lines()
    assert f": {len(state)} parameters and buffers are equal" in line
    assert "not verified: 2 ('model.layers.0.self_attn.q_proj.weight_shape' first): the files do not have it" in line
