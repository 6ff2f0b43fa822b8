"""Packed integers with a scale for each group, against the layouts' formulas in NumPy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import max_weights
from max_weights import Buffer, UnsupportedError
from max_weights._quantization import dequantize_groups
from refusals import refuses

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
FORMATS = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def pack(codes: np.ndarray, bits: int, *, dense: bool = True) -> np.ndarray:
    """Pack the last axis into words of 32 bits, little end first; if not dense, with whole codes in each word."""
    each = (codes[..., None] >> np.arange(bits)) & 1
    if not dense:
        per_word = 32 // bits
        missing = -codes.shape[-1] % per_word
        each = np.pad(each, [(0, 0)] * (codes.ndim - 1) + [(0, missing), (0, 0)])
        each = each.reshape(*codes.shape[:-1], -1, per_word * bits)
        each = np.pad(each, [(0, 0)] * codes.ndim + [(0, 32 - per_word * bits)])
    string = each.reshape(*codes.shape[:-1], -1)
    string = np.pad(string, [(0, 0)] * (codes.ndim - 1) + [(0, -string.shape[-1] % 32)])
    return np.packbits(string.astype(np.uint8), axis=-1, bitorder="little").view(np.int32)


def awq(codes: np.ndarray) -> np.ndarray:
    eights = codes.reshape(*codes.shape[:-1], -1, 8)[..., AWQ_ORDER]
    return pack(eights.reshape(codes.shape), 4)


class Made:
    """A quantized matrix: its codes, its parts as a layout stores them, and its values by the formula."""

    def __init__(
        self,
        layout: str,
        bits: int,
        shape: tuple[int, int],
        group_size: int,
        *,
        scales: str = "bfloat16",
        zeros: bool = True,
        index: bool = False,
        offset: int = 0,
        dense: bool = True,
        seed: int = 0,
    ) -> None:
        rng = np.random.default_rng(seed)
        rows, cols = shape
        groups = -(-cols // group_size)
        codes = rng.integers(0, 1 << bits, shape)
        zero = rng.integers(0, 1 << bits, (rows, groups)) if zeros else np.full((rows, groups), 1 << (bits - 1))
        scale = rng.normal(0, 0.02, (rows, groups)).astype(FORMATS[scales])
        of_column = np.arange(cols) // group_size
        if index:
            of_column = rng.permutation(of_column)
        stored_zero = (zero - offset) % (1 << bits)
        if layout == "rows":
            self.packed = pack(codes, bits, dense=dense)
            self.scales, points = scale, pack(stored_zero.T, bits, dense=dense).T
        elif layout == "gptq":
            self.packed = np.ascontiguousarray(pack(codes, bits).T)
            self.scales, points = scale.T, pack(stored_zero.T, bits)
        else:
            self.packed, self.scales, points = awq(codes.T), scale.T, awq(stored_zero.T)
        self.scales = np.ascontiguousarray(self.scales)
        self.options: dict[str, Any] = {"layout": layout, "bits": bits, "shape": shape, "zero_point_offset": offset}
        if zeros:
            self.options["zero_points"] = np.ascontiguousarray(points)
        if index:
            self.options["group_index"] = of_column.astype(np.int32)
        elif cols % group_size:
            self.options["group_size"] = group_size
        difference = (codes - zero[:, of_column]).astype(np.float32)
        self.expected = difference * scale.astype(np.float32)[:, of_column]

    def decoded(self, dtype: str = "float32", **changes: Any) -> Buffer:
        return dequantize_groups(self.packed, self.scales, dtype=dtype, **(self.options | changes))

    def check(self, *dtypes: str) -> None:
        for dtype in dtypes or FORMATS:
            found = self.decoded(dtype).to_numpy()
            expected = self.expected.astype(FORMATS[dtype])
            assert found.dtype == expected.dtype
            assert found.shape == expected.shape
            assert found.tobytes() == expected.tobytes(), (self.options, dtype)


SHAPES = [
    ((96, 256), 32),
    ((40, 256), 128),
    ((64, 96), 96),
    ((33, 100), 32),
    ((7, 37), 5),
    ((1, 8), 8),
    ((128, 2080), 16),
]


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize(("shape", "group_size"), SHAPES)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("index", [False, True])
def test_rows_equal_the_formula(bits: int, shape: tuple[int, int], group_size: int, zeros: bool, index: bool) -> None:
    for seed, scales in enumerate(FORMATS):
        Made("rows", bits, shape, group_size, scales=scales, zeros=zeros, index=index, seed=seed).check()


@pytest.mark.parametrize("bits", [3, 5, 6, 7])
@pytest.mark.parametrize(("shape", "group_size"), [((96, 256), 32), ((64, 960), 64), ((32, 160), 20)])
@pytest.mark.parametrize("zeros", [False, True])
def test_rows_of_older_releases_keep_whole_codes_in_a_word(
    bits: int, shape: tuple[int, int], group_size: int, zeros: bool
) -> None:
    padded = Made("rows", bits, shape, group_size, zeros=zeros, dense=False)
    assert padded.packed.shape != Made("rows", bits, shape, group_size).packed.shape
    padded.check()


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize(("shape", "group_size"), SHAPES)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("index", [False, True])
@pytest.mark.parametrize("offset", [0, 1])
def test_gptq_equals_the_formula(
    bits: int, shape: tuple[int, int], group_size: int, zeros: bool, index: bool, offset: int
) -> None:
    made = Made("gptq", bits, shape, group_size, scales="float16", zeros=zeros, index=index, offset=offset * zeros)
    made.check()


@pytest.mark.parametrize(("shape", "group_size"), [((96, 256), 32), ((8, 128), 128), ((40, 37), 5), ((1032, 520), 40)])
@pytest.mark.parametrize("zeros", [False, True])
def test_awq_equals_the_formula(shape: tuple[int, int], group_size: int, zeros: bool) -> None:
    Made("awq", 4, shape, group_size, scales="float16", zeros=zeros).check()


@pytest.mark.parametrize("layout", ["rows", "gptq", "awq"])
def test_matrices_of_many_parts_equal_the_formula_and_are_written_in_place(layout: Any) -> None:
    made = Made(layout, 4, (2504, 4096), 128, scales="float16")
    made.check("bfloat16", "float32")
    out = np.zeros((2504, 4096), np.float16)
    made.decoded("float16", out=out)
    assert np.array_equal(out, made.expected.astype(np.float16))


def test_an_index_of_consecutive_groups_is_as_none() -> None:
    made = Made("gptq", 4, (64, 256), 32)
    whole = made.decoded().to_numpy()
    index = (np.arange(256) // 32).astype(np.int32)
    assert np.array_equal(made.decoded(group_index=index).to_numpy(), whole)


def test_one_scale_of_a_row_or_of_the_whole_matrix_is_that_of_all_its_columns() -> None:
    made = Made("rows", 8, (33, 100), 100)
    made.check()
    for shape in ((1,), (), (1, 1)):
        one = np.full(shape, 0.5, np.float32)
        options: dict[str, Any] = made.options | {"zero_points": pack(np.array([[3]]), 8)}
        found = dequantize_groups(made.packed, one, **options).to_numpy()
        codes = made.packed.view(np.uint8)[:, :100]
        assert np.array_equal(found, (codes.astype(np.float32) - 3) * np.float32(0.5))


def test_scales_that_are_no_numbers_give_none_and_infinities_what_they_give_in_numpy() -> None:
    made = Made("rows", 4, (4, 64), 16, scales="float32", zeros=False)
    made.scales[0, 0], made.scales[1, 1], made.scales[2, 2] = np.nan, np.inf, -np.inf
    codes = (made.packed.view(np.uint8)[:, :, None] >> np.array([0, 4], np.uint8) & 15).reshape(4, 64)
    with np.errstate(all="ignore"):
        expected = (codes.astype(np.float32) - 8) * np.repeat(made.scales, 16, 1)
    for dtype, kind in FORMATS.items():
        found = made.decoded(dtype).to_numpy().astype(np.float32)
        assert np.array_equal(found, expected.astype(kind).astype(np.float32), equal_nan=True)


def test_tensors_of_a_file_and_views_with_strides_are_read_as_arrays_are(tmp_path: Path) -> None:
    made = Made("rows", 4, (64, 256), 32)
    parts = {"w.packed": made.packed, "w.scale": made.scales, "w.zero": made.options["zero_points"]}
    max_weights.save_file(parts, tmp_path / "groups.safetensors")
    weights = max_weights.load_weights(tmp_path / "groups.safetensors")
    options: dict[str, Any] = made.options | {"zero_points": weights.w.zero.data()}
    found = dequantize_groups(weights.w.packed, weights.w.scale, **options)
    assert np.array_equal(found.to_numpy(), made.expected)
    strided = np.asfortranarray(made.packed)
    assert np.array_equal(
        dequantize_groups(strided, np.repeat(made.scales, 2, 0)[::2], **made.options).to_numpy(), made.expected
    )


def test_empty_matrices_have_no_elements() -> None:
    for shape in ((0, 64), (4, 0), (0, 0)):
        words, scales = np.zeros((shape[0], shape[1] // 8), np.int32), np.zeros((shape[0], shape[1] // 32), np.float32)
        assert dequantize_groups(words, scales, layout="rows", bits=4, shape=shape).shape == shape


ROWS, GPTQ, AWQ = (Made(layout, 4, (16, 64), 32, index=layout == "gptq") for layout in ("rows", "gptq", "awq"))


@pytest.mark.parametrize(
    "attempt",
    [
        lambda: ROWS.decoded(layout="columns"),
        lambda: ROWS.decoded(bits=9),
        lambda: ROWS.decoded(bits=1),
        lambda: GPTQ.decoded(bits=5),
        lambda: AWQ.decoded(bits=8),
        lambda: ROWS.decoded(bits=3),
        lambda: ROWS.decoded(shape=(16, 72)),
        lambda: ROWS.decoded(shape=(17, 64)),
        lambda: ROWS.decoded(shape=(-1, 64)),
        lambda: ROWS.decoded(shape=(1 << 40, 1 << 40)),
        lambda: GPTQ.decoded(shape=(16, 32)),
        lambda: AWQ.decoded(shape=(16, 32)),
        lambda: ROWS.decoded(group_size=0),
        lambda: ROWS.decoded(group_size=16),
        lambda: Made("rows", 4, (8, 70), 32).decoded(group_size=None),
        lambda: ROWS.decoded(zero_points=np.zeros((2, 3), np.int32)),
        lambda: ROWS.decoded(zero_points=np.zeros((3, 2), np.int32)),
        lambda: ROWS.decoded(zero_points=np.zeros((2, 2), np.int8)),
        lambda: GPTQ.decoded(zero_points=np.zeros((3, 2), np.int32)),
        lambda: AWQ.decoded(zero_points=np.zeros((2, 3), np.int32)),
        lambda: ROWS.decoded(zero_point_offset=1),
        lambda: GPTQ.decoded(zero_point_offset=2),
        lambda: GPTQ.decoded(group_index=np.full(64, 2, np.int32)),
        lambda: GPTQ.decoded(group_index=np.full(64, -1, np.int32)),
        lambda: GPTQ.decoded(group_index=np.zeros(63, np.int32)),
        lambda: GPTQ.decoded(group_index=np.zeros(64, np.int64)),
        lambda: dequantize_groups(ROWS.packed, ROWS.scales.astype(np.float64), **ROWS.options),
        lambda: dequantize_groups(ROWS.packed, ROWS.scales[:8], **ROWS.options),
        lambda: dequantize_groups(ROWS.packed, ROWS.scales[0], **ROWS.options),
        lambda: dequantize_groups(ROWS.packed.view(np.int8), ROWS.scales, **ROWS.options),
        lambda: dequantize_groups(ROWS.packed.ravel(), ROWS.scales, **ROWS.options),
        lambda: ROWS.decoded(out=np.zeros((16, 63), np.float32)),
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_together_are_refused(attempt: Callable[[], Any]) -> None:
    with refuses(ValueError):
        attempt()


def test_other_dtypes_and_outputs_over_the_parts_are_refused() -> None:
    with refuses(UnsupportedError, "quantization.target"):
        ROWS.decoded("int8")
    one = Made("rows", 8, (4, 64), 64, zeros=False)
    memory = np.zeros(4 * 64 + 64, np.float16).view(np.int32)
    with refuses(ValueError):
        dequantize_groups(memory[:64].reshape(4, 16), one.scales, dtype="float16", **one.options,
                          out=memory[:128].view(np.float16).reshape(4, 64))  # fmt: skip
