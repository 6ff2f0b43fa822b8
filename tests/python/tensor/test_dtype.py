"""`DType` and `finfo`, against NumPy, ml_dtypes and torch."""

import pickle
import subprocess
import sys

import jax.numpy
import ml_dtypes
import numpy as np
import pytest
import torch

from max_weights import Buffer, WeightData
from max_weights.dtype import DType, finfo
from max_weights.graph import TensorType, Weight

ALL = list(DType)
FLOATS = [dtype for dtype in ALL if dtype.is_float()]
SAFETENSORS = {
    "BOOL": DType.bool,
    "C64": DType.complex64,
    "F4": DType.float4_e2m1fn,
    "F6_E2M3": DType.float6_e2m3fn,
    "F6_E3M2": DType.float6_e3m2fn,
    "F8_E8M0": DType.float8_e8m0fnu,
    "F8_E4M3": DType.float8_e4m3fn,
    "F8_E4M3FNUZ": DType.float8_e4m3fnuz,
    "F8_E5M2": DType.float8_e5m2,
    "F8_E5M2FNUZ": DType.float8_e5m2fnuz,
    "F16": DType.float16,
    "BF16": DType.bfloat16,
    "F32": DType.float32,
    "F64": DType.float64,
    "U8": DType.uint8,
    "I8": DType.int8,
    "U16": DType.uint16,
    "I16": DType.int16,
    "U32": DType.uint32,
    "I32": DType.int32,
    "U64": DType.uint64,
    "I64": DType.int64,
}


def test_the_values_are_those_of_max() -> None:
    assert {dtype.name: dtype.value for dtype in ALL} == {
        "bool": 1,
        "complex64": 32,
        "float4_e2m1fn": 64,
        "float6_e2m3fn": 65,
        "float6_e3m2fn": 66,
        "float8_e8m0fnu": 73,
        "float8_e4m3fn": 75,
        "float8_e4m3fnuz": 76,
        "float8_e5m2": 77,
        "float8_e5m2fnuz": 78,
        "float16": 79,
        "bfloat16": 80,
        "float32": 81,
        "float64": 82,
        "uint8": 134,
        "int8": 135,
        "uint16": 136,
        "int16": 137,
        "uint32": 138,
        "int32": 139,
        "uint64": 140,
        "int64": 141,
    }


@pytest.mark.parametrize("dtype", ALL)
def test_every_way_of_writing_a_member_leads_back_to_it(dtype: DType) -> None:
    assert repr(dtype) == dtype.name
    assert str(dtype) == f"DType.{dtype.name}"
    for written in (
        dtype.value,
        dtype,
        dtype.name,
        dtype.name.upper(),
        str(dtype),
        f"torch.{dtype.name}",
        f" {dtype.name} ",
    ):
        assert DType(written) is dtype
    assert pickle.loads(pickle.dumps(dtype)) is dtype


def test_safetensors_names_parse_in_any_case() -> None:
    assert set(SAFETENSORS.values()) == set(ALL)
    for name, dtype in SAFETENSORS.items():
        assert DType(name) is DType(name.lower()) is dtype


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("half", DType.float16),
        ("double", DType.float64),
        ("single", DType.float32),
        ("<f4", DType.float32),
        ("|u1", DType.uint8),
        ("np.int64", DType.int64),
        ("torch.float", DType.float32),
        ("torch.int", DType.int32),
        ("torch.float4_e2m1fn_x2", DType.float4_e2m1fn),
        ("fp16", DType.float16),
    ],
)
def test_common_names_parse(name: str, dtype: DType) -> None:
    assert DType(name) is dtype


@pytest.mark.parametrize("native", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "?"])
def test_numpys_own_spellings_parse(native: str) -> None:
    dtype = np.dtype(native)
    assert DType(dtype.str) is DType(dtype.name) is DType.from_numpy(dtype)


@pytest.mark.parametrize("name", ["float", "int", "byte", "fp8", "float8_e4m3", "f8"])
def test_ambiguous_names_are_refused_with_both_meanings(name: str) -> None:
    with pytest.raises(ValueError, match=rf"'{name}' is ambiguous: .*choose one of"):
        DType(name)


@pytest.mark.parametrize("value", ["", "flaot32", "float128", ">f4", 999, None, 3.5, "torch.", "_f32"])
def test_anything_else_is_an_error_that_names_the_choices(value: object) -> None:
    with pytest.raises(ValueError, match=r"is not a dtype; choose one of bool, int8, .*complex64"):
        DType(value)


@pytest.mark.parametrize("dtype", ALL)
def test_sizes_and_kinds_agree_with_numpy(dtype: DType) -> None:
    theirs = dtype.to_numpy()
    if dtype.size_in_bits >= 8:
        assert dtype.size_in_bytes == theirs.itemsize
        assert dtype.size_in_bits == 8 * theirs.itemsize
        assert dtype.align == theirs.alignment
    assert dtype.is_signed_integral() == (theirs.kind == "i")
    assert dtype.is_unsigned_integral() == (theirs.kind == "u")
    assert dtype.is_integral() == (theirs.kind in "iu")
    assert dtype.is_float() == ("float" in theirs.name)
    assert dtype.is_half() == (dtype.name in ("float16", "bfloat16"))
    assert dtype.is_float8() == theirs.name.startswith("float8")


@pytest.mark.parametrize(
    ("dtype", "bits"), [(DType.float4_e2m1fn, 4), (DType.float6_e2m3fn, 6), (DType.float6_e3m2fn, 6)]
)
def test_packed_types_have_bits_and_no_bytes(dtype: DType, bits: int) -> None:
    assert dtype.size_in_bits == bits
    assert dtype.align == 1
    with pytest.raises(ValueError, match=rf"{bits} bits.*size_in_bits"):
        _ = dtype.size_in_bytes


@pytest.mark.parametrize("dtype", ALL)
def test_numpy_and_back(dtype: DType) -> None:
    theirs = dtype.to_numpy()
    assert isinstance(theirs, np.dtype)
    assert theirs.name == dtype.name
    assert DType.from_numpy(theirs) is DType.from_numpy(theirs.type) is dtype
    assert np.zeros(3, theirs).dtype == theirs


@pytest.mark.parametrize("theirs", [object, "V4", "S3", "complex128", "M8[s]", [("a", "f4")], ml_dtypes.int4])
def test_numpy_dtypes_without_a_counterpart_are_refused(theirs: object) -> None:
    with pytest.raises(ValueError, match="no counterpart"):
        DType.from_numpy(theirs)


def test_foreign_byte_order_and_none_are_refused_not_misread() -> None:
    with pytest.raises(ValueError, match=r"native byte order.*newbyteorder"):
        DType.from_numpy(">f4" if sys.byteorder == "little" else "<f4")
    with pytest.raises(TypeError, match="None"):
        DType.from_numpy(None)


def test_missing_ml_dtypes_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ImportError, match="pip install ml-dtypes"):
        DType.bfloat16.to_numpy()
    assert DType.float16.to_numpy() == np.float16


@pytest.mark.parametrize("dtype", [dtype for dtype in ALL if not dtype.name.startswith("float6_")])
def test_torch_and_back(dtype: DType) -> None:
    theirs = dtype.to_torch()
    assert isinstance(theirs, torch.dtype)
    assert DType.from_torch(theirs) is DType(str(theirs)) is dtype
    if dtype.size_in_bits >= 8:
        assert theirs.itemsize == dtype.size_in_bytes


def test_torch_without_a_counterpart() -> None:
    with pytest.raises(ValueError, match="torch has no dtype for float6_e2m3fn"):
        DType.float6_e2m3fn.to_torch()
    with pytest.raises(ValueError, match=r"torch\.qint8 has no counterpart"):
        DType.from_torch(torch.qint8)
    for other in ("torch.float32", np.float32, None):
        with pytest.raises(TypeError, match="not a torch dtype"):
            DType.from_torch(other)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", FLOATS)
def test_finfo_agrees_with_numpy_and_ml_dtypes(dtype: DType) -> None:
    theirs = (
        np.finfo(dtype.to_numpy())
        if dtype.name in ("float16", "float32", "float64")
        else ml_dtypes.finfo(dtype.to_numpy())
    )
    ours = finfo(dtype)
    assert ours.dtype is dtype
    assert ours.bits == theirs.bits
    for attribute in ("eps", "max", "min", "tiny", "smallest_normal"):
        assert getattr(ours, attribute) == float(getattr(theirs, attribute)), attribute
    assert finfo(dtype.name).max == ours.max
    assert f"{dtype}, bits={ours.bits}" in repr(ours)


@pytest.mark.parametrize("dtype", [dtype for dtype in ALL if dtype not in FLOATS])
def test_finfo_is_for_floats_only(dtype: DType) -> None:
    with pytest.raises(TypeError, match=f"{dtype} is not a floating-point dtype"):
        finfo(dtype)


def test_dtypes_and_their_limits_need_no_framework() -> None:
    code = """
import sys
from max_weights import Buffer, WeightData
from max_weights.dtype import DType, finfo
from max_weights.graph import TensorType, Weight
assert finfo(DType.bfloat16).bits == DType("BF16").size_in_bits == 16
print(*sorted({"numpy", "ml_dtypes", "torch"} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("dtype", ALL)
def test_dtypes_of_the_libraries_are_taken_as_they_are(dtype: DType) -> None:
    written: list[object] = [dtype.to_numpy(), dtype.to_numpy().type]
    if not dtype.name.startswith("float6_"):
        written.append(dtype.to_torch())
    if (scalar := getattr(jax.numpy, "bool_" if dtype is DType.bool else dtype.name, None)) is not None:
        written.append(scalar)
    for one in written:
        assert DType(one) is dtype, one


def test_arrays_take_the_dtypes_of_the_libraries() -> None:
    values = [0.5, -2.0, 3.0]
    buffer = Buffer.from_numpy(np.array(values, np.float32))
    weight = WeightData.from_numpy(np.array(values, np.float32), "w")
    for half in (np.float16, np.dtype("float16"), torch.float16, jax.numpy.float16, "float16"):
        assert buffer.astype(half).to_numpy().tolist() == values
        assert weight.astype(half).dtype is DType.float16
        assert Buffer.zeros([2], half).dtype is DType.float16
        assert Weight("w", half, [2], "cpu").dtype is DType.float16
        assert TensorType(half, [2], "cpu").cast(half).dtype is DType.float16
        assert finfo(half).max == 65504
    assert buffer.view(ml_dtypes.bfloat16).dtype is DType.bfloat16


@pytest.mark.parametrize(
    "value", [np.str_, np.dtype(">f4"), np.dtype([("a", "f4")]), torch.complex128, np.generic, np.longdouble]
)
def test_dtypes_without_a_counterpart_are_value_errors(value: object) -> None:
    with pytest.raises((ValueError, TypeError), match=r"counterpart|byte order|not a dtype|Cannot|Converting"):
        DType(value)


@pytest.mark.parametrize(
    "value", [True, np.True_, 1.5, 81.0, None, np.zeros(3, np.float32), torch.zeros(3), float, int, object, b"f32", ()]
)
def test_what_is_no_dtype_is_refused(value: object) -> None:
    with pytest.raises((ValueError, TypeError), match="is not a dtype"):
        DType(value)


def test_no_library_is_imported_to_understand_a_dtype() -> None:
    script = """
import sys
from max_weights import DType
try:
    DType(object())
except ValueError:
    print(sorted({"numpy", "torch", "jax", "ml_dtypes"} & set(sys.modules)))"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
