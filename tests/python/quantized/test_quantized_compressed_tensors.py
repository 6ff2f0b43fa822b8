"""`max_weights.quantized` on tensors that compressed-tensors makes, against its own decompression, bit for bit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
from compressed_tensors.compressors.mxfp6.base import MXFP6PackedCompressor
from compressed_tensors.compressors.mxfp8.base import MXFP8QuantizationCompressor
from compressed_tensors.compressors.naive_quantized.base import NaiveQuantizationCompressor
from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    apply_quantization_config,
)
from safetensors.torch import save_file

import max_weights
from max_weights import FormatError, load_weights
from max_weights._quantized_weights import QuantizedWeight
from refusals import refuses

Make = Callable[..., tuple[QuantizedWeight, torch.Tensor]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return the opened output of a compressor for a weight with these scales, and its decompressed form."""

    def made(compressor: Any, state: dict[str, torch.Tensor], **arguments: Any) -> tuple[QuantizedWeight, torch.Tensor]:
        scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**arguments))
        packed = compressor.compress(state, scheme)
        back = compressor.decompress(packed, scheme)["weight"]
        tensors = {f"a.{name}": tensor.detach().contiguous().clone() for name, tensor in packed.items()}
        save_file(tensors, tmp_path / "model.safetensors")
        reported = {"quant_method": "compressed-tensors", "config_groups": {"group_0": scheme.model_dump(mode="json")}}
        (tmp_path / "config.json").write_text(json.dumps({"quantization_config": reported}))
        return max_weights.quantized(load_weights(tmp_path), "a"), back.detach()

    return made


def same(found: QuantizedWeight, expected: torch.Tensor) -> None:
    """Assert equal bits in the library's decoded dtype."""
    name = str(expected.dtype).removeprefix("torch.")
    assert torch.equal(torch.from_dlpack(found.astype(name)), expected)
    assert found.shape == list(expected.shape)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7, 8])
def test_packed_integers(make: Make, bits: int, symmetric: bool, dtype: torch.dtype) -> None:
    weight, scale = random(70, 192, dtype=dtype), (random(70, 3).abs() / 2**bits + 0.01).to(dtype)
    low = -(2 ** (bits - 1))
    zeros = torch.randint(low, -low, (70, 3), dtype=torch.int8)
    state = {"weight": weight, "weight_scale": scale, **({} if symmetric else {"weight_zero_point": zeros})}
    found, expected = make(
        PackedQuantizationCompressor,
        state,
        num_bits=bits,
        type="int",
        strategy="group",
        group_size=64,
        symmetric=symmetric,
    )
    assert (found.scheme, found.bits, found.block) == ("pack-quantized", bits, (1, 64))
    assert (found.symmetric, found.method) == (symmetric, "compressed-tensors")
    same(found, expected)


@pytest.mark.parametrize("strategy", ["channel", "tensor"])
def test_packed_integers_with_scales_of_rows_or_one(make: Make, strategy: str) -> None:
    scale = random(64, 1).abs() if strategy == "channel" else torch.tensor([0.1])
    state = {"weight": random(64, 100), "weight_scale": scale}
    found, expected = make(PackedQuantizationCompressor, state, num_bits=4, type="int", strategy=strategy)
    assert found.block == (1, 100)
    same(found, expected)


@pytest.mark.parametrize("kind", ["int", "float"])
@pytest.mark.parametrize(
    ("strategy", "shape", "block"), [("tensor", (1,), None), ("channel", (96, 1), None), ("block", (2, 3), [48, 64])]
)
def test_eight_bits_with_scales(make: Make, kind: str, strategy: str, shape: tuple[int, ...], block: Any) -> None:
    scale = (random(*shape).abs() / 50 + 0.01).to(torch.bfloat16)
    state = {"weight": random(96, 192, dtype=torch.bfloat16), "weight_scale": scale}
    found, expected = make(
        NaiveQuantizationCompressor, state, num_bits=8, type=kind, strategy=strategy, block_structure=block
    )
    assert found.scheme == {"int": "int8", "float": "fp8"}[kind]
    same(found, expected)


def test_int8_with_zero_points(make: Make) -> None:
    zeros = torch.randint(-128, 128, (96, 1), dtype=torch.int8)
    scale = (random(96, 1).abs() / 50 + 0.01).to(torch.bfloat16)
    state = {"weight": random(96, 192, dtype=torch.bfloat16), "weight_scale": scale, "weight_zero_point": zeros}
    found, expected = make(
        NaiveQuantizationCompressor, state, num_bits=8, type="int", strategy="channel", symmetric=False
    )
    assert found.symmetric is False
    same(found, expected)


def test_nvfp4(make: Make) -> None:
    scale = (random(64, 8).abs() * 100).to(torch.float8_e4m3fn)
    state = {
        "weight": random(64, 128),
        "weight_scale": scale.to(torch.float32),
        "weight_global_scale": torch.tensor([313.7]),
    }
    found, expected = make(
        NVFP4PackedCompressor, state, num_bits=4, type="float", strategy="tensor_group", group_size=16
    )
    assert (found.scheme, found.block) == ("nvfp4", (1, 16))
    same(found, expected)


MICROSCALING = {4: MXFP4PackedCompressor, 6: MXFP6PackedCompressor, 8: MXFP8QuantizationCompressor}


@pytest.mark.parametrize(("bits", "scheme"), [(4, "mxfp4"), (6, "mxfp6"), (8, "mxfp8")])
def test_microscaling(make: Make, bits: int, scheme: str) -> None:
    scale = torch.exp2(torch.randint(-6, 4, (64, 4)).float())
    state = {"weight": random(64, 128, dtype=torch.bfloat16), "weight_scale": scale.to(torch.bfloat16)}
    found, expected = make(MICROSCALING[bits], state, num_bits=bits, type="float", strategy="group", group_size=32)
    assert (found.scheme, found.bits, found.block) == (scheme, bits, (1, 32))
    same(found, expected)


@pytest.mark.parametrize("is_declared", [True, False])
def test_every_code_of_mxfp6_with_many_exponents(tmp_path: Path, is_declared: bool) -> None:
    """Without a configuration, the shapes determine the number of bits."""
    packed = torch.arange(256, dtype=torch.uint8).repeat(2, 9).reshape(96, 48)
    scale = torch.arange(192, dtype=torch.uint8).reshape(96, 2) + 32
    save_file({"a.weight_packed": packed, "a.weight_scale": scale}, tmp_path / "model.safetensors")
    weights: dict[str, Any] = {"num_bits": 6, "type": "float", "strategy": "group", "group_size": 32}
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
    if is_declared:
        reported = {"quant_method": "compressed-tensors", "config_groups": {"group_0": scheme.model_dump(mode="json")}}
        (tmp_path / "config.json").write_text(json.dumps({"quantization_config": reported}))
    state = {"weight_packed": packed, "weight_scale": scale}
    expected = MXFP6PackedCompressor.decompress(state, scheme)["weight"]
    found = max_weights.quantized(load_weights(tmp_path), "a")
    assert (found.scheme, found.bits, found.shape, found.block) == ("mxfp6", 6, [96, 64], (1, 32))
    same(found, expected.detach())


@pytest.mark.parametrize(("packed", "scale"), [((8, 47), (8, 2)), ((8, 48), (8, 3)), ((48,), (2,))])
def test_mxfp6_that_does_not_fit_is_an_error(tmp_path: Path, packed: Any, scale: Any) -> None:
    parts = {"weight_packed": packed, "weight_scale": scale}
    tensors = {f"a.{part}": torch.zeros(shape, dtype=torch.uint8) for part, shape in parts.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    reported = {"config_groups": {"group_0": {"weights": {"num_bits": 6}}}}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": reported}))
    with refuses(FormatError):
        max_weights.quantized(load_weights(tmp_path), "a")


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = torch.nn.Linear(8, 4, bias=False)


class Model(torch.nn.Module):
    """Three layers of the modules that the groups below distinguish."""

    def __init__(self) -> None:
        super().__init__()
        for number in range(3):
            setattr(self, f"layer{number}", Attention())
        self.mlp = torch.nn.Linear(8, 4, bias=False)
        self.head = torch.nn.Linear(8, 4, bias=False)


def mixed(tmp_path: Path, groups: dict[str, dict[str, Any]]) -> max_weights.Weights:
    """Packed rows for the modules of `Model`, whose sizes fit 2, 3 or 4 bits."""
    names = [name for name, module in Model().named_modules() if isinstance(module, torch.nn.Linear)]
    tensors = {f"{name}.weight_packed": torch.zeros((4, 1), dtype=torch.int32) for name in names}
    tensors |= {f"{name}.weight_scale": torch.ones(4, 1) for name in names}
    tensors |= {f"{name}.weight_shape": torch.tensor([4, 8]) for name in names}
    save_file(tensors, tmp_path / "model.safetensors")
    reported = {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": groups}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": reported}))
    return load_weights(tmp_path)


def test_of_several_groups_the_one_counts_that_names_a_module_best(tmp_path: Path) -> None:
    targets = {"Linear": 4, "re:layer.*": 4, "re:.*proj": 2, "re:.*0.*": 3, "layer1.proj": 4, "head": 2}
    groups = {
        f"group_{number}": {"targets": [target], "weights": {"num_bits": bits, "type": "int", "strategy": "channel"}}
        for number, (target, bits) in enumerate(targets.items())
    }
    model = Model()
    apply_quantization_config(model, QuantizationConfig(config_groups=groups))
    theirs = {
        name: module.quantization_scheme.weights.num_bits
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    weights = mixed(tmp_path, groups)
    quantized = max_weights.quantized(weights)
    assert {name: weight.bits for name, weight in quantized.items()} == theirs
    assert {name: max_weights.quantized(weights, name).bits for name in theirs} == theirs
    assert set(theirs.values()) == {2, 3, 4}


def test_a_pattern_of_a_group_that_explodes_is_tried_in_bounded_time(tmp_path: Path) -> None:
    groups = {"a": {"targets": ["re:(l+)+(a+)+(.+)+x$"], "weights": {"num_bits": 2}}}
    groups["b"] = {"targets": ["Linear"], "weights": {"num_bits": 3}}
    assert max_weights.quantized(mixed(tmp_path, groups), "layer1.proj").bits == 3


@pytest.mark.parametrize("pattern", ["(", "(?=look)ahead", "a{1000}{1000}{1000}"])
def test_a_pattern_of_a_group_that_cannot_be_tried_is_named(tmp_path: Path, pattern: str) -> None:
    groups = {"a": {"targets": [f"re:{pattern}"], "weights": {"num_bits": 2}}}
    groups["b"] = {"targets": ["Linear"], "weights": {"num_bits": 3}}
    with refuses(FormatError, "set.json"):
        max_weights.quantized(mixed(tmp_path, groups))


@pytest.mark.parametrize("targets", ["Linear", [1], {"a": 1}])
def test_targets_that_are_no_list_of_texts_are_named(tmp_path: Path, targets: Any) -> None:
    groups = {"a": {"targets": targets, "weights": {"num_bits": 2}}}
    with refuses(FormatError, "set.json"):
        max_weights.quantized(mixed(tmp_path, groups))
