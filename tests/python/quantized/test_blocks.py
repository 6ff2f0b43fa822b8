"""Packed blocks and block scales through Python, against gguf-py, NumPy and ml_dtypes."""

from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest
import torch

import max_weights
from max_weights import DType, UnsupportedError, dequantize, quantize, scale_blocks
from max_weights.driver import Buffer
from max_weights.graph.quantization import QuantizationEncoding
from refusals import refuses

MADE = ["Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0"]


@pytest.mark.parametrize("name", MADE)
def test_quantizing_the_real_model_equals_gguf_py(models: Path, name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    weights = max_weights.load_weights(models / "minilm.safetensors")
    for layer in (0, 5):
        value = weights.encoder.layer[layer].intermediate.dense.weight.data()
        blocks = quantize(value, name)
        expected = gguf.quants.quantize(np.asarray(value), kind)
        assert blocks.shape == expected.shape
        assert bytes(blocks) == expected.tobytes()
        assert dequantize(blocks, name).to_numpy().tobytes() == gguf.quants.dequantize(expected, kind).tobytes()


def test_a_range_of_rows_is_decoded_without_the_rest(models: Path) -> None:
    value = max_weights.load_weights(models / "smollm2-135m.Q4_1.gguf").blk[3].ffn_down.weight.data()
    assert value.quantization_encoding is not None
    whole = np.asarray(value.astype("float32"))
    rows = dequantize(value.data[100:117], value.quantization_encoding)
    assert np.array_equal(rows.to_numpy(), whole[100:117])
    out = np.zeros((3, 1536), np.float16)
    dequantize(value.data[::200], value.quantization_encoding, "f16", out=out)
    assert np.array_equal(out, whole[::200].astype(np.float16))


def test_what_cannot_be_quantized_or_decoded_is_refused() -> None:
    with refuses(UnsupportedError, "quantization.encode"):
        quantize(np.zeros((2, 256), np.float32), QuantizationEncoding.Q4_K)
    for shape in ((2, 33), (), (31,)):
        with refuses(ValueError):
            quantize(np.zeros(shape, np.float32), "Q8_0")
    with refuses(ValueError):
        dequantize(np.zeros((2, 35), np.uint8), "Q8_0")
    with refuses(UnsupportedError, "quantization.target"):
        dequantize(np.zeros((2, 34), np.uint8), "Q8_0", "int8")
    assert quantize(np.zeros((0, 64), np.float32), "Q8_0").shape == (0, 68)
    assert bytes(quantize(np.ones((2, 32), np.float64), "Q8_0")) == bytes(
        quantize(np.ones((2, 32), np.float32), "Q8_0")
    )


def reference(data: np.ndarray, scales: np.ndarray, block: tuple[int, int], dtype: np.dtype) -> np.ndarray:
    """Spread the scales over the elements, multiply in float32, round once."""
    spread = np.repeat(np.repeat(scales.astype(np.float32), block[0], -2), block[1], -1)
    with np.errstate(all="ignore"):
        return (data.astype(np.float32) * spread[..., : data.shape[-2], : data.shape[-1]]).astype(dtype)


@pytest.mark.parametrize("target", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("source", ["float8_e4m3fn", "float8_e5m2", "int8"])
@pytest.mark.parametrize("shape", [(256, 384), (200, 300), (1, 7), (3, 130, 257), (5, 0)])
def test_block_scales_equal_numpy(source: str, target: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(5)
    kind = DType(source).to_numpy()
    data = rng.integers(0, 256, shape, np.uint8).view(kind)
    block = (128, 128)
    grid = (*shape[:-2], -(-shape[-2] // 128), -(-shape[-1] // 128))
    scales = rng.uniform(-2, 2, grid).astype(np.float32)
    found = scale_blocks(data, scales, block, dtype=target).to_numpy()
    expected = reference(data, scales, block, DType(target).to_numpy())
    same = found.view(f"u{found.itemsize}") == expected.view(f"u{found.itemsize}")
    both_nan = np.isnan(found.astype(np.float32)) & np.isnan(expected.astype(np.float32))
    assert (same | both_nan).all()


@pytest.mark.parametrize(("scale", "group"), [("float8_e8m0fnu", 32), ("float8_e4m3fn", 16)])
def test_fp4_pairs_with_small_scales_equal_ml_dtypes(scale: str, group: int) -> None:
    rng = np.random.default_rng(6)
    raw = rng.integers(0, 256, (6, 64), np.uint8)
    codes = np.stack([raw & 15, raw >> 4], -1).reshape(6, 128).astype(np.uint8)
    values = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    scales = rng.integers(100, 120, (6, 128 // group), np.uint8).view(DType(scale).to_numpy())
    data = Buffer.from_numpy(raw).view(DType.float4_e2m1fn)
    found = scale_blocks(data, scales, (1, group), dtype="float32").to_numpy()
    assert np.array_equal(found, reference(values, scales, (1, group), np.dtype(np.float32)))


@pytest.mark.parametrize(
    ("shape", "block"), [((900, 3000), (128, 128)), ((3, 500, 2100), (7, 64)), ((2, 0, 5), (1, 5))]
)
def test_mapped_data_is_scaled_part_by_part_and_written_where_it_is_wanted(
    tmp_path: Path, shape: tuple[int, ...], block: tuple[int, int]
) -> None:
    rng = np.random.default_rng(7)
    data = rng.integers(-128, 128, shape, np.int8)
    grid = (*shape[:-2], -(-shape[-2] // block[0]), -(-shape[-1] // block[1]))
    scales = rng.uniform(-2, 2, grid).astype(np.float32)
    max_weights.save_file({"data": data, "scales": scales}, tmp_path / "a.safetensors")
    weights = max_weights.load_weights(tmp_path / "a.safetensors")
    expected = reference(data, scales, block, np.dtype(np.float32))
    out = np.full(shape, np.nan, np.float32)
    made = scale_blocks(weights["data"], weights["scales"], block, dtype="float32", out=out)
    assert made.shape == shape
    assert np.array_equal(out, expected)
    assert np.array_equal(scale_blocks(data, scales, block, dtype="float32").to_numpy(), expected)


def test_an_out_of_scaled_blocks_must_fit() -> None:
    data, scales = np.ones((4, 6), np.int8), np.ones((1, 1), np.float32)
    for out in (np.empty((4, 5), np.float32), np.empty((4, 6), np.float64), np.empty((6, 4), np.float32).T):
        with refuses(ValueError):
            scale_blocks(data, scales, dtype="float32", out=out)
    same = np.ones((4, 6), np.float32)
    with refuses(ValueError):
        scale_blocks(same, scales, dtype="float32", out=same)
    pairs = Buffer.from_numpy(np.zeros(3, np.uint8)).view(DType.float4_e2m1fn, (2, 3))
    with refuses(ValueError):
        scale_blocks(pairs, scales, dtype="float32")


def test_scales_take_every_entry_point_and_must_fit() -> None:
    data, scales = torch.ones(4, 4, dtype=torch.float8_e4m3fn), np.full((2, 2), 3, np.float32)
    assert (scale_blocks(data, scales, (2, 2)).astype("f32").to_numpy() == 3).all()
    for wrong in (np.ones((2, 3), np.float32), np.ones(4, np.float32), np.ones((1, 2, 2, 2), np.float32)):
        with refuses(ValueError):
            scale_blocks(data, wrong, (2, 2))
    with refuses(ValueError):
        scale_blocks(data, scales, (0, 2))
    with refuses(ValueError):
        scale_blocks(data.reshape(-1), scales, (2, 2))
    with pytest.raises(UnsupportedError) as caught:
        scale_blocks(np.ones((4, 4)), scales, (2, 2))
    assert caught.value.rule == "cast.scale"
