"""Run by test_gpu_kernels.py in separate processes, with the stand-in driver instead of libcuda: one function for each
promise. The GPU kernels are compiled for the host; the CPU is the oracle.
"""

import ctypes
import itertools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpu_program import copied_on_a_stream, counters, driver, nothing_is_left, refused, same
from max_weights import Buffer, DType, UnsupportedError, scale_blocks

REAL = [dtype for dtype in DType if dtype.name not in ("_unknown", "complex64")]
FLOATS = [dtype for dtype in REAL if dtype.is_float()]
# Counts around those of a vector, of a thread and of a block of threads.
COUNTS = (0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 255, 257, 4097)


def of_bytes(values: np.ndarray[Any, Any], dtype: DType) -> Buffer:
    """A tensor of rank 1 with these bytes, as many as fill whole elements."""
    raw = np.frombuffer(values.tobytes(), np.uint8)
    groups = len(raw) * 8 // (dtype.size_in_bits * 12) * 12  # whole bytes for fp4 and fp6, too
    return Buffer.from_numpy(raw[: groups * dtype.size_in_bits // 8].copy()).view(dtype, [groups])


def patterns(dtype: DType) -> Buffer:
    """All bit patterns of small types; for others, special values, ties between two values, and random bits."""
    bits = dtype.size_in_bits
    random = np.random.default_rng(bits)
    if bits <= 8:
        return of_bytes(np.tile(np.arange(256, dtype=np.uint8), 12), dtype)
    if bits == 16:
        return of_bytes(np.tile(np.arange(1 << 16, dtype=np.uint16), 3), dtype)
    kind: Any = np.uint32 if bits == 32 else np.uint64
    edges = [kind(1) << kind(bit) for bit in range(bits)]
    values = [edge + kind(step) - kind(1) for edge in edges for step in range(3)]
    if dtype.is_float():
        mantissa, floats = (23, np.float32) if bits == 32 else (52, np.float64)
        # Mantissas one bit longer than those of each narrower type: ties, or nearly so.
        for exponent in range(0, 1 << (bits - 1 - mantissa), 1 if bits == 32 else 3):
            for end in (0, 1, 2, 3, 4, 7, 8, 10, 11, 22, 23):
                tie = kind(exponent) << kind(mantissa) | kind(1) << kind(mantissa - end if end < mantissa else 0)
                values += [tie - kind(1), tie, tie + kind(1), tie | kind(1) << kind(mantissa - 1)]
        whole = np.concatenate([np.arange(-300, 300), 2.0 ** np.arange(-30, 66), -(2.0 ** np.arange(-30, 66))])
        near = np.concatenate([whole.astype(floats), np.nextafter(whole.astype(floats), floats(0)), whole + 0.5])
        values += list(near.astype(floats).view(kind))
    found = np.array(values, dtype=kind)
    signed = np.concatenate([found, found | (kind(1) << kind(bits - 1)), ~found])
    return of_bytes(np.concatenate([signed, random.integers(0, 1 << bits, 20000, dtype=kind)]), dtype)


def identical(there: Buffer, here: Buffer, what: object) -> None:
    """Fails with the first differing element unless the device tensor has the bits of the host tensor."""
    back = there.to("cpu")
    if same(back, here):
        return
    assert (back.dtype, back.shape) == (here.dtype, here.shape), what
    bits = [tensor.view(DType.uint8, [tensor.nbytes]).to_numpy() for tensor in (back, here)]
    at = int(np.argmax(bits[0] != bits[1])) * 8 // here.dtype.size_in_bits
    raise AssertionError(f"{what}: element {at}: {back[at]} there, {here[at]} here")


def every_pair_gives_the_bits_of_the_cpu(first: str) -> None:
    # In three processes, so that none takes long.
    for source in REAL[int(first) :: 3]:
        here = patterns(source)
        there = here.to("cuda")
        for target, saturate in itertools.product(REAL, (False, True)):
            made = there.astype(target, saturate=saturate)
            assert repr(made.device) == "gpu:0"
            identical(made, here.astype(target, saturate=saturate), (source, target, saturate))
    assert there.astype(source) is there


def every_count_and_every_address_is_served() -> None:
    pairs = [
        ("bfloat16", "float32"), ("float32", "bfloat16"), ("float8_e4m3fn", "bfloat16"), ("float16", "float8_e5m2"),
        ("int8", "float16"), ("int64", "float32"), ("float64", "float32"), ("float32", "float64"), ("int16", "int32"),
        ("uint64", "float8_e4m3fn"), ("float4_e2m1fn", "float32"), ("bfloat16", "float6_e3m2fn"),
    ]  # fmt: skip
    raw = np.random.default_rng(5).integers(0, 256, 40000, dtype=np.uint8)
    here = Buffer.from_numpy(raw)
    there = here.to("cuda")
    for (source, target), count, start in itertools.product(pairs, COUNTS, (0, 1, 2, 4, 6, 8, 16)):
        group = 4 if "float6" in target else 2 if "float4" in source else 1
        count = count // group * group
        size = count * DType[source].size_in_bits // 8
        part = [whole[start : start + size].view(DType[source], [count]) for whole in (here, there)]
        identical(part[1].astype(target), part[0].astype(target), (source, target, count, start))
    del there, part
    assert nothing_is_left()


def large_tensors_and_shapes_keep_their_place() -> None:
    here = of_bytes(np.random.default_rng(6).integers(0, 1 << 16, 3_000_000, dtype=np.uint16), DType.bfloat16)
    here = here.view(DType.bfloat16, [3, 1000, here.shape[0] // 3000])
    there = here.to("cuda:1")
    for index in ((), (1,), (2, slice(10, 900))):
        made = there[index].astype("float32")
        assert (repr(made.device), made.is_contiguous) == ("gpu:1", True)
        identical(made, here[index].astype("float32"), index)
    del there, made
    assert nothing_is_left()


def what_no_kernel_does_says_what_to_do() -> None:
    there = Buffer.from_numpy(np.ones((4, 6), np.float32)).to("cuda")
    message = refused(lambda: there[:, ::2].astype("float16"))
    assert "astype on gpu:0 needs contiguous tensors" in message, message
    assert '.to("cpu")' in message
    for source, target in ((there, "complex64"), (there.view("complex64"), "float32")):
        with pytest.raises(UnsupportedError, match="cannot be converted"):
            source.astype(target)
    scales = Buffer.from_numpy(np.ones((1, 1), np.float32))
    assert "the data is on gpu:0 and its scales are on cpu:0" in refused(lambda: scale_blocks(there, scales))
    assert "its scales are on gpu:1" in refused(lambda: scale_blocks(there, scales.to("cuda:1")))
    for place in ("cpu", "cuda"):
        with pytest.raises(UnsupportedError, match="float64 cannot be dequantized"):
            scale_blocks(there.astype("float64").to(place), scales.to(place))


def scaled_alike(data: Buffer, scales: Buffer, block: tuple[int, int], what: object, **options: Any) -> None:
    """Fails unless device and CPU give the same result."""
    made = scale_blocks(data.to("cuda"), scales.to("cuda"), block, **options)
    assert repr(made.device) == "gpu:0"
    identical(made, scale_blocks(data, scales, block, **options), (what, options))


def every_type_of_scaled_blocks_gives_the_bits_of_the_cpu() -> None:
    exact = [dtype for dtype in REAL if dtype.size_in_bits <= 16 and dtype.name != "bool"] + [DType.float32]
    of_scales = [dtype for dtype in FLOATS if dtype.size_in_bits >= 8 and dtype.name != "float64"]
    for source, scale in itertools.product(exact, of_scales):
        rows, cols = 24, 512
        data = patterns(source)
        assert data.shape[0] >= 3072
        data = data.view(DType.uint8)[: rows * cols * source.size_in_bits // 8 // 4].view(source, [rows // 4, cols])
        scales = patterns(scale).view(DType.uint8)
        middle = scales.shape[0] // 2 // scale.size_in_bytes * scale.size_in_bytes
        scales = scales[middle : middle + 6 * 16 * scale.size_in_bytes].view(scale, [6, 16])
        for target in FLOATS:
            scaled_alike(data, scales, (1, 32), (source, scale), dtype=target)
            scaled_alike(data, scales, (1, 32), (source, scale), dtype=target, saturate=True)


def blocks_of_every_shape_find_their_scales() -> None:
    random = np.random.default_rng(8)
    shapes = [(5, 7), (128, 256), (130, 200), (1, 64), (64, 16), (33, 48)]
    blocks = [(1, 1), (1, 16), (1, 32), (128, 128), (3, 5), (4, 8), (100, 1), (64, 300)]
    sources = [
        ("float8_e4m3fn", "float32"),
        ("int8", "bfloat16"),
        ("float8_e5m2", "float16"),
        ("float4_e2m1fn", "float8_e8m0fnu"),
    ]
    for batch, (rows, cols), block, (source, scale) in itertools.product(((), (3,)), shapes, blocks, sources):
        dtype, of_scales = DType[source], DType[scale]
        if cols * dtype.size_in_bits % 8:
            continue
        bytes_of = [random.integers(0, 256, (*batch, rows, cols * dtype.size_in_bits // 8), dtype=np.uint8)]
        requested = (*batch, -(-rows // block[0]), -(-cols // block[1]))
        bytes_of.append(
            random.integers(0, 256, (*requested[:-1], requested[-1] * of_scales.size_in_bytes), dtype=np.uint8)
        )
        data = Buffer.from_numpy(bytes_of[0]).view(dtype, [*batch, rows, cols])
        scales = Buffer.from_numpy(bytes_of[1]).view(of_scales, list(requested))
        for target in ("bfloat16", "float32", "float16", "float8_e5m2"):
            scaled_alike(data, scales, block, (batch, rows, cols, block, source), dtype=target)
    assert nothing_is_left()


def results_are_ready_by_their_event_and_what_was_read_may_go() -> None:
    here = of_bytes(np.arange(1 << 16, dtype=np.uint16), DType.bfloat16)
    # Each step begins before the previous one is done.
    steps = [here.to("cuda")]
    for dtype in ("float32", "float64", "float16"):
        steps.append(steps[-1].astype(dtype))
    made = steps[-1]
    requested = here.astype("float32").astype("float64").astype("float16")
    found, violations = copied_on_a_stream(made, lambda own: own)
    assert found == bytes(requested.view(DType.uint8).to_numpy())
    assert violations == 0
    del steps, made
    identical(here.to("cuda").astype("float32").astype("float16"), here.astype("float32").astype("float16"), "gone")
    scales = Buffer.from_numpy(np.full((1, 1), 3, np.float32))
    data = Buffer.from_numpy(np.arange(64, dtype=np.int8).reshape(8, 8))
    made = scale_blocks(data.to("cuda"), scales.to("cuda"), (8, 8), dtype="float32")
    identical(made, scale_blocks(data, scales, (8, 8), dtype="float32"), "scales")
    del made
    assert nothing_is_left()


def a_consumer_that_asks_for_no_order_gets_none() -> None:
    there = of_bytes(np.arange(1 << 16, dtype=np.uint16), DType.bfloat16).to("cuda")  # waited for when it is freed
    made = there.astype("float32")
    copied_on_a_stream(made, lambda _: -1)
    made.to("cpu")
    assert counters()["violations"] > 0


def fails(name: str, nth: int, code: int) -> None:
    """Makes a call of the driver fail."""
    assert driver().fake_cuda_fail(name.encode(), ctypes.c_uint64(nth), code) == 0


def every_call_that_fails_is_an_error_that_says_what_to_do_and_nothing_is_left() -> None:
    here = of_bytes(np.arange(1 << 16, dtype=np.uint16), DType.bfloat16)
    kept = [here.to("cuda")]
    kept[0].to("cpu")
    first: list[tuple[str, int, str]] = [
        ("cuModuleLoadData", 222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"),
        ("cuModuleLoadData", 222, "the driver of CUDA 12.0 (525) or newer; update it"),
        ("cuModuleLoadData", 209, "compute capability 7.5 or newer"),
        ("cuModuleLoadData", 218, "compute capability 7.5 or newer"),
        ("cuModuleLoadData", 221, "libnvidia-ptxjitcompiler.so.1"),
        ("cuModuleLoadData", 223, "unset CUDA_DISABLE_PTX_JIT"),
        ("cuModuleGetFunction", 500, "CUDA_ERROR_NOT_FOUND"),
    ]
    later = [("cuLaunchKernel", 719), ("cuMemAlloc_v2", 2), ("cuEventRecord", 999), ("cuStreamWaitEvent", 999)]
    cases = [*first, *((name, code, name) for name, code in later)]
    for name, code, text in cases:
        fails(name, 1, code)
        message = refused(lambda: kept[0].astype("float32"))
        assert text in message, message
        assert name in message
        if name.startswith(("cuModule", "cuLaunch")):
            assert "kernel cast_bf16_f32: " in message, message
        driver().fake_cuda_reset()
    identical(kept[0].astype("float32"), here.astype("float32"), "after that")
    kept.clear()
    assert nothing_is_left(), counters()


def a_kernel_that_fails_later_is_an_error_where_it_is_waited_for() -> None:
    there = of_bytes(np.arange(1 << 16, dtype=np.uint16), DType.bfloat16).to("cuda")
    there.to("cpu")
    assert driver().fake_cuda_fail_later(b"cuLaunchKernel", ctypes.c_uint64(1), 719) == 0
    assert "CUDA_ERROR_LAUNCH_FAILED" in refused(lambda: there.astype("float32").to("cpu"))


def too_little_memory_is_an_error_that_names_the_bytes() -> None:
    there = Buffer.from_numpy(np.zeros(3 << 20, np.uint8)).to("cuda")
    assert f"cuMemAlloc_v2 of {12 << 20} bytes on gpu:0 failed" in refused(lambda: there.astype("float32"))
    there.astype("float16")


def kernels_are_compiled_when_they_are_first_used_and_once_on_each_device() -> None:
    def modules() -> int:
        values = (ctypes.c_uint64 * 8)()
        assert driver().fake_cuda_more_counters(values) == 0
        return values[6]

    here = of_bytes(np.arange(1 << 16, dtype=np.uint16), DType.bfloat16)
    uses: list[tuple[Callable[[], Any], int]] = [
        (lambda: here.to("cuda:0"), 0),
        (lambda: here.to("cuda:0").astype("float32"), 1),
        (lambda: here.to("cuda:0").astype("float32", saturate=True), 1),
        (lambda: here.to("cuda:1").astype("float32"), 2),
        (lambda: here.to("cuda:1").astype("int16"), 3),
        (lambda: here.to("cuda:1").view("float16").astype("uint32"), 3),
    ]
    for use, requested in uses:
        use()
        assert modules() == requested


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
