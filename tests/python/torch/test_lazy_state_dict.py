"""`max_weights.lazy_state_dict` as a state dict for transformers, compared with its own loading."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

import max_weights
from max_weights._lazy import LazyTensor
from refusals import refuses


@pytest.fixture(autouse=True)
def quiet() -> Any:
    from transformers.utils import logging

    logging.disable_progress_bar()
    yield
    logging.enable_progress_bar()


def tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return dict([*module.named_parameters(), *module.named_buffers()])


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    left, right = tensors(one), tensors(other)
    assert left.keys() == right.keys()
    return all(left[name].dtype == right[name].dtype and torch.equal(left[name], right[name]) for name in left)


@pytest.fixture(scope="module")
def bert(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("bert")
    (folder / "model.safetensors").symlink_to(models / "minilm.safetensors")
    (folder / "config.json").write_text((models / "minilm.config.json").read_text())
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small bfloat16 model with tied weights, in several shards."""
    folder: Path = tmp_path_factory.mktemp("llama")
    config = LlamaConfig(
        vocab_size=512, hidden_size=64, intermediate_size=96, num_hidden_layers=12, num_attention_heads=4,
        tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder, max_shard_size="200KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 3
    return folder


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "auto"])
def test_a_model_of_transformers_is_what_it_loads_by_itself(bert: Path, models: Path, dtype: str) -> None:
    expected = BertModel.from_pretrained(bert, dtype=dtype)
    config = BertConfig(**json.loads((models / "minilm.config.json").read_text()))
    state = max_weights.lazy_state_dict(max_weights.load_weights(bert))
    assert same(BertModel.from_pretrained(None, config=config, state_dict=state, dtype=dtype), expected)


@pytest.mark.parametrize("options", [{}, {"dtype": "float32"}, {"copy": True}])
def test_a_sharded_model_with_tied_weights_too(llama: Path, options: dict[str, Any]) -> None:
    expected = LlamaForCausalLM.from_pretrained(llama, dtype=torch.float32)
    state = max_weights.lazy_state_dict(max_weights.load_weights(llama), **options)
    config = LlamaConfig.from_pretrained(llama)
    module = LlamaForCausalLM.from_pretrained(None, config=config, state_dict=state, dtype=torch.float32)
    assert same(module, expected)
    assert module.lm_head.weight is module.model.embed_tokens.weight


def test_each_tensor_is_taken_once(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    take = LazyTensor.__getitem__

    def counted(lazy: LazyTensor, index: Any) -> torch.Tensor:
        taken.append(lazy._info.name)
        return take(lazy, index)

    monkeypatch.setattr(LazyTensor, "__getitem__", counted)
    state = max_weights.lazy_state_dict(max_weights.load_weights(llama))
    LlamaForCausalLM.from_pretrained(None, config=LlamaConfig.from_pretrained(llama), state_dict=state)
    assert sorted(taken) == sorted(state)


def test_the_dtype_of_the_file_is_found_where_nobody_says_it(llama: Path) -> None:
    config = LlamaConfig.from_pretrained(llama)
    config.dtype = None
    state = max_weights.lazy_state_dict(max_weights.load_weights(llama))
    module = LlamaForCausalLM.from_pretrained(None, config=config, state_dict=state, dtype="auto")
    assert module.dtype is torch.bfloat16


def test_a_lazy_tensor_says_what_it_is_and_gives_what_is_asked_for(models: Path) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    state = max_weights.lazy_state_dict(weights, "pooler", rename={"pooler.": "head."})
    assert list(state) == ["head.dense.bias", "head.dense.weight"]
    lazy = state["head.dense.weight"]
    assert (lazy.get_shape(), lazy.get_dtype()) == ([384, 384], "F32")
    assert (lazy.shape, lazy.dtype, lazy.is_floating_point()) == (torch.Size([384, 384]), torch.float32, True)
    assert repr(lazy) == "LazyTensor(float32, (384, 384))"
    whole = torch.from_numpy(np.array(weights.pooler.dense.weight))
    for index in (..., 3, -1, slice(2, 5), (slice(None), 7), (slice(1, 9, 3), slice(-4, None)), (..., 0)):
        assert torch.equal(lazy[index], whole[index]), index
    with pytest.raises(IndexError):
        lazy[384]
    half = max_weights.lazy_state_dict(weights, dtype="bfloat16", copy=True)["pooler.dense.weight"]
    assert half.get_dtype() == "BF16"
    assert torch.equal(half[...], whole.bfloat16())
    assert torch.equal(half[4:6, 1], whole[4:6, 1].bfloat16())
    position_ids = max_weights.lazy_state_dict(weights, dtype="bfloat16")["embeddings.position_ids"]
    assert (position_ids.get_dtype(), position_ids.is_floating_point()) == ("I64", False)


@pytest.mark.parametrize("copy", [False, True])
def test_memory_of_its_own_is_not_that_of_the_file(models: Path, copy: bool) -> None:
    lazy = max_weights.lazy_state_dict(max_weights.load_weights(models / "minilm.safetensors"), copy=copy)[
        "pooler.dense.weight"
    ]
    for index in (..., slice(0, 2)):
        first, second = lazy[index], lazy[index]
        assert (first.data_ptr() != second.data_ptr()) == copy


def test_packed_blocks_are_decoded(models: Path) -> None:
    weights = max_weights.load_weights(models / "smollm2-135m.Q4_1.gguf")
    name = "model.layers.0.self_attn.q_proj.weight"
    expected = weights.load(name, rename="hf", dtype="bfloat16", framework="torch")[name]
    lazy = max_weights.lazy_state_dict(weights, rename="hf", dtype="bfloat16")[name]
    assert (lazy.get_shape(), lazy.get_dtype()) == ([576, 576], "BF16")
    assert torch.equal(lazy[...], expected)
    assert torch.equal(lazy[5:9, :3], expected[5:9, :3])
    packed = max_weights.lazy_state_dict(weights, packed="keep")["blk.0.attn_q.weight"]
    assert (packed.get_shape(), packed.get_dtype()) == ([576, 360], "U8")


def test_what_only_torch_has_comes_as_torch_has_it(tmp_path: Path) -> None:
    values = torch.tensor([1 + 2j, 3], dtype=torch.complex128)
    torch.save({"z": values}, tmp_path / "z.pt")
    lazy = max_weights.lazy_state_dict(max_weights.load_weights(tmp_path / "z.pt"))["z"]
    assert (lazy.dtype, lazy.shape) == (torch.complex128, (2,))
    assert torch.equal(lazy[...], values)
    assert torch.equal(lazy[1:], values[1:])
    with refuses(max_weights.UnsupportedError, "unsupported.dtype"):
        lazy.get_dtype()


def test_a_part_of_the_tree_is_a_state_dict_of_full_names(models: Path) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    state = max_weights.lazy_state_dict(weights.pooler)
    assert list(state) == ["pooler.dense.bias", "pooler.dense.weight"]
    assert state["pooler.dense.bias"][:2].shape == (2,)


def test_wrong_arguments_are_errors(models: Path) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    with refuses(max_weights.WeightNotFoundError, "weight.not-found"):
        max_weights.lazy_state_dict(weights, "pooler.dense.bais")
    with refuses(ValueError, "argument.name-twice"):
        max_weights.lazy_state_dict(weights, rename=lambda _: "x")
    with refuses(TypeError):
        max_weights.lazy_state_dict(weights, framework="numpy")  # type: ignore[call-arg]
    lazy = max_weights.lazy_state_dict(weights)["pooler.dense.bias"]
    weights.close()
    with pytest.raises(max_weights.ClosedError):
        lazy[...]
