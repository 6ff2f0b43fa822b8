"""Saving the shards of ranks: each equals that of `load(shard=…)`, and together they are the whole."""

import json
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch

import gguf_models
import max_weights
from command_line import COMMAND
from max_weights import DType, load_weights
from max_weights._resharding import reshard
from max_weights.errors import ArgumentError, UnsupportedError
from max_weights.sharding import Shard, ShardingStrategy, Table
from refusals import refuses
from test_loading import raw

TINY = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 80,
    "max_position_embeddings": 32,
}
EXPERTS = {"num_experts": 6, "moe_intermediate_size": 16, "num_experts_per_tok": 2, "decoder_sparse_step": 1}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "phi3": {"pad_token_id": 0},
    "qwen2": {},
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": EXPERTS | {"head_dim": 8},
}
# Fused weights: each rank has a share of every part.
FUSED = re.compile(r".*\.(qkv_proj|gate_up_proj)(\.weight)?")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folders of small models as transformers saves them."""
    import transformers

    made: dict[str, Path] = {}

    def save(model: str) -> Path:
        if model not in made:
            torch.manual_seed(0)
            config = transformers.AutoConfig.for_model(model, **TINY | MODELS[model])
            made[model] = tmp_path_factory.mktemp(model)
            transformers.AutoModelForCausalLM.from_config(config).save_pretrained(made[model])
            (made[model] / "tokenizer.json").write_text("{}")
            (made[model] / "modeling.py").write_text("raise SystemExit")
        return made[model]

    return save


def check_ranks(folder: Path, weights: Any, world: int, **options: Any) -> list[dict[str, Any]]:
    """Assert that each folder has the result of `load` for its rank, and records the rank."""
    ranks = []
    for rank in range(world):
        own = load_weights(folder / f"rank-{rank}")
        found = own.load()
        expected = weights.load(shard=Shard(rank, world, "auto"), **options)
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
            assert raw(found[name]) == raw(tensor), name
        for file in {info.file for info in max_weights.infos(own)}:
            with safetensors.safe_open(file, "pt") as opened:
                message = opened.metadata()
            assert message == {"format": "pt", "tensor_parallel_rank": str(rank), "tensor_parallel_size": str(world)}
        ranks.append({name: torch.from_dlpack(tensor) for name, tensor in found.items()})
    return ranks


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("model", MODELS)
def test_the_parts_of_all_ranks_are_the_whole(tmp_path: Path, saved: Any, model: str, world: int) -> None:
    plan = reshard(saved(model), tmp_path / "out", world, max_shard_size="20KB")
    weights = load_weights(saved(model))
    ranks = check_ranks(tmp_path / "out", weights, world)
    assert (tmp_path / "out/rank-0/model.safetensors.index.json").is_file()
    whole = weights.load(framework="torch")
    assert plan.weights.keys() == whole.keys()
    for name, (shape, axis, sizes) in plan.weights.items():
        tensors = [rank[name] for rank in ranks]
        assert shape == tuple(whole[name].shape)
        if axis is None:
            assert all(torch.equal(tensor, whole[name]) for tensor in tensors), name
            continue
        assert [tensor.shape[axis] for tensor in tensors] == list(sizes), name
        if not FUSED.fullmatch(name):
            assert torch.equal(torch.cat(tensors, axis), whole[name]), name
    cut = {name for name, (_, axis, _) in plan.weights.items() if axis is not None}
    assert {"model.embed_tokens.weight", "model.layers.1.self_attn.o_proj.weight"} <= cut
    assert "model.norm.weight" not in cut
    assert list(plan.bytes) == [sum(tensor.nbytes for tensor in rank.values()) for rank in ranks]


def test_what_belongs_to_the_model_is_copied_and_the_dtype_is_noted(tmp_path: Path, saved: Any) -> None:
    plan = reshard(saved("llama"), tmp_path / "out", 2, dtype="bfloat16", sync=False)
    assert plan.copied == ("config.json", "generation_config.json", "modeling.py", "tokenizer.json")
    for rank in range(2):
        folder = tmp_path / "out" / f"rank-{rank}"
        assert {file.name for file in folder.iterdir()} == {"model.safetensors", *plan.copied}
        config = json.loads((folder / "config.json").read_bytes())
        before = json.loads((saved("llama") / "config.json").read_bytes())
        assert config == before | {"dtype": "bfloat16"}
        assert (folder / "tokenizer.json").read_text() == "{}"
    check_ranks(tmp_path / "out", load_weights(saved("llama")), 2, dtype="bfloat16")


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff"])
def test_a_configuration_that_is_no_object_is_copied_as_it_is(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model").mkdir()
    max_weights.save_file({"a": np.zeros((4, 4), np.float32)}, tmp_path / "model" / "model.safetensors")
    (tmp_path / "model" / "config.json").write_bytes(content)
    reshard(tmp_path / "model", tmp_path / "out", 2, strategies={"a": None}, dtype="float16")
    for rank in range(2):
        assert (tmp_path / "out" / f"rank-{rank}" / "config.json").read_bytes() == content


def test_beside_a_file_that_is_named_alone_only_known_files_are_taken(tmp_path: Path, saved: Any) -> None:
    (saved("llama") / "notes.json").write_text("{}")
    try:
        assert "notes.json" in reshard(saved("llama"), tmp_path, 2, plan_only=True).copied
        alone = reshard(saved("llama") / "model.safetensors", tmp_path, 2, plan_only=True)
        assert alone.copied == ("config.json", "generation_config.json", "tokenizer.json")
    finally:
        (saved("llama") / "notes.json").unlink()


def test_heads_of_keys_that_are_fewer_than_ranks_are_repeated(tmp_path: Path, saved: Any) -> None:
    plan = reshard(saved("llama"), tmp_path / "out", 8)
    check_ranks(tmp_path / "out", load_weights(saved("llama")), 8)
    split = {name: sum(sizes) > shape[axis] for name, (shape, axis, sizes) in plan.weights.items() if axis is not None}
    shared = {name for name, is_shared in split.items() if is_shared}
    assert shared == {f"model.layers.{i}.self_attn.{side}_proj.weight" for i in range(2) for side in "kv"}
    assert "neighbouring ranks have the same part" in str(plan)


@pytest.mark.filterwarnings("ignore")
def test_a_gguf_file_is_cut_by_hugging_face_s_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_models, "FEED_FORWARD", 128)  # two blocks on each rank
    path = gguf_models.write(tmp_path / "small.gguf")
    reshard(path, tmp_path / "out", 2, dtype="float16")
    check_ranks(tmp_path / "out", load_weights(path), 2, rename="hf", dtype="float16")
    for rank in range(2):
        folder = tmp_path / "out" / f"rank-{rank}"
        assert json.loads((folder / "config.json").read_bytes())["dtype"] == "float16"
        assert (folder / "tokenizer.json").is_file()


def test_one_rank_s_part_of_any_tree_is_saved(tmp_path: Path, models: Path) -> None:
    weights = load_weights(models / "smollm2-135m.Q4_1.gguf")
    layer = "model.layers.7"
    for rank in range(3):
        shard = Shard(rank, 3, "llama")
        path = tmp_path / "part.safetensors"
        weights.save(path, rename="hf", select=layer, shard=shard, dtype="bfloat16", sync=False)
        found = load_weights(path).load()
        expected = weights.load(layer, rename="hf", shard=shard, dtype="bfloat16")
        assert {name: (one.dtype, one.shape, raw(one)) for name, one in found.items()} == {
            name: (one.dtype, one.shape, raw(one)) for name, one in expected.items()
        }
    assert found["model.layers.7.self_attn.q_proj.weight"].dtype is DType.bfloat16


def test_a_part_of_several_axes_is_saved_as_it_is_loaded(tmp_path: Path, saved: Any) -> None:
    weights = load_weights(saved("llama"))
    strategies = {"model.embed_tokens": ShardingStrategy(2, lambda weight, i, _: weight[i * 8 : i * 8 + 8, i : i + 3])}
    weights.save(tmp_path / "part.safetensors", shard=Shard(1, 2, strategies), select="model.embed_tokens")
    part = load_weights(tmp_path / "part.safetensors")["model.embed_tokens.weight"].numpy()
    assert np.array_equal(part, weights["model.embed_tokens.weight"].numpy()[8:16, 1:4])
    ((name, streamed),) = weights.stream("model.embed_tokens", shard=Shard(1, 2, strategies), framework="numpy")
    assert name == "model.embed_tokens.weight"
    assert np.array_equal(streamed, part)


def test_what_cannot_be_divided_is_refused_by_name_before_anything_is_written(tmp_path: Path, saved: Any) -> None:
    out = tmp_path / "out"
    with refuses(ArgumentError, "argument.strategy") as error:
        reshard(saved("llama"), out, 3)
    layer = "model.layers.0.self_attn"
    assert f"8 heads do not divide into 3 equal shares ('{layer}.o_proj.weight', '{layer}.q_proj" in str(error.value)
    assert "axis 0 of size 80 does not divide into 3 equal shares ('lm_head.weight', 'mod" in str(error.value)
    assert len(str(error.value)) < 1000
    with refuses(ArgumentError, "argument.number"):
        reshard(saved("llama"), out, 0)
    with refuses(ArgumentError, "argument.choice"):
        reshard(saved("llama"), out, 2, strategies="none")
    max_weights.save_file({"model.embed_tokens.weight": np.zeros((4, 4))}, tmp_path / "alone.safetensors")
    with refuses(ArgumentError, "argument.config"):
        reshard(tmp_path / "alone.safetensors", out, 2)
    weights = load_weights(saved("llama"))

    def corner(weight: Any, i: int, _: int) -> Any:
        return weight[i : i + 1, i : i + 1]

    strategies = {"model.embed_tokens": ShardingStrategy(2, corner)}
    with refuses(ArgumentError, "argument.strategy"):
        reshard(saved("llama"), out, 2, strategies=strategies)
    with refuses(ArgumentError, "argument.number"):
        weights.save(out, shard=Shard(2, 2, Table("llama", 2, num_heads=8)))
    assert not out.exists()
    (out / "rank-2").mkdir(parents=True)
    with refuses(ArgumentError, "argument.path"):
        reshard(saved("llama"), out, 2)


def run(*arguments: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "max_weights._resharding", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_prints_the_plan_writes_it_and_refuses_in_one_line(tmp_path: Path, saved: Any) -> None:
    out = tmp_path / "out"
    dry = run(saved("mixtral"), out, "--tp", 2, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert not out.exists()
    assert f"rank 1: {len(list(max_weights.infos(load_weights(saved('mixtral')))))} tensors" in dry.stdout
    axis_1 = dry.stdout.partition("cut along axis 1:")[2].partition("whole")[0]
    assert "model.layers.*.block_sparse_moe.experts.*.w2.weight (8)" in axis_1
    done = run(saved("mixtral"), out, "--tp", 2, "--dtype", "float16", "--json", "--no-sync")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan == reshard(saved("mixtral"), out, 2, dtype="float16", plan_only=True).as_json()
    assert (plan["schema"], plan["tp"]) == ("max-weights.reshard/1", 2)
    assert [Path(rank["folder"]).is_dir() for rank in plan["ranks"]] == [True, True]
    refused = run(saved("mixtral"), tmp_path / "other", "--tp", 5)
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert len(refused.stderr.splitlines()) == 1
    assert refused.stderr.startswith("max-weights: 7 kinds of weights")
    assert "self_attn.q_proj.weight" in refused.stderr
    missing = run(tmp_path / "none", tmp_path / "other", "--tp", 2, "--json")
    assert missing.returncode == 3
    assert json.loads(missing.stdout)["schema"] == "max-weights.error/1"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("architecture", ["granite", "olmo2"])
def test_a_gguf_file_of_which_no_checkpoint_is_made_is_refused(tmp_path: Path, architecture: str) -> None:
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "model.gguf", architecture)
    writer.add_head_count(4)
    for name in ("token_embd", "blk.0.attn_q", "blk.0.ffn_up"):
        writer.add_tensor(f"{name}.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedError, match=f"'{architecture}'"):
        reshard(tmp_path / "model.gguf", tmp_path / "out", 2, strategies="llama")
    assert not (tmp_path / "out").exists()


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path, saved: Any) -> None:
    command = f"{sys.executable} -m max_weights._resharding {saved('mixtral')} {tmp_path}/out --tp 2 --dry-run | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_unfinished(tmp_path: Path, number: signal.Signals) -> None:
    weight = {"dtype": "F32", "shape": [8192, 8192], "data_offsets": [0, 256 << 20]}
    text = json.dumps({"model.layers.0.self_attn.q_proj.weight": weight}).encode()
    text += b" " * (-len(text) % 8)
    with open(tmp_path / "whole.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + (256 << 20))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "num_attention_heads": 4}))
    out = tmp_path / "ranks"
    command = [*COMMAND, "reshard", str(tmp_path / "whole.safetensors"), str(out), "--tp", "2", "--dtype", "float16"]
    # pytest may run with these signals ignored
    command = ["env", "--default-signal=INT,TERM,HUP", *command]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        while not list(out.glob("*/.*-unfinished")):
            assert process.poll() is None, "it ended before it was seen to write"
            time.sleep(0.001)
        process.send_signal(number)
        status = process.wait(60)
    assert status == (130 if number == signal.SIGINT else -number)
    assert not list(out.glob("*/.*"))
