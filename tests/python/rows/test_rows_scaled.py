"""Rows of quantized tables: the bits that decoding the whole weight has, for every kind of scales."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import max_weights
from max_weights.errors import ArgumentError
from refusals import refuses

RNG = np.random.default_rng(3)
ROWS, COLUMNS = 700, 256
IDS = RNG.integers(0, ROWS, (9, 100))


def bits(array: Any) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def codes(rows: int = ROWS, columns: int = COLUMNS) -> Any:
    """Float8 without NaN."""
    return RNG.standard_normal((rows, columns)).astype(ml_dtypes.float8_e4m3fn)


def scales(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.uniform(0.01, 2, shape).astype(dtype)


def expected(weight: Any, scale: Any, dtype: Any) -> Any:
    """Products in float32, rounded once: NumPy's."""
    return (weight.astype(np.float32) * scale.astype(np.float32)).astype(dtype)


def spread(scale: Any, rows: int, columns: int) -> Any:
    """The scale of each element."""
    per_row, per_column = -(-rows // len(scale)), -(-columns // scale.shape[1])
    return np.repeat(np.repeat(scale, per_row, 0), per_column, 1)[:rows, :columns]


@pytest.mark.parametrize("cache", [0, "1MB"])
@pytest.mark.parametrize("dtype", [None, "float32", "float16"])
@pytest.mark.parametrize(
    ("names", "shape", "scale_dtype"),
    [
        (("w", "w_scale_inv"), (6, 2), np.float32),
        (("m.weight", "m.weight_scale_inv"), (6, 2), ml_dtypes.bfloat16),
        (("m.weight", "m.weight_scale"), (ROWS, 1), np.float32),
        (("m.weight", "m.weight_scale"), (ROWS,), np.float16),
        (("m.weight", "m.weight_scale"), (), np.float32),
        (("m.weight", "m.weight_scale"), (ROWS, 8), np.float32),
    ],
    ids=str,
)
def test_scales_are_found_beside_the_weight(
    tmp_path: Path, names: tuple[str, str], shape: tuple[int, ...], scale_dtype: Any, dtype: Any, cache: Any
) -> None:
    weight, scale = codes(), np.asarray(scales(*shape, dtype=scale_dtype))
    safetensors.numpy.save_file({names[0]: weight, names[1]: scale}, tmp_path / "m")
    if shape == (6, 2):
        config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
        (tmp_path / "config.json").write_text(json.dumps(config))
    weights = max_weights.load_weights(tmp_path / "m")
    table = max_weights.table(weights, names[0], cache=cache)
    whole = max_weights.quantized(weights, names[0]).astype(dtype or "bfloat16").to_numpy()
    assert (tuple(table.shape), table.dtype) == ((ROWS, COLUMNS), max_weights.DType.bfloat16)
    assert table.nbytes == weight.nbytes + scale.nbytes
    for _ in range(2):
        assert bits(table.take(IDS, dtype, framework="numpy")) == bits(whole[IDS])
    grid = scale.astype(np.float32).reshape(scale.shape if scale.ndim == 2 else (-1, 1))
    if shape == (6, 2):
        each = np.repeat(np.repeat(grid, 128, 0), 128, 1)[:ROWS, :COLUMNS]
    else:
        each = spread(grid, ROWS, COLUMNS)
    assert bits(whole) == bits(expected(weight, each, np.dtype(dtype) if dtype else ml_dtypes.bfloat16))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (ROWS,), (ROWS, 1), (ROWS, 4), (6, 2)], ids=str)
def test_scales_may_be_named(tmp_path: Path, shape: tuple[int, ...]) -> None:
    weight, scale = codes(), np.asarray(scales(*shape))
    safetensors.numpy.save_file({"t": weight, "other": scale}, tmp_path / "m")
    table = max_weights.table(tmp_path / "m", "t", scales="other")
    grid = scale.reshape(scale.shape if scale.ndim == 2 else (-1, 1))
    each = np.repeat(np.repeat(grid, 128, 0), 128, 1)[:ROWS] if shape == (6, 2) else spread(grid, ROWS, COLUMNS)
    assert bits(table.take(IDS, "float32")) == bits(expected(weight, each, np.float32)[IDS])


@pytest.mark.parametrize("together", [True, False])
def test_shards_have_scales_of_their_own_or_one_tensor_of_all(tmp_path: Path, together: bool) -> None:
    sizes = [300, 1, 0, 399]
    shards = {f"t.shard_{number}": codes(rows) for number, rows in enumerate(sizes)}
    each = {f"t.scale_{number}": scales(rows, 2) for number, rows in enumerate(sizes)}
    scale = np.concatenate(list(each.values()))
    tensors = shards | ({"t.scales": scale} if together else each)
    safetensors.numpy.save_file(tensors, tmp_path / "m")
    name = "t.scales" if together else "t.scale_*"
    table = max_weights.table(tmp_path / "m", "t.shard_*", scales=name)
    whole = expected(np.concatenate(list(shards.values())), np.repeat(scale, 128, 1), np.float32)
    assert bits(table.take(IDS, "float32")) == bits(whole[IDS])


def test_shards_find_their_scales(tmp_path: Path) -> None:
    weights = {f"t.{number}.weight": codes(100) for number in range(3)}
    found = {f"t.{number}.weight_scale": scales(100, 1) for number in range(3)}
    safetensors.numpy.save_file(weights | found, tmp_path / "m")
    whole = expected(np.concatenate(list(weights.values())), np.concatenate(list(found.values())), ml_dtypes.bfloat16)
    table, ids = max_weights.table(tmp_path / "m", "t.*.weight"), IDS % 300
    assert bits(table.take(ids, framework="numpy")) == bits(whole[ids])
    with refuses(ArgumentError):
        safetensors.numpy.save_file(weights | dict(list(found.items())[1:]), tmp_path / "some")
        max_weights.table(tmp_path / "some", "t.*.weight")


@pytest.mark.parametrize("scheme", ["nvfp4", "mxfp4", "mxfp4 of gpt-oss", "mxfp8", "int8"])
def test_other_schemes_of_rows(tmp_path: Path, scheme: str) -> None:
    byte = lambda *shape: RNG.integers(0, 256, shape, dtype=np.uint8)  # noqa: E731
    exponents = RNG.integers(120, 130, (64, 8), dtype=np.uint8)
    tensors = {
        "nvfp4": {
            "m.weight": byte(64, 128),
            "m.weight_scale": scales(64, 16, dtype=ml_dtypes.float8_e4m3fn),
            "m.weight_scale_2": np.float32([0.3]),
        },
        "mxfp4": {"m.weight_packed": byte(64, 128), "m.weight_scale": exponents},
        "mxfp4 of gpt-oss": {"m_blocks": byte(64, 8, 16), "m_scales": exponents},
        "mxfp8": {"m.weight": codes(64), "m.weight_scale": exponents},
        "int8": {"m.weight": RNG.integers(-128, 128, (64, 256), dtype=np.int8), "m.weight_scale": scales(64, 1)},
    }[scheme]
    safetensors.numpy.save_file({name: np.asarray(value) for name, value in tensors.items()}, tmp_path / "m")
    table, ids = max_weights.table(tmp_path / "m", "m"), IDS % 64
    for dtype in ("bfloat16", "float32"):
        whole = max_weights.quantized(tmp_path / "m", "m").astype(dtype).to_numpy()
        assert bits(table.take(ids, dtype)) == bits(whole[ids])


def test_rows_keep_their_shape_with_named_scales(tmp_path: Path) -> None:
    deep, line = RNG.standard_normal((20, 4, 8)), RNG.standard_normal(60)
    tensors = {"deep": deep.astype(ml_dtypes.float8_e4m3fn), "line": line.astype(ml_dtypes.float8_e4m3fn)}
    tensors |= {"s": scales(20, 1), "one": scales(1), "thin": np.empty((20, 0), ml_dtypes.float8_e4m3fn)}
    safetensors.numpy.save_file(tensors, tmp_path / "m")
    for name, scale, each in (("deep", "s", tensors["s"][:, :, None]), ("line", "one", tensors["one"])):
        whole = expected(tensors[name], each, np.float32)
        table = max_weights.table(tmp_path / "m", name, scales=scale)
        assert table.shape == whole.shape
        assert bits(table.take([[3, 19]], "float32", framework="numpy")) == bits(whole[[[3, 19]]])
    assert max_weights.table(tmp_path / "m", "thin", scales="s").take([3, 3]).shape == (2, 0)


def test_the_name_of_scales_is_that_of_their_tensor(tmp_path: Path) -> None:
    tensors = {"m.weight": codes(), "m.weight_scale": scales(ROWS, 1)}
    safetensors.numpy.save_file(tensors, tmp_path / "m")
    table = max_weights.table(tmp_path / "m", "m.weight_scale")
    assert (table.names, bits(table.take([5]))) == (["m.weight_scale"], bits(tensors["m.weight_scale"][[5]]))
    assert max_weights.table(tmp_path / "m", "m").names == ["m.weight"]


def test_shards_without_rows_need_no_scales(tmp_path: Path) -> None:
    sizes = [100, 0, 37]
    weights = {f"t.{number}.weight": codes(rows) for number, rows in enumerate(sizes)}
    found = {f"t.{number}.weight_scale": scales(rows, 1) for number, rows in enumerate(sizes)}
    safetensors.numpy.save_file(weights | found, tmp_path / "m")
    whole = expected(np.concatenate(list(weights.values())), np.concatenate(list(found.values())), np.float32)
    ids = IDS % 137
    assert bits(max_weights.table(tmp_path / "m", "t.*.weight").take(ids, "float32")) == bits(whole[ids])


def test_schemes_without_rows_and_wrong_scales_are_refused(tmp_path: Path) -> None:
    gptq = {
        "g.qweight": np.zeros((8, 64), np.int32),
        "g.qzeros": np.zeros((1, 8), np.int32),
        "g.scales": np.ones((1, 64), np.float16),
    }
    tensors = {"t": codes(), "three": scales(ROWS, 3), "half": scales(350), "line": np.zeros(4, np.float32), **gptq}
    tensors |= {"u.weight": codes(), "u.weight_scale": scales(ROWS, 1), "s.0": codes(5), "s.1": codes(5)}
    tensors |= {"z.0": scales(5), "z.1": scales(5), "z.2": scales(5)}
    safetensors.numpy.save_file(tensors, tmp_path / "m")
    weights = max_weights.load_weights(tmp_path / "m")
    with refuses(ArgumentError):
        max_weights.table(weights, "g")
    for scale in ("three", "half", "g.qweight"):
        with refuses(ArgumentError):
            max_weights.table(weights, "t", scales=scale)
    safetensors.numpy.save_file({"t": codes(1, 130), "two": scales(1, 2)}, tmp_path / "row")
    with refuses(ArgumentError):
        max_weights.table(tmp_path / "row", "t", scales="two")
    with refuses(ArgumentError, "argument.mismatch"):
        max_weights.table(weights, "s.*", scales="z.*")
    with refuses(max_weights.WeightNotFoundError):
        max_weights.table(weights, "t", scales="scale")
    with refuses((ArgumentError, ValueError, max_weights.UnsupportedError)):
        max_weights.table(weights, "u.weight").take([1], "int8")
