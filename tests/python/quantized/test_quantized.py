"""`quantized`: FP8, MXFP4, NVFP4 and int8 against transformers and the formulas; names, listings, errors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import max_weights
from max_weights import FormatError, UnsupportedError, WeightNotFoundError, load_weights
from max_weights._quantized_weights import QuantizedWeight, QuantizedWeights
from max_weights._weights import WeightsNode
from refusals import refuses
from test_html import Page

FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
Made = Callable[..., WeightsNode]


@pytest.fixture
def make(tmp_path: Path) -> Made:
    """Open a checkpoint of these tensors, with a configuration in its folder."""

    def made(
        tensors: dict[str, torch.Tensor], reported: dict[str, Any] | None = None, file: str = "config.json"
    ) -> Any:
        save_file(
            {name: tensor.contiguous().clone() for name, tensor in tensors.items()}, tmp_path / "model.safetensors"
        )
        if reported is not None:
            (tmp_path / file).write_text(json.dumps(reported))
        return load_weights(tmp_path)

    return made


def random_bytes(*shape: int, low: int = 0, high: int = 256) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(low, high, shape, dtype=torch.uint8, generator=generator)


def fp8(*shape: int, dtype: torch.dtype = torch.float8_e4m3fn) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def pairs(packed: torch.Tensor) -> torch.Tensor:
    """The FP4 of bytes, low half first."""
    packed = packed.view(torch.uint8)
    return torch.stack([FP4[(packed & 15).long()], FP4[(packed >> 4).long()]], -1).flatten(-2)


def check(weight: QuantizedWeight, expected: torch.Tensor) -> None:
    """Assert the weight bit for bit in float32, and rounded once in other dtypes; `out` is filled."""
    assert weight.shape == list(expected.shape)
    for name, dtype in DTYPES.items():
        decoded = weight.astype(name)
        assert decoded.name == weight.weight_name
        assert torch.equal(torch.from_dlpack(decoded), expected.to(dtype)), name
        out = torch.full(expected.shape, torch.nan, dtype=dtype)
        assert torch.from_dlpack(weight.astype(name, out=out)).data_ptr() == out.data_ptr()
        assert torch.equal(out, expected.to(dtype)), name
        assert weight.decoded_nbytes(name) == out.nbytes
    assert weight.astype().dtype.name == "bfloat16"


def transformers_fp8(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return Fp8Dequantize(None)._dequantize_one(weight, scale, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("scales", [torch.float32, torch.bfloat16, torch.float8_e8m0fnu, torch.uint8])
def test_fp8_in_blocks_is_what_transformers_makes_of_it(make: Made, dtype: torch.dtype, scales: torch.dtype) -> None:
    scale = random_bytes(2, 3, low=110, high=135)
    scale = scale.to(torch.float32) / 1000 if scales in (torch.float32, torch.bfloat16) else scale.view(torch.uint8)
    scale = scale.to(scales) if scale.dtype is torch.float32 else scale.view(scales)
    weight = fp8(256, 384, dtype=dtype)
    reported = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    weights = make({"a.b.weight": weight, "a.b.weight_scale_inv": scale}, reported)
    found = max_weights.quantized(weights, "a.b")
    assert (found.scheme, found.method, found.bits, found.block) == ("fp8", "fp8", 8, (128, 128))
    assert (found.symmetric, found.group_size, found.reordered) == (True, None, False)
    assert found.nbytes == weight.nbytes + scale.nbytes
    check(found, transformers_fp8(weight, scale))


def test_blocks_that_the_sizes_are_no_multiples_of_are_those_of_the_configuration(make: Made) -> None:
    weight, scale = fp8(200, 300), torch.rand(2, 3)
    tensors = {"a.weight": weight, "a.weight_scale_inv": scale}
    found = make(tensors, {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})
    spread = scale.repeat_interleave(128, 0)[:200].repeat_interleave(128, 1)[:, :300]
    assert max_weights.quantized(found, "a").block == (128, 128)
    check(max_weights.quantized(found, "a"), weight.float() * spread)


def test_without_a_configuration_blocks_are_cut_as_transformers_cuts_them(make: Made) -> None:
    weight, scale = fp8(96, 320), torch.rand(3, 5)
    found = max_weights.quantized(make({"a.weight": weight, "a.weight_scale_inv": scale}), "a")
    assert (found.block, found.method) == ((32, 64), None)
    check(found, transformers_fp8(weight, scale))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (300, 1), (300,)])
@pytest.mark.parametrize("name", ["weight_scale", "weight_scale_inv", "scale", "qscale_weight"])
def test_scales_of_a_whole_weight_and_of_its_rows(make: Made, shape: tuple[int, ...], name: str) -> None:
    weight, scale = fp8(300, 40), torch.rand(shape)
    found = max_weights.quantized(make({"a.weight": weight, f"a.{name}": scale, "a.input_scale": torch.ones(())}), "a")
    assert found.block == ((300, 40) if scale.numel() == 1 else (1, 40))
    assert list(found.parts) == ["packed", "scales", "input_scale"]
    check(found, weight.float() * (scale if scale.numel() == 1 else scale.reshape(300, 1)))


def test_mxfp8_and_the_blocks_of_modelopt(make: Made) -> None:
    weight, scale, blocks = fp8(64, 96), random_bytes(64, 3, low=100, high=140), torch.rand(2, 1, 3, 1)
    tensors = {"a.weight": weight, "a.weight_scale": scale, "b.weight": weight, "b.weight_scale": blocks}
    weights = make(tensors)
    found = max_weights.quantized(weights, "a")
    assert (found.scheme, found.group_size) == ("mxfp8", 32)
    check(found, weight.float() * torch.exp2(scale.float() - 127).repeat_interleave(32, 1))
    assert max_weights.quantized(weights, "b").block == (32, 32)
    check(max_weights.quantized(weights, "b"), transformers_fp8(weight, blocks.reshape(2, 3)))


@pytest.mark.parametrize("shape", [(2,), (2, 1, 1), (2, 64), (2, 64, 1), (2, 2, 3)])
def test_experts_in_one_tensor(make: Made, shape: tuple[int, ...]) -> None:
    weight, scale = fp8(2, 64, 96), torch.rand(shape)
    found = max_weights.quantized(make({"experts.up": weight, "experts.up_scale_inv": scale}), "experts.up")
    assert found.weight_name == found.name == "experts.up"
    if shape == (2, 2, 3):
        check(found, transformers_fp8(weight, scale))
    else:
        check(found, weight.float() * scale.reshape(2, -1, 1))


def test_fp8_of_another_rank_has_one_scale(make: Made) -> None:
    weight = fp8(6, 5, 3, 3)
    found = max_weights.quantized(make({"conv.weight": weight, "conv.weight_scale": torch.tensor(0.3)}), "conv")
    check(found, weight.float() * torch.tensor(0.3))
    with refuses(ValueError, "argument.shape"):
        found.astype(out=torch.empty(30, 9, dtype=torch.bfloat16))


def test_mxfp4_of_gpt_oss_is_what_transformers_makes_of_it(make: Made) -> None:
    blocks, scales = random_bytes(3, 64, 5, 16), random_bytes(3, 64, 5, low=90, high=160)
    tensors = {"m.gate_up_proj_blocks": blocks, "m.gate_up_proj_scales": scales, "m.gate_up_proj_bias": torch.ones(3)}
    weights = make(tensors, {"quantization_config": {"quant_method": "mxfp4"}})
    found = max_weights.quantized(weights, "m.gate_up_proj")
    assert (found.scheme, found.method, found.bits, found.block) == ("mxfp4", "mxfp4", 4, (1, 32))
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).transpose(1, 2)
    decoded = torch.from_dlpack(found.astype("float32"))
    assert torch.equal(decoded, expected)
    half = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16).transpose(1, 2)
    assert torch.equal(torch.from_dlpack(found.astype()), half)


def test_pairs_of_fp4_in_int8_are_what_transformers_makes_of_them(make: Made) -> None:
    weight, scale = random_bytes(32, 48).view(torch.int8), random_bytes(32, 3, low=120, high=130)
    found = max_weights.quantized(make({"a.weight": weight, "a.scale": scale.view(torch.float8_e8m0fnu)}), "a")
    assert (found.scheme, found.bits) == ("mxfp4", 4)
    check(found, transformers_fp8(weight, scale))


@pytest.mark.parametrize("outer", [(), (3,)])
def test_nvfp4_multiplies_its_scales_first(make: Made, outer: tuple[int, ...]) -> None:
    weight, scale, whole = random_bytes(*outer, 32, 48), fp8(*outer, 32, 6).abs(), torch.rand(outer) / 1000
    reported = {"quantization": {"quant_algo": "NVFP4", "group_size": 16, "kv_cache_quant_algo": None}}
    tensors = {"a.weight": weight, "a.weight_scale": scale, "a.weight_scale_2": whole}
    found = max_weights.quantized(make(tensors, reported, "hf_quant_config.json"), "a")
    assert (found.scheme, found.method, found.bits, found.block) == ("nvfp4", "modelopt", 4, (1, 16))
    # modelopt/torch/quantization/qtensor/nvfp4_tensor.py: one scale of both, then the elements.
    both = scale.float() * whole.reshape(*outer, 1, 1) if outer else scale.float() * whole
    check(found, pairs(weight) * both.repeat_interleave(16, -1))


def test_int8_with_scales_of_rows_and_groups(make: Made) -> None:
    weight = random_bytes(64, 96).view(torch.int8)
    for scale in (torch.rand(64, 1).bfloat16(), torch.rand(64, 3)):
        found = max_weights.quantized(make({"a.weight": weight, "a.weight_scale": scale}), "a")
        assert (found.scheme, found.symmetric) == ("int8", True)
        check(found, weight.float() * scale.float().repeat_interleave(96 // scale.shape[1], 1))


def test_a_group_is_found_by_each_of_its_names(make: Made) -> None:
    weights = make(
        {"x.a.b.weight": fp8(8, 8), "x.a.b.weight_scale_inv": torch.ones(1, 1), "x.norm.scale": torch.ones(8)}
    )
    for name in ("a.b", "a.b.weight", "a.b.weight_scale_inv"):
        assert (
            max_weights.quantized(weights, f"x.{name}").name == max_weights.quantized(weights.x, name).name == "x.a.b"
        )
    for node in (weights, weights.x, weights.x.a.b):
        listed = max_weights.quantized(node)
        assert isinstance(listed, QuantizedWeights)
        assert list(listed) == ["x.a.b"]
        assert listed["x.a.b"].shape == [8, 8]
        assert listed["x.a.b"].weight_name == "x.a.b.weight"
    assert max_weights.quantized(weights, "x.a.b").parts["scales"].data().shape == [1, 1]


def test_listings_are_in_file_order_and_empty_where_nothing_is_quantized(make: Made) -> None:
    names = [f"layers.{number}.up" for number in (10, 2, 33)]
    tensors = {f"{name}.weight": fp8(8, 8) for name in names}
    weights = make({**tensors, **{f"{name}.weight_scale": torch.ones(8, 1) for name in names}})
    in_file = [
        info.name.removesuffix(".weight") for info in max_weights.infos(weights) if info.name.endswith("up.weight")
    ]
    assert list(max_weights.quantized(weights)) == in_file
    plain = make({"norm.scale": torch.ones(3), "b.weight": torch.ones(3, 3), "b.weight_scale": torch.ones(1)})
    assert (len(max_weights.quantized(plain)), list(max_weights.quantized(plain))) == (0, [])
    assert "0 weights" in repr(max_weights.quantized(plain))


def test_a_name_that_is_not_quantized_says_what_it_is_and_what_is_near(make: Made) -> None:
    tensors = {"up.weight": fp8(8, 8), "up.weight_scale": torch.ones(8, 1), "norm.weight": torch.ones(8)}
    weights = make(tensors)
    with refuses(WeightNotFoundError, "weight.not-found"):
        max_weights.quantized(weights, "upp")
    with refuses(KeyError, "weight.not-found"):
        max_weights.quantized(weights, "norm.weight")
    with refuses(KeyError, "weight.not-found"):
        max_weights.quantized(weights)["down"]


@pytest.mark.parametrize(
    ("tensors", "rule"),
    [
        ({"a.weight": fp8(8, 8), "a.weight_scale": torch.ones(5, 1)}, "quantized.scale-shape"),
        ({"a.weight": fp8(8, 8), "a.weight_scale": torch.ones(8, 9)}, "quantized.scale-shape"),
        ({"a.weight": fp8(8, 8), "a.weight_scale": torch.ones(0)}, "quantized.scale-shape"),
        ({"a.weight": fp8(8, 8), "a.weight_scale": torch.ones(1).int()}, "quantized.dtype"),
        ({"a.weight": torch.ones(8, 8).int(), "a.weight_scale": torch.ones(1)}, "quantized.dtype"),
        ({"a.weight": random_bytes(8, 8), "a.weight_scale": fp8(8, 1)}, "quantized.scale-missing"),
        (
            {"a.weight": random_bytes(8, 8), "a.weight_scale": fp8(8, 2), "a.weight_scale_2": torch.ones(())},
            "quantized.scale-shape",
        ),
        (
            {"a.weight": random_bytes(8, 8), "a.weight_scale": fp8(8, 1), "a.weight_scale_2": torch.ones(2)},
            "quantized.scale-shape",
        ),
        ({"a_blocks": random_bytes(2, 2, 8), "a_scales": random_bytes(2, 2)}, "quantized.shape"),
        ({"a_blocks": random_bytes(2, 2, 16), "a_scales": random_bytes(2, 3)}, "quantized.scale-shape"),
        ({"a_blocks": torch.ones(2, 2, 16), "a_scales": random_bytes(2, 2)}, "quantized.dtype"),
        (
            {"a.weight_packed": random_bytes(8, 8), "a.weight_scale": fp8(8, 1)},
            "quantized.scale-missing",
        ),
        ({"a.weight_packed": random_bytes(8, 8)}, "quantized.scale-missing"),
    ],
)
def test_parts_that_do_not_fit_are_errors(make: Made, tensors: Any, rule: str, tmp_path: Path) -> None:
    weights = make(tensors)
    with refuses(FormatError) as caught:
        max_weights.quantized(weights, "a")
    assert (caught.value.rule, caught.value.path) == (rule, str(tmp_path / "model.safetensors"))
    assert caught.value.tensor in tensors
    listed = max_weights.quantized(weights)
    assert list(listed) == ["a"]
    assert rule in listed._repr_html_()


def test_blocks_without_scales_are_an_error_where_they_are_said_to_be_mxfp4(make: Made) -> None:
    tensors = {"a_blocks": random_bytes(2, 2, 16)}
    assert len(max_weights.quantized(make(tensors))) == 0
    weights = make(tensors, {"quantization_config": {"quant_method": "mxfp4"}})
    with refuses(FormatError, "quantized.scale-missing"):
        max_weights.quantized(weights, "a")


def test_a_configuration_that_is_none_is_an_error(make: Made, tmp_path: Path) -> None:
    weights = make({"a.weight": fp8(8, 8), "a.weight_scale": torch.ones(8, 1)})
    for text in ("{", "[]", "[" * 100000):
        (tmp_path / "config.json").write_text(text)
        with refuses(FormatError, "set.json"):
            max_weights.quantized(weights, "a")
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "fp8"}}')
    assert max_weights.quantized(weights, "a").method == "fp8"


@pytest.mark.parametrize(
    ("tensors", "scheme"),
    [
        (
            {
                "a.weight": random_bytes(8, 8).view(torch.int8),
                "a.SCB": torch.ones(8),
                "a.weight_format": torch.tensor(1, dtype=torch.uint8),
            },
            "bitsandbytes-int8",
        ),
        (
            {
                "a.weight_packed": random_bytes(8, 24),
                "a.weight_scale": random_bytes(8, 1),
                "a.weight_codebook": torch.ones(8),
            },
            "codebook",
        ),
    ],
)
def test_a_scheme_that_cannot_be_decoded_says_so(make: Made, tensors: Any, scheme: str) -> None:
    found = max_weights.quantized(make(tensors), "a")
    assert found.scheme == scheme
    assert found.nbytes == sum(tensor.nbytes for tensor in tensors.values())
    assert {"packed", "scales"} <= set(found.parts)
    assert "cannot be decoded" in repr(found)
    assert "cannot be decoded" in found._repr_html_()
    for use in (lambda: found.astype(), lambda: found.shape, lambda: found.bits):
        with refuses(UnsupportedError, "unsupported.request"):
            use()


def test_a_dtype_that_is_no_float_of_16_or_32_bits_is_refused(make: Made) -> None:
    found = max_weights.quantized(make({"a.weight": fp8(8, 8), "a.weight_scale": torch.ones(8, 1)}), "a")
    for dtype in ("int8", "float64", "float8_e4m3fn"):
        with refuses(UnsupportedError, "unsupported.dtype"):
            found.astype(dtype)
    with refuses(ValueError):
        found.astype(out=torch.empty(8, 8))


def test_notebooks_show_the_group_and_the_listing(make: Made) -> None:
    weights = make({"a.weight": fp8(256, 128), "a.weight_scale_inv": torch.rand(2, 1)})
    text = " ".join(Page(max_weights.quantized(weights, "a")._repr_html_()).text.split())
    for shown in ("a fp8 [256, 128]", "one for each 128 x 128", "a.weight_scale_inv", "65,536"):
        assert shown in text
    assert "afp88[256, 128]one for each 128 x 128" in Page(max_weights.quantized(weights)._repr_html_()).text


def test_large_weights_are_read_in_parts_from_the_mapping(make: Made) -> None:
    weight, scale = fp8(1000, 4096), torch.rand(8, 32)
    reported = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    found = make(
        {"a.weight": weight, "a.weight_scale": scale, "b.weight": weight, "b.weight_scale": scale[0, 0]}, reported
    )
    spread = scale.repeat_interleave(128, 0)[:1000].repeat_interleave(128, 1)
    check(max_weights.quantized(found, "a"), weight.float() * spread)
    check(max_weights.quantized(found, "b"), weight.float() * scale[0, 0])
    assert np.isfinite(max_weights.quantized(found, "a").astype("float32").to_numpy()).all()
