"""Casting through Python: every pair against its named oracle, real files, layouts, `out=`, and the promises about long
work.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import max_weights
from max_weights import DType, UnsupportedError, WeightData
from max_weights.driver import Buffer, virtual_devices
from refusals import refuses

Make = Callable[..., Path]
PACKED = {DType.float4_e2m1fn: 4, DType.float6_e2m3fn: 6, DType.float6_e3m2fn: 6}
BYTES = [
    DType[name]
    for name in ("bool", "int8", "uint8", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
]
BYTES.append(DType.float8_e8m0fnu)
WORDS = [DType.int16, DType.uint16, DType.float16, DType.bfloat16]
WIDE = [DType.int32, DType.uint32, DType.int64, DType.uint64, DType.float32, DType.float64]
SOURCES = [*BYTES, *WORDS, *WIDE]
FLOATS = [dtype for dtype in SOURCES if dtype.is_float()]
# If ml_dtypes rounds twice (through float32), our single rounding differs; Rust tests cover these pairs by exhaustive
# search.
ROUNDED_TWICE = {DType.float64, DType.int32, DType.uint32, DType.int64, DType.uint64}


def patterns(dtype: DType) -> np.ndarray:
    """All bit patterns of small types; all exponents, boundaries and random values of the others."""
    numpy_dtype = dtype.to_numpy()
    if numpy_dtype.itemsize == 1:
        return np.arange(256, dtype=np.uint8).view(numpy_dtype) if dtype != DType.bool else np.array([False, True])
    if numpy_dtype.itemsize == 2:
        return np.arange(65536, dtype=np.uint16).view(numpy_dtype)
    rng = np.random.default_rng(7)
    unsigned = np.dtype(f"u{numpy_dtype.itemsize}")
    bits = rng.integers(0, np.iinfo(unsigned).max, 20_000, unsigned, endpoint=True)
    if dtype.is_float():
        mantissa = {4: 23, 8: 52}[numpy_dtype.itemsize]
        exponents = np.arange(1 << (unsigned.itemsize * 8 - mantissa), dtype=unsigned) << unsigned.type(mantissa)
        edges = np.array([0, 1, (1 << mantissa) - 1, 1 << (mantissa - 1), (1 << (mantissa - 1)) + 1], unsigned)
        bits = np.concatenate([bits, (exponents[:, None] | edges).ravel()])
        near = np.arange(-70000, 70000, 0.37).astype(numpy_dtype).view(unsigned)
        return np.concatenate([bits, near]).view(numpy_dtype)
    small = np.arange(-70_000, 70_000, dtype=np.int64).astype(numpy_dtype).view(unsigned)
    edges = unsigned.type(1) << np.arange(unsigned.itemsize * 8, dtype=unsigned)
    return np.concatenate([bits, small, edges, edges - unsigned.type(1), ~edges]).view(numpy_dtype)


def expected(values: np.ndarray, source: DType, target: DType) -> np.ndarray:
    """NumPy and ml_dtypes, by the rule table."""
    numpy_dtype = target.to_numpy()
    with np.errstate(all="ignore"):
        if target == DType.bool:
            return values.astype(np.float64) != 0 if source.is_float() else values != 0
        if not source.is_float() or target.is_float():
            # float32 holds the small types exactly; ml_dtypes has no casts between some of them.
            small = source.size_in_bits <= 16 and source.is_float()
            return (values.astype(np.float32) if small else values).astype(numpy_dtype)
        # A float to an integer: truncated, saturated, NaN is 0.
        limits = np.iinfo(numpy_dtype)
        whole = np.trunc(values.astype(np.float64))
        clipped = np.where(np.isnan(whole), 0, np.clip(whole, float(limits.min), float(limits.max)))
        result = np.where(clipped >= float(limits.max), limits.max, clipped.astype(numpy_dtype))
        return np.where(clipped <= float(limits.min), limits.min, result).astype(numpy_dtype)


def assert_equal(found: np.ndarray, requested: np.ndarray, context: str) -> None:
    """Bit for bit, except that a NaN equals a NaN."""
    unsigned = f"u{found.dtype.itemsize}"
    same = found.view(unsigned) == requested.view(unsigned)
    if found.dtype.kind not in "biu":
        with np.errstate(all="ignore"):
            same |= np.isnan(found.astype(np.float64)) & np.isnan(requested.astype(np.float64))
    assert same.all(), f"{context}: {np.flatnonzero(~same)[:5]} {found[~same][:5]} {requested[~same][:5]}"


@pytest.mark.parametrize("source", SOURCES, ids=str)
@pytest.mark.parametrize("target", SOURCES, ids=str)
def test_every_pair_equals_numpy_and_ml_dtypes(source: DType, target: DType) -> None:
    values = patterns(source)
    if source in ROUNDED_TWICE and target.is_float() and target.size_in_bits < 32:
        # Only values that float32 holds exactly round once in ml_dtypes, too.
        with np.errstate(all="ignore"):
            values = values[values.astype(np.float32).astype(np.float64) == values.astype(np.float64)]
            values = values[np.abs(values.astype(np.float64)) < 2.0**53] if source.is_integral() else values
    if source == DType.float8_e8m0fnu and target == DType.bool:
        values = values[:255]
    found = Buffer.from_numpy(values).astype(target).to_numpy()
    assert_equal(found, expected(values, source, target), f"{source} -> {target}")


@pytest.mark.parametrize("source", [DType.float32, DType.float16, DType.bfloat16], ids=str)
def test_saturating_e4m3fn_equals_torch(source: DType) -> None:
    values = patterns(source)
    found = Buffer.from_numpy(values).astype(DType.float8_e4m3fn, saturate=True).to_numpy()
    tensor = torch.from_dlpack(Buffer.from_numpy(values)).to(torch.float8_e4m3fn)
    requested = np.asarray(Buffer.from_dlpack(tensor))
    finite = np.isfinite(values.astype(np.float32))
    assert_equal(found[finite], requested[finite], "saturated")
    largest = np.abs(found[np.isinf(values.astype(np.float32))].astype(np.float32))
    assert (largest == 448).all()


@pytest.mark.parametrize("source", FLOATS, ids=str)
@pytest.mark.parametrize("target", FLOATS, ids=str)
def test_saturated_values_are_never_infinite_unless_they_were(source: DType, target: DType) -> None:
    values = patterns(source)
    with np.errstate(all="ignore"):
        found = Buffer.from_numpy(values).astype(target, saturate=True).to_numpy().astype(np.float64)
        was = values.astype(np.float64)
        plain = Buffer.from_numpy(values).astype(target).to_numpy().astype(np.float64)
    assert not (np.isinf(found) & ~np.isinf(was)).any()
    unchanged = np.isfinite(plain)
    assert np.array_equal(found[unchanged], plain[unchanged])


@pytest.mark.parametrize("dtype", PACKED, ids=str)
def test_packed_dtypes_equal_ml_dtypes(dtype: DType) -> None:
    bits = PACKED[dtype]
    reference = getattr(ml_dtypes, str(dtype.name))
    values = np.concatenate([patterns(DType.float16), np.zeros(0, np.float16)]).astype(np.float32)
    values = values[~np.isnan(values)]
    values = values[: len(values) // 4 * 4]
    packed = Buffer.from_numpy(values).astype(dtype)
    assert packed.nbytes == len(values) * bits // 8
    raw = np.unpackbits(np.frombuffer(packed.view(DType.uint8, (packed.nbytes,)), np.uint8), bitorder="little")
    codes = (raw.reshape(-1, bits) << np.arange(bits)).sum(axis=1).astype(np.uint8)
    requested = values.astype(reference)
    assert np.array_equal(codes, requested.view(np.uint8) & ((1 << bits) - 1))
    assert np.array_equal(packed.astype(DType.float32).to_numpy(), requested.astype(np.float32))


def test_complex_numbers_convert_only_to_themselves() -> None:
    buffer = Buffer.from_numpy(np.array([1 + 2j], np.complex64))
    assert buffer.astype("complex64") is buffer
    for source, target in ((buffer, DType.float32), (Buffer.zeros((1,), "f32"), DType.complex64)):
        with refuses(UnsupportedError, "cast.pair") as caught:
            source.astype(target)
        assert caught.value.rule == "cast.pair"


@pytest.mark.parametrize("backend", ["mmap", "read"])
def test_the_real_model_to_f16_bf16_e4m3fn_and_back(models: Path, backend: Any) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors", backend=backend)
    for name, weight in weights.items():
        value = weight.data()
        if value.dtype != DType.float32:
            continue
        array = np.asarray(value)
        for target in (DType.float16, DType.bfloat16, DType.float8_e4m3fn):
            there = value.astype(target)
            assert (there.name, there.dtype, there.shape) == (name, target, value.shape)
            with np.errstate(all="ignore"):
                requested = array.astype(target.to_numpy())
            assert np.asarray(there).tobytes() == requested.tobytes(), (name, target)
            back = np.asarray(there.astype(DType.float32))
            assert back.tobytes() == requested.astype(np.float32).tobytes(), (name, target)


def test_weight_data_converts_and_keeps_what_it_is(make_file: Make) -> None:
    value = max_weights.load_weights(make_file({"w": np.array([[1.5, 65536.0]], np.float32)})).w.data()
    assert value.astype("float32") is value
    half = value.astype(DType.float16)
    assert np.asarray(half).tolist() == [[1.5, np.inf]]
    assert np.asarray(value.astype(DType.float16, saturate=True)).tolist() == [[1.5, 65504.0]]
    assert repr(half) == "WeightData('w', DType.float16, [1, 2], 4 bytes)"
    assert not half.data.is_mapped
    made = WeightData.from_numpy(np.arange(4), "n").astype(DType.float32)
    assert np.asarray(made).tolist() == [0, 1, 2, 3]


def test_inside_virtual_devices_the_dtype_changes_and_there_is_no_data(make_file: Make) -> None:
    value = max_weights.load_weights(make_file({"w": np.ones((2, 3), np.float32)})).w.data()
    seen = []
    with virtual_devices():
        virtual = value.astype(DType.bfloat16)
        assert (virtual.dtype, virtual.shape, virtual.name) == (DType.bfloat16, [2, 3], "w")
        assert value.astype(DType.float32) is value
        for read in (np.asarray, torch.from_dlpack, lambda data: data.to_buffer()):
            with refuses(UnsupportedError, "unsupported.device"):
                read(virtual)
        thread = threading.Thread(target=lambda: seen.append(np.asarray(value.astype(DType.int8))[0, 0]))
        thread.start()
        thread.join()
    assert seen == [1], "another context is not concerned"
    assert np.asarray(value.astype(DType.bfloat16)).tolist() == [[1, 1, 1]] * 2
    with pytest.raises(RuntimeError), virtual_devices():
        raise RuntimeError
    assert np.asarray(value.astype(DType.int8))[0, 0] == 1


def test_allocate_with_a_dtype_converts_lazily(make_file: Make) -> None:
    weights = max_weights.load_weights(make_file({"w": np.array([1.5, 2.5], np.float32)}))
    weight = weights.w.allocate(dtype=DType.int32)
    assert weight.dtype == DType.int32
    recorded = weights.allocated_weights["w"]
    assert "not converted yet" in repr(recorded)
    assert recorded.dtype == DType.int32
    assert recorded.shape == [2]
    assert torch.from_dlpack(recorded).tolist() == [1, 2]
    assert "not converted yet" not in repr(recorded)
    assert np.asarray(recorded).tolist() == [1, 2]
    assert weights.w.allocate(dtype=DType.float32).dtype == DType.float32
    assert weights.allocated_weights["w"].is_mapped


casts = st.sampled_from(["float16", "bfloat16", "float32", "float64", "int8", "uint16", "float8_e4m3fn", "bool"])


@given(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9), st.data(), casts)
def test_strided_empty_and_scalar_inputs(shape: tuple[int, ...], data: st.DataObject, target: str) -> None:
    array = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape) - 3
    key = tuple(data.draw(st.sampled_from([np.s_[::2], np.s_[::-1], np.s_[1:], np.s_[:]])) for _ in shape)
    part = array[key].T
    found = Buffer.from_numpy(part).astype(target)
    assert found.is_contiguous or target == "float32", "the same dtype is the same tensor"
    found = found.contiguous()
    assert found.shape == part.shape
    source = Buffer.from_numpy(np.ascontiguousarray(part)).astype(target)
    assert bytes(found.view(DType.uint8, (found.nbytes,))) == bytes(source.view(DType.uint8, (source.nbytes,)))


def test_large_strided_input_is_converted_in_parts() -> None:
    array = np.random.default_rng(0).standard_normal((3000, 1500)).astype(np.float32)
    for part in (array.T, array[::2, ::3], array[None, :, ::-1], array[:, :1]):
        assert np.array_equal(Buffer.from_numpy(part).astype("f16").to_numpy(), part.astype(np.float16))


def test_unaligned_input() -> None:
    raw = np.zeros(4001, np.uint8)
    raw[1:] = np.arange(1000, dtype=np.float32).view(np.uint8)
    buffer = Buffer.from_numpy(raw)[1:].view(DType.float32)
    assert not buffer.aligned
    assert buffer.astype("f16").to_numpy().tolist() == np.arange(1000).astype(np.float16).tolist()


def test_out_is_written_to_whatever_it_is() -> None:
    source = Buffer.from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3))
    array = np.zeros((2, 3), np.float16)
    assert np.shares_memory(source.astype("f16", out=array).to_numpy(), array)
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    tensor = torch.zeros(2, 3, dtype=torch.bfloat16)
    source.astype("bf16", out=tensor)
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]
    own = Buffer.zeros((2, 3), "i32")
    assert source.astype("i32", out=own) is own
    assert own.to_numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    same = Buffer.zeros((2, 3), "f32")
    assert source.astype("f32", out=same) is same, "an output of the same dtype is a copy"
    assert same[1, 2].item() == 5


def test_out_that_does_not_fit_is_refused() -> None:
    source = Buffer.from_numpy(np.zeros((2, 4), np.float32))
    read_only = np.zeros((2, 4), np.float16)
    read_only.flags.writeable = False
    for out in (
        np.zeros((2, 3), np.float16),
        np.zeros((2, 4), np.float32),
        np.zeros((2, 8), np.float16)[:, ::2],
        read_only,
        source.view(DType.float16, (4, 4))[:2],
        np.zeros((2, 4), ">f2"),
    ):
        with refuses(ValueError):
            source.astype(DType.float16, out=out)


def test_a_truncated_file_gives_an_error_while_converting(make_file: Make) -> None:
    path = make_file({"w": np.zeros((2048, 1024), np.float32)})
    value = max_weights.load_weights(path).w.data()
    value.astype(DType.float16)
    os.truncate(path, 1 << 20)
    for read in (lambda: value.astype(DType.float16), lambda: value.data[::2, ::2].astype(DType.float16)):
        with refuses(max_weights.FileChangedError, "file.truncated"):
            read()


@pytest.mark.parametrize("level", ["scalar", "avx2", "avx512", "neon"])
def test_every_level_of_instructions_gives_the_same_bits(level: str) -> None:
    script = """
import hashlib, numpy as np
from max_weights.driver import Buffer
digest = hashlib.sha256()
values = np.random.default_rng(3).integers(0, 2**32, 100_003, np.uint32).view(np.float32)
for target in ("f16", "bf16", "f8_e4m3", "f8_e5m2", "f64", "i32"):
    made = Buffer.from_numpy(values).astype(target)
    digest.update(bytes(made.view("u8")))
    for back in ("f32", "bf16", "f16"):
        digest.update(bytes(made.astype(back).view("u8")))
print(digest.hexdigest())
"""

    def run(level: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "MAX_WEIGHTS_SIMD": level}
        return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)

    unknown = run("sse9")
    assert unknown.returncode == 1
    here = unknown.stderr.rstrip().rpartition("are: ")[2].split(", ")
    assert here[0] == "scalar"
    done = run(level)
    if level not in here:
        assert done.returncode == 1
        assert "this processor lacks it" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert done.stdout == run("scalar").stdout


def test_a_forked_child_has_workers_of_its_own() -> None:
    script = """
import os, warnings, numpy as np
from max_weights.driver import Buffer
source = Buffer.from_numpy(np.ones(16 << 20, np.float32))
source.astype("f16")
child = os.fork()
if child == 0:
    os._exit(0 if source.astype("f16").to_numpy().sum(dtype=np.float64) == 16 << 20 else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_ctrl_c_stops_a_long_conversion() -> None:
    script = """
import numpy as np, time
from max_weights.driver import Buffer
source = Buffer.from_numpy(np.ones(64 << 20, np.float32))
out = Buffer.zeros((64 << 20,), "float8_e8m0fnu")
print("ready", flush=True)
try:
    while True:
        source.astype("float8_e8m0fnu", out=out)
except KeyboardInterrupt:
    print("stopped", flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "stopped\n"


def test_released_memory_is_used_again_and_can_be_given_back() -> None:
    max_weights.release_memory()
    source = Buffer.zeros((8 << 20,), "f32")
    first = source.astype("f16")
    address = first._data_ptr()
    del first
    second = source.astype("f16")
    assert second._data_ptr() == address
    del second
    assert max_weights.release_memory() >= 16 << 20
    assert max_weights.release_memory() == 0
