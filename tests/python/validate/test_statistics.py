"""`max_weights.stats` against NumPy, ml_dtypes and gguf-py: every dtype, every encoding, and conversion to tables."""

from __future__ import annotations

import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import max_weights
from conftest import safetensors_bytes
from max_weights._weight_statistics import WeightStatistics

INTEGERS = {
    "I8": np.int8,
    "I16": np.int16,
    "I32": np.int32,
    "I64": np.int64,
    "U8": np.uint8,
    "U16": np.uint16,
    "U32": np.uint32,
    "U64": np.uint64,
    "BOOL": np.uint8,  # as bytes
}
FLOATS = {
    "F16": np.float16,
    "F32": np.float32,
    "F64": np.float64,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}
SMALL_FLOATS = {
    "F4": (4, ml_dtypes.float4_e2m1fn),
    "F6_E2M3": (6, ml_dtypes.float6_e2m3fn),
    "F6_E3M2": (6, ml_dtypes.float6_e3m2fn),
}
SIZES = [4, 60, 2048, 2052, 70_004]
"""Around the sizes from which elements are counted in tables, or in parts."""

Row = dict[str, Any]


def one(path: Path, dtype: str, count: int, payload: bytes) -> Row:
    path = path / f"{dtype}-{count}.safetensors"
    path.write_bytes(safetensors_bytes({"w": (dtype, [count], payload)}))
    (row,) = max_weights.stats(max_weights.load_weights(path)).rows()
    assert (row["name"], row["shape"], row["count"], row["note"]) == ("w", (count,), count, None)
    return row


def check(row: Row, values: NDArray[Any], smallest_normal: float = 0.0) -> None:
    """Compare the row with the values, which are wide enough for all sums."""
    finite = values[np.isfinite(values)]
    magnitudes = np.abs(finite)
    expected = {
        "zeros": int((finite == 0).sum()),
        "subnormals": int(((magnitudes > 0) & (magnitudes < smallest_normal)).sum()),
        "nans": int(np.isnan(values).sum()),
        "infinities": int(np.isinf(values).sum()),
    }
    assert {key: row[key] for key in expected} == expected
    assert (row["minimum"], row["maximum"]) == (float(finite.min()), float(finite.max()))
    size = magnitudes.max()
    assert abs(row["mean"] - finite.mean()) <= 1e-12 * size
    assert abs(row["std"] - finite.std()) <= 1e-9 * size


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("count", SIZES)
def test_integers(tmp_path: Path, dtype: str, count: int) -> None:
    numbers = np.random.default_rng(count)
    info = np.iinfo(INTEGERS[dtype])
    high = 2 if dtype == "BOOL" else info.max
    values = np.asarray(numbers.integers(info.min, high, count, INTEGERS[dtype]))
    row = one(tmp_path, dtype, count, values.tobytes())
    check(row, values.astype(np.longdouble))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("count", SIZES)
def test_floats_of_any_bits(tmp_path: Path, dtype: str, count: int) -> None:
    numpy_dtype = np.dtype(FLOATS[dtype])
    payload = np.random.default_rng(count).bytes(count * numpy_dtype.itemsize)
    values = np.frombuffer(payload, numpy_dtype)
    smallest_normal = float(ml_dtypes.finfo(numpy_dtype).smallest_normal)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        wide = values.astype(np.longdouble)
    check(one(tmp_path, dtype, count, payload), wide, smallest_normal)


@pytest.mark.parametrize("dtype", SMALL_FLOATS)
@pytest.mark.parametrize("count", SIZES)
def test_floats_of_less_than_a_byte(tmp_path: Path, dtype: str, count: int) -> None:
    bits, numpy_dtype = SMALL_FLOATS[dtype]
    codes = np.asarray(np.random.default_rng(count).integers(0, 1 << bits, count, np.uint8))
    each_bit = np.unpackbits(codes[:, None], axis=1, bitorder="little")[:, :bits]
    payload = np.packbits(each_bit.ravel(), bitorder="little").tobytes()
    values = codes.view(numpy_dtype).astype(np.longdouble)
    check(one(tmp_path, dtype, count, payload), values, float(ml_dtypes.finfo(numpy_dtype).smallest_normal))


def test_of_complex_numbers_the_magnitudes_count(tmp_path: Path) -> None:
    numbers = np.random.default_rng(5)
    values = (numbers.standard_normal(3000) + 1j * numbers.standard_normal(3000)).astype(np.complex64)
    values[:4] = [0, complex(math.nan, 1), complex(1, math.inf), complex(1e-40, 0)]
    row = one(tmp_path, "C64", 3000, values.tobytes())
    check(row, np.abs(values.astype(np.clongdouble)).astype(np.float64), float(np.finfo(np.float32).smallest_normal))


def test_of_packed_blocks_what_gguf_decodes_them_to(models: Path) -> None:
    path = models / "derived" / "minilm-ffn-allquants.gguf"
    rows = {row["name"]: row for row in max_weights.stats(max_weights.load_weights(path)).rows()}
    seen = set()
    for tensor in gguf.GGUFReader(path).tensors:
        row = rows.pop(tensor.name)
        assert row["dtype"] in (tensor.tensor_type.name, "float32", "float16", "bfloat16")
        try:
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError:
            continue
        seen.add(tensor.tensor_type.name)
        assert row["count"] == values.size
        check(row, values.astype(np.longdouble))
    assert not rows
    assert {"Q4_0", "Q8_0", "Q4_K", "Q6_K", "IQ4_NL", "TQ2_0"} <= seen


@pytest.fixture
def many(tmp_path: Path) -> WeightStatistics:
    """A table of 300 weights of three dtypes, with a name that is markup, and a weight of unknown type."""
    entries: dict[str, tuple[str, list[int], bytes]] = {"<script>alert(1)</script>": ("F6_X", [4], bytes(3))}
    for number in range(299):
        dtype, width = [("I64", 8), ("F32", 4), ("U8", 1)][number % 3]
        entries[f"layers.{number}.w"] = (dtype, [2, 2], bytes(range(4 * width)))
    path = tmp_path / "many.safetensors"
    path.write_bytes(safetensors_bytes(entries))
    return max_weights.stats(max_weights.load_weights(path))


class Cells(HTMLParser):
    """The rows of a table, and the names of the elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, _attrs: Any) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def test_a_notebook_shows_the_beginning_of_a_long_table(many: WeightStatistics) -> None:
    text = many._repr_html_()
    page = Cells(text)
    assert not page.tags & {"script", "link", "img", "iframe"}
    head, *rows = page.rows
    assert head == list(many)
    assert all(len(row) == len(head) for row in rows)
    assert [row[0] for row in rows[:2]] == ["<script>alert(1)</script>", "layers.0.w"]
    assert "F6_X" in rows[0][-1]
    assert rows[-1][0] == "layers.98.w"
    assert len(rows) == 100
    assert "300 weights" in text
    assert "… and 200 more" in text
    assert len(text) < 40_000


def test_every_column_has_one_type(many: WeightStatistics) -> None:
    # polars.DataFrame accepts only one type per column, or None.
    types = {column: {type(cell) for cell in cells if cell is not None} for column, cells in many.items()}
    assert types == {
        **{column: {str} for column in ("name", "dtype", "note")},
        "shape": {tuple},
        **{column: {int} for column in ("count", "zeros", "subnormals", "nans", "infinities")},
        **{column: {float} for column in ("minimum", "maximum", "mean", "std")},
    }
