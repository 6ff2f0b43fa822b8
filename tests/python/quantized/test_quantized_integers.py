"""`quantized` of packed integers against the formulas: GPTQ, AWQ, AutoRound, compressed-tensors, ModelOpt."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import max_weights
from max_weights import FormatError, UnsupportedError, load_weights
from max_weights._quantized_weights import QuantizedWeight
from refusals import refuses

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
Array = np.ndarray[Any, Any]
Make = Callable[..., QuantizedWeight]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """The group `a` of a checkpoint of these parts, with this `quantization_config`."""

    def made(parts: dict[str, Any], reported: dict[str, Any] | None = None) -> QuantizedWeight:
        tensors = {f"a.{name}": torch.as_tensor(part).contiguous().clone() for name, part in parts.items()}
        save_file(tensors, tmp_path / "model.safetensors")
        if reported is not None:
            (tmp_path / "config.json").write_text(json.dumps({"quantization_config": reported}))
        return max_weights.quantized(load_weights(tmp_path), "a")

    return made


def packed(codes: Array, bits: int) -> Array:
    """Rows of codes as dense bits in words, the first in the lowest bits."""
    every = (codes[..., None] >> np.arange(bits)) & 1
    flat = every.reshape(len(codes), -1).astype(np.uint8)
    flat = np.pad(flat, ((0, 0), (0, -flat.shape[1] % 32)))
    return np.packbits(flat, axis=1, bitorder="little").view(np.int32)


def awq_packed(codes: Array) -> Array:
    """Rows of nibbles, eight in a word, in the order of AWQ's kernel."""
    words = np.zeros((codes.shape[0], codes.shape[1] // 8), np.uint32)
    for place, number in enumerate(AWQ_ORDER):
        words |= (codes[:, number::8].astype(np.uint32)) << np.uint32(4 * place)
    return words.view(np.int32)


def check(found: QuantizedWeight, expected: Array) -> None:
    """Assert the weight, [out, in], bit for bit in float32, and rounded once in float16."""
    assert found.shape == list(expected.shape)
    assert np.array_equal(found.astype("float32").to_numpy(), expected)
    assert np.array_equal(found.astype("float16").to_numpy(), expected.astype(np.float16))
    out = torch.empty(expected.shape, dtype=torch.bfloat16)
    found.astype(out=out)
    assert torch.equal(out, torch.from_numpy(expected).to(torch.bfloat16))


def gptq(bits: int, inputs: int, outputs: int, index: Array, offset: int) -> tuple[dict[str, Any], Array]:
    """The parts of a random weight, and its value by PackableQuantLinear.dequantize_weight of GPTQModel."""
    rng = np.random.default_rng(bits)
    groups = int(index.max()) + 1
    codes, zeros = rng.integers(0, 1 << bits, (inputs, outputs)), rng.integers(0, 1 << bits, (groups, outputs))
    scales = rng.uniform(-0.1, 0.1, (groups, outputs)).astype(np.float16)
    parts = {"qweight": packed(codes.T, bits).T, "qzeros": packed(zeros, bits), "scales": scales}
    zeros = (zeros + offset) & ((1 << bits) - 1)
    expected = scales.astype(np.float32)[index] * (codes - zeros[index]).astype(np.float32)
    return {**parts, "g_idx": index.astype(np.int32)}, expected.T.astype(np.float32)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize(("layout", "offset"), [("gptq", 1), ("gptq_v2", 0), (None, 1)])
def test_gptq_of_both_versions(make: Make, bits: int, layout: str | None, offset: int) -> None:
    parts, expected = gptq(bits, 128, 64, np.arange(128) // 32, offset)
    reported = {"quant_method": "gptq", "bits": bits, "group_size": 32, "sym": True, "checkpoint_format": layout}
    found = make(parts, reported if layout else None)
    assert (found.scheme, found.bits, found.group_size) == (layout or "gptq", bits, 32)
    assert (found.symmetric, found.reordered) == (True if layout else None, False)
    assert found.weight_name == "a.weight"
    assert list(found.parts) == ["packed", "zero_points", "scales", "group_index"]
    check(found, expected)


def test_gptq_with_reordered_inputs_and_a_short_last_group(make: Make) -> None:
    index = np.random.default_rng(3).permutation(np.arange(160) // 64)
    parts, expected = gptq(4, 160, 64, index, 1)
    reported = {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": True}
    found = make(parts, reported)
    assert (found.reordered, found.block) == (True, (1, 64))
    check(found, expected)
    del parts["g_idx"]
    with refuses(FormatError, "quantized.order-missing"):
        make(parts, reported)
    parts, expected = gptq(4, 160, 64, np.arange(160) // 64, 1)
    del parts["g_idx"]
    found = make(parts, {**reported, "desc_act": False})
    assert not found.reordered
    check(found, expected)


def test_one_group_for_all_inputs(make: Make) -> None:
    parts, expected = gptq(4, 96, 32, np.zeros(96, np.int64), 1)
    found = make(parts, {"quant_method": "gptq", "bits": 4, "group_size": -1})
    assert found.block == (1, 96)
    check(found, expected)


@pytest.mark.parametrize(
    ("packing", "scheme", "offset"),
    [("auto_round:auto_gptq", "gptq", 1), ("auto_round:gptqmodel", "gptq_v2", 0), ("auto_round", "gptq_v2", 0)],
)
def test_autoround_packs_as_gptq_and_says_which(make: Make, packing: str, scheme: str, offset: int) -> None:
    parts, expected = gptq(4, 128, 64, np.arange(128) // 32, offset)
    reported = {"quant_method": "auto-round", "packing_format": packing, "bits": 4, "group_size": 32, "sym": True}
    found = make(parts, reported)
    assert (found.scheme, found.method) == (scheme, "auto-round")
    check(found, expected)


@pytest.mark.parametrize("method", ["awq", "auto-round", None])
def test_awq(make: Make, method: str | None) -> None:
    rng = np.random.default_rng(9)
    codes, zeros = rng.integers(0, 16, (128, 64)), rng.integers(0, 16, (4, 64))
    scales = rng.uniform(0, 0.1, (4, 64)).astype(np.float16)
    parts = {"qweight": awq_packed(codes), "qzeros": awq_packed(zeros), "scales": scales}
    reported = {"quant_method": method, "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
    found = make(parts, {**reported, "packing_format": "auto_round:auto_awq"} if method else None)
    assert (found.scheme, found.bits, found.block) == ("awq", 4, (1, 32))
    assert found.symmetric is (False if method == "awq" else None)
    spread = np.arange(128) // 32
    check(found, ((codes - zeros[spread]).astype(np.float32) * scales.astype(np.float32)[spread]).T)


@pytest.mark.parametrize("inputs", [64, 70])
@pytest.mark.parametrize("shape", [(1,), (33, 1), (33,), (33, 2)])
def test_int8_with_zero_points(make: Make, shape: tuple[int, ...], inputs: int) -> None:
    rng = np.random.default_rng(4)
    weight = rng.integers(-128, 128, (33, inputs)).astype(np.int8)
    scale, zeros = rng.uniform(0, 1, shape).astype(np.float32), rng.integers(-128, 128, shape).astype(np.int8)
    found = make({"weight": weight, "weight_scale": scale, "weight_zero_point": zeros})
    assert (found.scheme, found.symmetric) == ("int8", False)
    of_groups = (33 if len(scale) > 1 else 1, scale.size // 33 or 1)
    spread = np.arange(inputs) // -(-inputs // of_groups[1])
    zeros, scale = zeros.reshape(of_groups)[:, spread], scale.reshape(of_groups)[:, spread]
    check(found, (weight.astype(np.int32) - zeros).astype(np.float32) * scale)


@pytest.mark.parametrize("inputs", [64, 36])
def test_int4_in_bytes_has_signs(make: Make, inputs: int) -> None:
    rng = np.random.default_rng(5)
    values = rng.integers(-8, 8, (6, inputs)).astype(np.int8)
    halves = (values & 15).astype(np.uint8)
    weight = (halves[:, 0::2] | halves[:, 1::2] << 4).view(np.int8)
    scale = rng.uniform(0, 1, (6, 2)).astype(np.float32)
    found = make({"weight_packed": weight, "weight_scale": scale})
    assert (found.scheme, found.bits) == ("int4", 4)
    check(found, values.astype(np.float32) * np.repeat(scale, inputs // 2, 1))


def modelopt_packed(values: Array) -> Array:
    """`pack_int4_in_uint8` of modelopt/torch/export/quant_utils.py (0.47), in NumPy: two outputs in a byte."""
    return (values[..., 0::2, :] & 15 | (values[..., 1::2, :] & 15) << 4).astype(np.uint8)


@pytest.mark.parametrize("with_second_scale", [True, False])  # W4A8, whose weights are those of W4A16
@pytest.mark.parametrize("inputs", [256, 384, 33])
@pytest.mark.parametrize("outer", [(), (3,)])
def test_int4_of_modelopt_has_two_outputs_in_a_byte(
    make: Make, outer: tuple[int, ...], inputs: int, with_second_scale: bool
) -> None:
    rng, groups = np.random.default_rng(8), max(inputs // 128, 1)
    values = rng.integers(-8, 8, (*outer, 10, inputs)).astype(np.int8)
    scale = rng.uniform(0, 1, (*outer, 10, groups)).astype(np.float32)
    second = {"weight_scale_2": np.ones((), np.float32)} if with_second_scale else {}
    parts = {"weight": modelopt_packed(values), "weight_scale": scale, **second}
    reported = {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}
    found = make({**parts, "pre_quant_scale": np.ones(inputs, np.float32)}, reported)
    assert (found.scheme, found.bits, found.method) == ("modelopt-int4", 4, "modelopt")
    assert found.group_size == inputs // groups
    check(found, values.astype(np.float32) * np.repeat(scale, inputs // groups, -1))


@pytest.mark.parametrize("shape", [(9, 2), (10, 0), (5, 2), (10, 65), (10,)])
def test_scales_that_int4_of_modelopt_cannot_have_are_an_error(make: Make, shape: tuple[int, ...]) -> None:
    parts = {"weight": np.zeros((5, 64), np.uint8), "weight_scale": np.ones(shape, np.float32)}
    with refuses(FormatError, "quantized.scale-shape"):
        make(parts)


@pytest.mark.parametrize("is_reordered", [True, False])
def test_rows_whose_inputs_have_an_index_of_their_groups(make: Make, is_reordered: bool) -> None:
    rng = np.random.default_rng(6)
    values, scale = rng.integers(-8, 8, (10, 96)), rng.uniform(0, 1, (10, 3)).astype(np.float32)
    order = rng.permutation(np.arange(96) // 32)
    index = (order if is_reordered else np.full(96, -1)).astype(np.int32)  # -1: not used
    parts = {"weight_packed": packed(values + 8, 4), "weight_scale": scale, "weight_shape": np.array([10, 96])}
    found = make({**parts, "weight_g_idx": index})
    assert (found.scheme, found.reordered) == ("pack-quantized", is_reordered)
    check(found, values.astype(np.float32) * scale[:, order if is_reordered else np.arange(96) // 32])


def rows_of(words: int, inputs: int) -> dict[str, Any]:
    """The parts of four rows of packed integers; only their sizes matter."""
    parts = {"weight_packed": np.zeros((4, words), np.int32), "weight_scale": np.ones((4, 1), np.float32)}
    return {**parts, "weight_shape": np.array([4, inputs])}


def spaced(codes: Array, bits: int) -> Array:
    """Rows of codes with whole ones in each word, as versions of compressed-tensors before 0.13 packed them."""
    each = 32 // bits
    codes = np.pad(codes, ((0, 0), (0, -codes.shape[1] % each))).reshape(len(codes), -1, each).astype(np.uint32)
    words: Array = np.bitwise_or.reduce(codes << (bits * np.arange(each)).astype(np.uint32), axis=2)
    return words.view(np.int32)


# Seven bits would be read as eight without a configuration: both have four integers in a word.
@pytest.mark.parametrize(("bits", "is_declared"), [(3, True), (3, False), (5, True), (6, False), (7, True)])
def test_words_with_unused_bits(make: Make, bits: int, is_declared: bool) -> None:
    rng = np.random.default_rng(bits)
    inputs, rows, groups = 330, 64, 5
    codes, zeros = rng.integers(0, 1 << bits, (rows, inputs)), rng.integers(0, 1 << bits, (rows, groups))
    scale = rng.uniform(0, 1, (rows, groups)).astype(np.float32)
    parts = {
        "weight_packed": spaced(codes, bits),
        "weight_scale": scale,
        "weight_zero_point": spaced(zeros.T, bits).T,
        "weight_shape": np.array([rows, inputs]),
    }
    weights = {"num_bits": bits if is_declared else None, "group_size": 66, "symmetric": False}
    found = make(parts, {"quant_method": "compressed-tensors", "config_groups": {"0": {"weights": weights}}})
    assert (found.scheme, found.bits) == ("pack-quantized", bits)
    of_group = np.arange(inputs) // 66
    check(found, (codes - zeros[:, of_group]).astype(np.float32) * scale[:, of_group])
    parts["weight_zero_point"] = packed(zeros.T, bits).T
    with refuses(FormatError, "quantized.zero-point-shape"):
        make(parts, {"quant_method": "compressed-tensors", "config_groups": {"0": {"weights": weights}}}).shape  # noqa: B018


def test_bits_are_those_that_sizes_or_the_configuration_tell(make: Make) -> None:
    assert make(rows_of(32, 128)).bits == 8
    with refuses(FormatError, "quantized.bits"):
        make(rows_of(1, 8))
    reported = {"quant_method": "compressed-tensors", "config_groups": {"0": {"weights": {"num_bits": 3}}}}
    assert make(rows_of(1, 8), reported).bits == 3


def changed(**changes: Any) -> dict[str, Any]:
    """The parts of GPTQ with some replaced, or removed if `None`."""
    parts = {**gptq(4, 128, 64, np.arange(128) // 32, 1)[0], **changes}
    return {name: part for name, part in parts.items() if part is not None}


@pytest.mark.parametrize(
    ("parts", "rule"),
    [
        (changed(scales=None), "quantized.scale-missing"),
        (changed(qzeros=None), "quantized.zero-point-missing"),
        (changed(scales=np.ones((4, 32), np.float16)), "quantized.scale-shape"),
        (changed(scales=np.ones((0, 64), np.float16)), "quantized.scale-shape"),
        (changed(scales=np.ones((129, 64), np.float16)), "quantized.scale-shape"),
        (changed(scales=np.ones((4, 64), np.int16)), "quantized.dtype"),
        (changed(scales=np.ones(64, np.float16)), "quantized.shape"),
        (changed(qzeros=np.ones((3, 8), np.int32)), "quantized.zero-point-shape"),
        (changed(qweight=np.ones((16, 64), np.float32)), "quantized.dtype"),
        (changed(qweight=np.ones((17, 64), np.int32)), "quantized.shape"),
        (changed(g_idx=np.ones(100, np.int32)), "quantized.shape"),
        (
            {"weight_packed": np.ones((8, 4), np.int32), "weight_scale": np.ones((8, 1), np.float32)},
            "quantized.shape",
        ),
        (
            {
                "weight_packed": np.ones((8, 4), np.int32),
                "weight_scale": np.ones((8, 1), np.float32),
                "weight_shape": np.array([8, 1 << 40]),
            },
            "quantized.shape",
        ),
        (
            {
                "weight_packed": np.ones((8, 4), np.int32),
                "weight_scale": np.ones((8, 1), np.float32),
                "weight_shape": np.array([-8, -32]),
            },
            "quantized.shape",
        ),
        (
            {
                "weight": np.ones((8, 8), np.int8),
                "weight_scale": np.ones((8, 1), np.float32),
                "weight_zero_point": np.ones((4, 1), np.int8),
            },
            "quantized.zero-point-shape",
        ),
    ],
)
def test_parts_that_do_not_fit_are_errors(make: Make, parts: dict[str, Any], rule: str) -> None:
    with refuses(FormatError) as caught:
        make(parts)
    assert caught.value.rule == rule


def test_an_index_of_groups_that_are_not_there_is_an_error(make: Make) -> None:
    for wrong in (4, -1, 1 << 30):
        index = (np.arange(128) // 32).astype(np.int32)
        index[77] = wrong
        found = make(changed(g_idx=index))
        with refuses(ValueError):
            found.astype("float32")


@pytest.mark.parametrize(
    "reported",
    [
        {"quant_method": "gptq", "checkpoint_format": "marlin"},
        {"quant_method": "awq", "version": "gemv"},
        {"quant_method": "vptq"},
    ],
)
def test_layouts_of_other_kernels_are_refused(make: Make, reported: dict[str, Any]) -> None:
    found = make(changed(), reported)
    assert found.scheme == reported["quant_method"]
    with refuses(UnsupportedError, "unsupported.request"):
        found.astype()
