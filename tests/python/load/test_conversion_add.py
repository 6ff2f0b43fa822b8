"""`Add`, and the norms of Gemma and Nemotron, to which llama.cpp's converter adds 1: the bits are those of torch."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import max_weights
from max_weights import FormatError, UnsupportedError, load_weights, renamed
from max_weights.conversion import Add, Concatenate, ConversionRule, Stack, Transpose
from max_weights.sharding import Shard, ShardingStrategy
from refusals import refuses

Tensors = dict[str, torch.Tensor]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def _every_half(dtype: torch.dtype) -> torch.Tensor:
    """Return all 16-bit patterns except NaN as a matrix, or random bits of a wider dtype."""
    if dtype.itemsize > 2:
        generator = torch.Generator().manual_seed(0)
        words = torch.randint(-(1 << 31), 1 << 31, (256 * 256 * dtype.itemsize // 4,), generator=generator)
        found = words.to(torch.int32).view(dtype)
    else:
        found = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(dtype)
    return torch.where(found.isnan(), torch.zeros((), dtype=dtype), found).reshape(256, 256)


@pytest.fixture(params=FLOATS, ids=str)
def norms(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, torch.Tensor]:
    """Return a file with a weight of all values of a dtype and another weight, and the values."""
    values = _every_half(request.param)
    save_file({"norm.weight": values, "other": torch.arange(8.0)}, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors", values


@pytest.mark.parametrize("amount", [1, -1])
def test_all_ways_to_a_sum_give_what_torch_gives(norms: tuple[Path, torch.Tensor], tmp_path: Path, amount: int) -> None:
    path, values = norms
    expected = values + amount
    tree = renamed(load_weights(path), [ConversionRule("norm.weight", "shifted", Add(amount))])
    assert _bits(tree.shifted.torch()) == _bits(expected)
    assert _bits(tree.load(framework="torch")["shifted"]) == _bits(expected)
    assert {name: _bits(node.torch()) for name, node in tree.stream()}["shifted"] == _bits(expected)
    assert _bits(tree.shifted[3:40:5, ::-2].torch()) == _bits(expected[3:40:5, :].flip(1)[:, ::2])
    out = torch.empty_like(expected)
    tree.load(out={"shifted": out})
    assert _bits(out) == _bits(expected)
    tree.save(tmp_path / "saved.safetensors")
    saved = load_file(tmp_path / "saved.safetensors")
    assert _bits(saved["shifted"]) == _bits(expected)
    assert _bits(saved["other"]) == _bits(torch.arange(8.0))
    assert (
        max_weights.fingerprint(tree, digests=True).digests["shifted"]
        == max_weights.fingerprint(load_weights(tmp_path / "saved.safetensors"), digests=True).digests["shifted"]
    )
    assert _bits(pickle.loads(pickle.dumps(tree)).shifted.torch()) == _bits(expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_sum_is_rounded_once_to_the_dtype_in_which_it_is_taken(
    norms: tuple[Path, torch.Tensor], tmp_path: Path, dtype: str
) -> None:
    path, values = norms
    wide = values if values.dtype == torch.float64 else values.float()
    expected = (wide - 1).to(getattr(torch, dtype))
    if values.dtype == torch.float64:
        # torch itself rounds twice here, through float32.
        save_file({"sum": wide - 1}, tmp_path / "wide.safetensors")
        expected = load_weights(tmp_path / "wide.safetensors").load(dtype=dtype, framework="torch")["sum"]
    tree = renamed(load_weights(path), [ConversionRule("norm.weight", "shifted", Add(-1))])
    assert _bits(tree.load(dtype=dtype, framework="torch")["shifted"]) == _bits(expected)
    tree.save(tmp_path / "saved.safetensors", dtype=dtype)
    assert _bits(load_file(tmp_path / "saved.safetensors")["shifted"]) == _bits(expected)
    assert _bits(tree.shifted.torch()) == _bits(values - 1)


def test_a_slice_and_a_shard_of_a_sum_read_what_they_need(norms: tuple[Path, torch.Tensor]) -> None:
    path, values = norms
    tree = renamed(load_weights(path, backend="read"), [ConversionRule("norm.weight", "shifted", Add(1))])
    shard = Shard(3, 8, {"shifted": ShardingStrategy.rowwise(8)})
    plan = max_weights.plan(tree, select="shifted", shard=shard)
    assert plan.bytes_read == values.nbytes // 8
    assert _bits(tree.load(select="shifted", shard=shard, framework="torch")["shifted"]) == _bits(values[96:128] + 1)
    assert "add 1" in str(plan)


def test_a_sum_is_never_a_view_of_the_file(norms: tuple[Path, torch.Tensor]) -> None:
    path, values = norms
    tree = renamed(load_weights(path), [ConversionRule("norm.weight", "shifted", Add(1))])
    assert not tree.shifted.data().data.is_mapped
    tree.shifted.torch().zero_()
    assert _bits(tree.shifted.torch()) == _bits(values + 1)
    with refuses(Exception):
        tree.load(copy=False)


def test_a_sum_comes_anywhere_among_the_steps(tmp_path: Path) -> None:
    experts = {f"experts.{number}.w": torch.randn(6, 4) for number in range(3)} | {"v": torch.randn(3, 4, 2)}
    save_file(experts, tmp_path / "model.safetensors")
    rules = [ConversionRule("experts.#.w", "packed", [Stack(0), Transpose(1, 2), Add(-2)])]
    tree = renamed(load_weights(tmp_path), rules)
    packed = torch.stack([experts[f"experts.{number}.w"] for number in range(3)]).transpose(1, 2) - 2
    assert _bits(tree.packed.torch()) == _bits(packed)
    assert _bits(tree.packed[1, :, 2:5].torch()) == _bits(packed[1, :, 2:5])
    assert ConversionRule(["a", "b"], "c", [Add(1), Concatenate(0)]).reverse().steps[-1] == Add(-1)
    joined = renamed(load_weights(tmp_path), [ConversionRule(["experts.#.w"], "w#", Add(1))])
    assert _bits(joined["w2"].torch()) == _bits(experts["experts.2.w"] + 1)


def test_what_nothing_can_be_added_to_is_refused_by_name(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tensor("packed.weight", np.zeros((2, 34), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    add = [ConversionRule("*.weight", "*.shifted", Add(1))]
    with refuses(UnsupportedError, "names.conversion"):
        renamed(load_weights(tmp_path / "model.gguf"), add)
    save_file({"a.weight": torch.arange(4)}, tmp_path / "ints.safetensors")
    with refuses(UnsupportedError, "names.conversion"):
        renamed(load_weights(tmp_path / "ints.safetensors"), add)
    save_file({"a.weight": torch.ones(4)}, tmp_path / "floats.safetensors")
    once = renamed(load_weights(tmp_path / "floats.safetensors"), add)
    with refuses(UnsupportedError, "names.conversion"):
        renamed(once, [rule.reverse() for rule in add])
    for steps in (
        [Add(1), Add(2)],
        [Add(1 << 25)],
        [Add(1 << 40)],
    ):
        with refuses(ValueError):
            renamed(load_weights(tmp_path / "floats.safetensors"), [ConversionRule("a.weight", "b", steps)])


Write = Callable[[str, dict[str, np.ndarray]], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a GGUF file of an architecture."""

    def make(architecture: str, tensors: dict[str, np.ndarray]) -> Path:
        path = tmp_path / f"{architecture}.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        for name, tensor in tensors.items():
            writer.add_tensor(name, tensor)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return make


_GEMMA3 = {"token_embd.weight": (16, 8), "output_norm.weight": (8,), "blk.0.attn_q.weight": (8, 8)}
_GEMMA3 |= {f"blk.0.{name}.weight": (8,) for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")}
_GEMMA3 |= {f"blk.0.attn_{side}_norm.weight": (4,) for side in "qk"}


@pytest.mark.parametrize("architecture", ["gemma", "gemma2", "gemma3", "gemma-embedding", "nemotron"])
def test_norms_of_a_gguf_file_are_what_transformers_makes_of_them(architecture: str, write: Write) -> None:
    from transformers.modeling_gguf_pytorch_utils import Gemma2TensorProcessor

    random = np.random.default_rng(0)
    names = {name: shape for name, shape in _GEMMA3.items() if architecture.startswith("gemma3") or "post" not in name}
    names = {name: shape for name, shape in names.items() if "gemma" in architecture or "q_norm" not in name}
    tensors = {name: random.standard_normal(shape, np.float32) for name, shape in names.items()}
    file = load_weights(write(architecture, tensors))
    hub = renamed(file, "hf")
    process = Gemma2TensorProcessor().process
    for (name, node), (_, new) in zip(file.items(), hub.items(), strict=True):
        expected = process(tensors[name], name).weights
        assert new.data().data.to_numpy().tobytes() == expected.tobytes(), name
        assert new.data().data.is_mapped == ("norm" not in name)
        assert node.data().data.to_numpy().tobytes() == tensors[name].tobytes()
    assert renamed(hub, "hf") is hub


def test_a_gguf_file_gets_the_layout_of_a_library_by_way_of_the_hubs(write: Write) -> None:
    random = np.random.default_rng(0)
    shapes: dict[str, Any] = {**_GEMMA3, "blk.0.attn_k.weight": (4, 8), "blk.0.attn_v.weight": (4, 8)}
    tensors = {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    config = {"model_type": "gemma3_text", "num_attention_heads": 2, "num_key_value_heads": 1}
    tree = renamed(load_weights(write("gemma3", tensors)), "vllm", config=config)
    layer = tree.model.layers[0]
    rows = [tensors[f"blk.0.attn_{side}.weight"] for side in "qkv"]
    assert layer.self_attn.qkv_proj.weight.numpy().tobytes() == np.concatenate(rows).tobytes()
    assert layer.input_layernorm.weight.numpy().tobytes() == (tensors["blk.0.attn_norm.weight"] - 1).tobytes()
    back = renamed(tree, "hf", config=config)
    norm = tensors["blk.0.post_ffw_norm.weight"] - 1
    assert back.model.layers[0].post_feedforward_layernorm.weight.numpy().tobytes() == norm.tobytes()


def test_a_norm_in_packed_blocks_is_an_error_of_that_weight_alone(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "gemma2")
    writer.add_tensor("output_norm.weight", np.zeros((1, 34), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("token_embd.weight", np.ones((4, 4), np.float32))
    writer.add_tensor("blk.0.attn_norm.weight", np.ones(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    hub = renamed(load_weights(tmp_path / "model.gguf"), "hf")
    assert hub.model.embed_tokens.weight.numpy().sum() == 16
    assert hub.model.layers[0].input_layernorm.weight.numpy().sum() == 0
    with refuses(FormatError, "names.conversion"):
        hub.model.norm.weight.data()
