"""Regressions found by hostile use: each gave a wrong number, or a wrong verdict, without an error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import max_weights
from max_weights import load_into, load_weights, save, verify_loaded
from max_weights.errors import ArgumentError, WeightNotFoundError
from refusals import refuses

FP8 = torch.float8_e4m3fn


def fp8(rows: int = 256, columns: int = 384) -> dict[str, torch.Tensor]:
    """Codes, and scales of blocks of 128 by 128."""
    torch.manual_seed(0)
    scales = torch.rand(-(-rows // 128), -(-columns // 128)) * 100
    return {"up.weight": torch.randn(rows, columns).to(FP8), "up.weight_scale_inv": scales}


@pytest.mark.parametrize("form", ["path", "tree", "tensors"])
@pytest.mark.parametrize("quantize", ["q8_0", {"up.weight": "q8_0"}], ids=["all", "by name"])
def test_quantized_weights_are_decoded_before_they_are_packed(tmp_path: Path, form: str, quantize: object) -> None:
    path = tmp_path / "fp8.safetensors"
    save(fp8(), path)
    given = {"path": path, "tree": load_weights(path), "tensors": fp8()}[form]
    save(given, tmp_path / "packed.gguf", quantize=quantize)  # type: ignore[arg-type]
    packed = load_weights(tmp_path / "packed.gguf").load(dtype="float32", framework="torch")
    decoded = load_weights(path).load(dtype="float32", framework="torch")
    assert list(packed) == list(decoded) == ["up.weight"]
    assert torch.allclose(
        packed["up.weight"], decoded["up.weight"], rtol=0.05, atol=float(decoded["up.weight"].max()) / 200
    )
    with refuses(ArgumentError, "argument.no-effect"):
        save(given, tmp_path / "packed.gguf", quantize={})


@pytest.mark.parametrize(("rows", "columns"), [(192, 256), (256, 200), (448, 130), (384, 960)])
def test_blocks_of_two_sizes_are_refused_without_a_configuration(tmp_path: Path, rows: int, columns: int) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    tensors = fp8(rows, columns)
    save(tensors, folder / "model.safetensors")
    with refuses(ArgumentError, "argument.value"):
        load_weights(folder).load(dtype="float32")
    with refuses(ArgumentError, "argument.value"):
        save(tensors, tmp_path / "decoded.safetensors", dtype="float32")
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    (folder / "config.json").write_text(json.dumps(config))
    found = load_weights(folder).load(dtype="float32", framework="torch")["up.weight"]
    scales = tensors["up.weight_scale_inv"].repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
    assert torch.equal(found, tensors["up.weight"].float() * scales)


def test_a_loaded_module_is_verified_where_the_checkpoint_is_quantized(tmp_path: Path) -> None:
    save(fp8(), tmp_path / "fp8.safetensors")
    for dtype in (torch.float32, torch.bfloat16):
        model = nn.ModuleDict({"up": nn.Linear(384, 256, bias=False, dtype=dtype)})
        assert load_into(model, tmp_path / "fp8.safetensors")
        assert verify_loaded(model, tmp_path / "fp8.safetensors")
        with torch.no_grad():
            model["up"].weight[3, 5] += 100  # type: ignore[operator]
        assert not verify_loaded(model, tmp_path / "fp8.safetensors")


def holder(**buffers: torch.Tensor) -> nn.Module:
    module = nn.Module()
    for name, tensor in buffers.items():
        module.register_buffer(name, tensor)
    return module


BASE = torch.zeros(12)
SQUARE = torch.zeros(3, 3)


@pytest.mark.parametrize(
    "buffers",
    [
        {"a": BASE[::2], "b": BASE[:6]},
        {"a": BASE[:8], "b": BASE[4:]},
        {"a": SQUARE, "b": SQUARE.t()},
        {"a": torch.as_strided(torch.zeros(10), (4, 3), (2, 1))},
    ],
    ids=["a stride", "a part", "transposed", "itself"],
)
@pytest.mark.parametrize("undo", [True, False])
def test_memory_that_two_tensors_share_is_refused_before_anything_is_written(
    tmp_path: Path, buffers: dict[str, torch.Tensor], undo: bool
) -> None:
    module = holder(**buffers)
    module.norm = nn.BatchNorm1d(5)
    new = {name: torch.full_like(one, 3).contiguous() for name, one in module.state_dict().items()}
    save(new, tmp_path / "new.safetensors")
    before = {name: one.clone() for name, one in module.state_dict().items()}
    with refuses(ArgumentError, "argument.mismatch"):
        load_into(module, tmp_path / "new.safetensors", undo=undo)
    assert all(torch.equal(one, before[name]) for name, one in module.state_dict().items())


def test_parts_of_one_tensor_that_share_nothing_are_filled(tmp_path: Path) -> None:
    base = torch.zeros(6, 4)
    module = holder(even=base[::2], odd=base[1::2], left=torch.zeros(4, 4)[:, :2], turned=torch.zeros(3, 2).t())
    new = {name: torch.randn(one.shape) for name, one in module.state_dict().items()}
    save(new, tmp_path / "new.safetensors")
    assert load_into(module, tmp_path / "new.safetensors")
    assert all(torch.equal(one, new[name]) for name, one in module.state_dict().items())


def test_a_part_of_a_tree_is_not_compared_as_the_whole(tmp_path: Path) -> None:
    save({"m.a": np.ones(3, np.float32), "m.b": np.zeros(3, np.float32)}, tmp_path / "m.safetensors")
    weights = load_weights(tmp_path / "m.safetensors")
    for side in ((weights.m.a, weights.m.b), (weights, weights.m)):
        with refuses(ArgumentError, "argument.part"):
            max_weights.diff(*side)
    for call in (lambda one: max_weights.diff(one, weights), max_weights.validate):
        with refuses(WeightNotFoundError, "weight.not-found"):
            call(weights.m.typo)


@pytest.mark.parametrize(
    ("whole", "real"),
    [(2**53 + 1, 2.0**53), (2**62 + 1, 2.0**62), (-(2**60) - 1, -(2.0**60))],
)
def test_integers_that_no_float_has_differ_from_floats(whole: int, real: float) -> None:
    one, other = {"x": torch.tensor([whole])}, {"x": torch.tensor([real], dtype=torch.float64)}
    assert not max_weights.diff(one, other, dtypes=False)
    assert not max_weights.diff(other, one, dtypes=False)
    assert max_weights.diff({"x": torch.tensor([2**53])}, {"x": torch.tensor([2.0**53])}, dtypes=False)
    largest = {"x": torch.tensor([2**64 - 1], dtype=torch.uint64)}
    assert not max_weights.diff(largest, {"x": torch.tensor([2.0**64], dtype=torch.float64)}, dtypes=False)


def test_a_shape_that_torch_refuses_is_refused(tmp_path: Path) -> None:
    save({"w": torch.tensor(5.0)}, tmp_path / "scalar.safetensors")
    save({"w": torch.tensor([5.0])}, tmp_path / "one.safetensors")
    with refuses(ArgumentError, "argument.mismatch"):
        load_into(holder(w=torch.zeros(1)), tmp_path / "scalar.safetensors")
    module = holder(w=torch.tensor(0.0))
    assert load_into(module, tmp_path / "one.safetensors")
    assert module.w == 5.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_a_negated_view_of_another_dtype_gets_the_values(tmp_path: Path, dtype: torch.dtype) -> None:
    save({"w": torch.tensor([1.0, 2.0, 3.0])}, tmp_path / "n.safetensors")
    module = holder(w=torch._neg_view(torch.zeros(3, dtype=dtype)))
    assert load_into(module, tmp_path / "n.safetensors")
    assert module.w.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("verb", [max_weights.fingerprint, max_weights.stats, lambda one: max_weights.diff(one, one)])
@pytest.mark.parametrize("tensor", [np.ones(3, np.complex128), np.array(["text"]), np.array([None])])
def test_a_tensor_that_no_checkpoint_can_have_is_named(verb: Callable[[object], object], tensor: object) -> None:
    with refuses(ArgumentError, "argument.value"):
        verb({"a.b": tensor})


def test_a_delta_is_made_of_a_base_by_the_names_of_its_files(tmp_path: Path) -> None:
    """A delta with other names would be refused only when it is opened with its base."""
    old, new = (tmp_path / name for name in ("old.safetensors", "new.safetensors"))
    save({"a": np.zeros(3, np.float32)}, old)
    save({"b": np.ones(3, np.float32)}, new)
    rename = [max_weights.conversion.ConversionRule("b", "a")]
    back = [max_weights.conversion.ConversionRule("a", "b")]
    delta = tmp_path / "delta.safetensors"
    with refuses(ArgumentError, "argument.conflict"):
        max_weights.delta.create(max_weights.renamed(old, back), new, delta)
    assert not delta.exists()
    max_weights.delta.create(old, max_weights.renamed(new, rename), delta)
    assert load_weights([old, delta]).load()["a"].to_numpy().tolist() == [1, 1, 1]
