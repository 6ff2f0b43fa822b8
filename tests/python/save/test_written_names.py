"""File names determine the format, and files have the requested content: suffixes, layouts, dtypes."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

import max_weights
import max_weights.safetensors.numpy
import max_weights.safetensors.torch
from max_weights import (
    SafetensorsWriter,
    delta,
    load_weights,
    reshard,
    save_file,
    save_gguf,
    save_sharded,
)
from max_weights.sharding import Table
from refusals import refuses

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
TENSORS = {"a": np.ones((4, 32), np.float32)}


def shell(*arguments: str | Path, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "max_weights", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, input=stdin, check=False)


@pytest.fixture
def one(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / "one.safetensors")
    return tmp_path / "one.safetensors"


WRITERS: dict[str, Callable[[Path, Path], object]] = {
    "save_file": lambda _, to: save_file(TENSORS, to),
    "save_file of a tree": lambda one, to: save_file(load_weights(one), to),
    "weights.save": lambda one, to: load_weights(one).save(to),
    "weights.save, several": lambda one, to: load_weights(one).save(to, max_shard_size="1kB"),
    "save_sharded": lambda _, to: save_sharded(TENSORS, to),
    "save_sharded, the name": lambda _, to: save_sharded(TENSORS, to.parent / "out", name=to.name),
    "save_gguf": lambda _, to: save_gguf(TENSORS, to),
    "SafetensorsWriter": lambda _, to: SafetensorsWriter(to, {"a": ("float32", (4,))}),
    "delta.create": lambda one, to: delta.create(one, TENSORS, to),
    "delta.create, sparse": lambda one, to: delta.create(one, TENSORS, to, dialect="sparse", version="1"),
}


@pytest.mark.parametrize("suffix", ["pt", "pth", "bin", "ckpt", "PT"])
@pytest.mark.parametrize("writer", WRITERS)
def test_no_file_with_the_name_of_pytorchs_is_written_in_another_format(one: Path, writer: str, suffix: str) -> None:
    before = set(one.parent.rglob("*"))
    with refuses(ValueError):
        WRITERS[writer](one, one.with_suffix(f".{suffix}"))
    done = shell("convert", one, one.with_suffix(f".{suffix}"))
    assert (done.returncode, b"PyTorch files can be read, but not written" in done.stderr) == (2, True)
    assert set(one.parent.rglob("*")) == before


def test_the_drop_in_writes_any_name_as_the_package_does(tmp_path: Path) -> None:
    for number, suffix in enumerate(("pt", "bin", "ckpt", "gguf")):
        max_weights.safetensors.numpy.save_file(TENSORS, tmp_path / f"{number}.{suffix}")
        max_weights.safetensors.torch.save_file({"a": torch.ones(3)}, tmp_path / f"torch.{suffix}")
        assert np.array_equal(load_weights(tmp_path / f"{number}.{suffix}")["a"].numpy(), TENSORS["a"])


@pytest.mark.parametrize("value", [-8, 0, 7, 2**70, "64"])
def test_an_alignment_that_there_is_not_is_refused_with_those_that_there_are(one: Path, value: object) -> None:
    weights = load_weights(one)
    for call in (
        lambda **options: save_file(TENSORS, one.with_name("x.safetensors"), **options),
        lambda **options: save_sharded(TENSORS, one.parent / "x", **options),
        lambda **options: weights.save(one.with_name("x.safetensors"), **options),
        lambda **options: SafetensorsWriter(one.with_name("x.safetensors"), {"a": ("float32", (4,))}, **options),
    ):
        with refuses(ValueError):
            call(alignment=value)


@pytest.mark.parametrize("value", [0, -1, 2**70, 1.5])
def test_a_number_of_threads_or_jobs_that_there_is_not_is_refused_by_its_name(one: Path, value: object) -> None:
    weights = load_weights(one)
    for call in (
        lambda: max_weights.set_threads(value),  # type: ignore[arg-type]
        lambda: weights.load(threads=value),  # type: ignore[arg-type]
        lambda: max_weights.plan(weights, threads=value),  # type: ignore[arg-type]
        lambda: list(weights.stream(threads=value)),  # type: ignore[arg-type]
        lambda: max_weights.fingerprint(weights, threads=value),  # type: ignore[arg-type]
        lambda: max_weights.validate(one, threads=value),  # type: ignore[arg-type]
    ):
        with refuses(ValueError, "argument.value"):
            call()


def test_every_command_that_opens_a_checkpoint_reads_standard_input(one: Path) -> None:
    content = one.read_bytes()
    for arguments in (
        ["ls", "-"],
        ["show", "-", "a"],
        ["diff", "-", one],
        ["convert", "-", one.with_name("c.safetensors")],
    ):
        done = shell(*arguments, stdin=content)
        assert done.returncode == 0, done.stderr
    assert np.array_equal(load_weights(one.with_name("c.safetensors"))["a"].numpy(), TENSORS["a"])
    done = shell("ls", "-", stdin=b"")
    assert (done.returncode, b"stdin: nothing came" in done.stderr) == (3, True)


def test_packed_weights_become_bfloat16_with_a_line_that_says_so(models: Path, tmp_path: Path) -> None:
    gguf, out, whole = models / "smollm2-135m.Q4_1.gguf", tmp_path / "out.safetensors", tmp_path / "whole.safetensors"
    done = shell("convert", gguf, out, "--select", "blk.0.*")
    assert done.returncode == 0
    assert re.search(rb"warning: \d+ packed weights became bfloat16, which rounds them; --dtype float32", done.stderr)
    assert shell("convert", gguf, whole, "--select", "blk.0.*", "--dtype", "fp32").stderr == b""
    found, exact = max_weights.torch.load_file(out), max_weights.torch.load_file(whole)
    packed = [name for name, tensor in found.items() if tensor.dtype == torch.bfloat16]
    assert len(packed) == 7
    assert all(torch.equal(tensor, exact[name].to(tensor.dtype)) for name, tensor in found.items())


NAMES = {
    "model.layers.0.self_attn.q_proj.weight": (16, 8),
    "model.layers.0.self_attn.k_proj.weight": (8, 8),
    "model.layers.0.self_attn.v_proj.weight": (8, 8),
    "model.layers.0.mlp.gate_proj.weight": (12, 8),
    "model.layers.0.mlp.up_proj.weight": (12, 8),
    "model.norm.weight": (8,),
}


@pytest.fixture
def training(tmp_path: Path) -> Path:
    """A training checkpoint: weights, the optimizer's state of each, and a number that is no tensor."""
    model = {name: torch.randn(shape) for name, shape in NAMES.items()}
    state = {
        name: {"step": torch.tensor(1.0), "exp_avg": torch.ones_like(tensor), "exp_avg_sq": tensor * 2}
        for name, tensor in model.items()
    }
    folder = tmp_path / "training"
    dcp.save({"model": model, "optimizer": {"state": state}, "step": 3}, checkpoint_id=folder, no_dist=True)
    config = {
        "model_type": "llama",
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "hidden_size": 8,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_reshard_takes_the_model_of_a_training_as_its_page_says(training: Path, tmp_path: Path) -> None:
    done = shell("reshard", training, tmp_path / "ranks", "--tp", "2", "--select", "model.*", "--rename", "model.=")
    assert done.returncode == 0, done.stderr
    whole = {
        name.removeprefix("model."): weight.numpy()
        for name, weight in load_weights(training).items()
        if name.startswith("model.")
    }
    assert whole.keys() == NAMES.keys()
    ranks = [load_weights(tmp_path / "ranks" / f"rank-{rank}") for rank in (0, 1)]
    for name, tensor in whole.items():
        parts = [rank[name].numpy() for rank in ranks]
        assert np.array_equal(parts[0] if tensor.ndim == 1 else np.concatenate(parts), tensor), name
    strategies = Table("llama", 2, num_heads=4, num_kv_heads=2)
    plan = reshard(
        training, tmp_path / "own", world_size=2, select="model.*", rename={"model.": ""}, strategies=strategies
    )
    assert plan.weights.keys() == set(NAMES)


def test_reshard_without_a_selection_names_the_first_few_and_the_count(training: Path, tmp_path: Path) -> None:
    done = shell("reshard", training, tmp_path / "ranks", "--tp", "2")
    assert done.returncode == 2
    message = done.stderr.decode()
    assert len(message) < 700
    assert re.search(r"10 kinds of weights .*'optimizer\.state\.\S+' and \d+ more\)", message)
    assert "leave them out with select" in message
    assert not (tmp_path / "ranks").exists()


def test_convert_and_reshard_write_the_layout_of_a_library(training: Path, tmp_path: Path) -> None:
    out = tmp_path / "vllm.safetensors"
    done = shell("convert", training, out, "--select", "model.*", "--rename", "vllm", "--rename", "model.=")
    assert done.returncode == 0, done.stderr
    whole = load_weights(training)
    layer = "model.layers.0"
    rows = [whole[f"model.{layer}.self_attn.{side}_proj.weight"].numpy() for side in "qkv"]
    weights = load_weights(out)
    assert np.array_equal(weights[f"{layer}.self_attn.qkv_proj.weight"].numpy(), np.concatenate(rows))
    assert {info.name for info in max_weights.infos(weights)} == {
        f"{layer}.self_attn.qkv_proj.weight", f"{layer}.mlp.gate_up_proj.weight", "model.norm.weight"
    }  # fmt: skip
    done = shell("reshard", training, tmp_path / "ranks", "--tp", "2", "--select", "model.*", "--rename", "vllm")
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        part = load_weights(tmp_path / "ranks" / f"rank-{rank}")[f"model.{layer}.self_attn.qkv_proj.weight"].numpy()
        assert np.array_equal(part, np.concatenate([np.split(side, 2)[rank] for side in rows]))
    plan = reshard(training, tmp_path / "ranks", 2, select="model.*", rename="vllm", plan_only=True)
    assert f"model.{layer}.mlp.gate_up_proj.weight" in plan.weights


def test_a_layout_without_a_configuration_says_where_it_belongs(training: Path, tmp_path: Path) -> None:
    (training / "config.json").unlink()
    done = shell("convert", training, tmp_path / "x.safetensors", "--select", "model.*", "--rename", "vllm")
    assert done.returncode != 0
    assert b"config.json: not found" in done.stderr
    assert b"put it there" in done.stderr
    two = shell("convert", training, tmp_path / "x.safetensors", "--rename", "vllm", "--rename", "megatron")
    assert (two.returncode, b"give one layout" in two.stderr) == (2, True)
