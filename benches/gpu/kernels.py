"""Conversions on a GPU, in GB/s read and written, compared with a copy of as many bytes within its memory."""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable
from statistics import median
from typing import Any, Final

import numpy as np

from max_weights import Buffer, DeviceError, DType, UnsupportedError, dequantize, scale_blocks
from max_weights._benching.cuda import Driver
from max_weights.graph.quantization import QuantizationEncoding
from report import Column, Report, Target

TITLE: Final = "Conversions on the GPU"
COPY: Final = "device-to-device copy"
OURS: Final = "max_weights"
ALONE: Final = "max_weights, the kernel alone"
CALLS: Final = 4
"""Calls in a row, all results held, so that allocation overlaps with the previous kernel."""
ROUNDS: Final = 7
PAIRS: Final = (
    *(("bfloat16", "float32"), ("float16", "float32"), ("float32", "bfloat16"), ("float32", "float16")),
    *(("bfloat16", "float16"), ("float16", "bfloat16"), ("float8_e4m3fn", "bfloat16"), ("float8_e5m2", "bfloat16")),
    *(("float8_e4m3fn", "float32"), ("float32", "float8_e4m3fn"), ("bfloat16", "float8_e4m3fn")),
)
BLOCKS: Final = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
MORE_BLOCKS: Final = ("IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4")


def name_of(index: int) -> str:
    """Return the name of a device."""
    text = ctypes.create_string_buffer(256)
    Driver(index).call("cuDeviceGetName", text, len(text), index)
    return text.value.decode(errors="replace")


def device_copy(driver: Driver, size: int, times: int) -> list[float]:
    """Copy `size` bytes within the device's memory, this many times after a first one; return the seconds of each."""
    ends = [ctypes.c_uint64(), ctypes.c_uint64()]
    try:
        for end in ends:
            driver.call("cuMemAlloc_v2", ctypes.byref(end), ctypes.c_size_t(size))
            driver.call("cuMemsetD8_v2", end, 0x5A, ctypes.c_size_t(size))
        seconds = []
        for _ in range(times + 1):
            start = time.perf_counter()
            driver.call("cuMemcpyDtoDAsync_v2", *ends, ctypes.c_size_t(size), None)
            driver.synchronize()
            seconds.append(time.perf_counter() - start)
        return seconds[1:]
    finally:
        for end in ends:
            driver.call("cuMemFree_v2", end)


def measure(index: int, small: bool) -> Report:
    """Time every pair, every kind of blocks, and block scales."""
    driver, place = Driver(index), f"cuda:{index}"
    free = driver.memory()[0]
    elements = 1 << 20 if small else min(1 << 29, free // 64)
    elements -= elements % (1 << 16)
    rounds = 1 if small else ROUNDS
    columns, samples, targets, refused = [], {}, [], []
    copy_of: dict[int, float] = {}

    def copy(moved: int) -> float:
        if moved not in copy_of:
            copy_of[moved] = median(device_copy(driver, moved // 2, rounds))
        return copy_of[moved]

    def add(label: str, source: Buffer, convert: Callable[[], Buffer]) -> None:
        try:
            moved = source.nbytes + convert().nbytes
        except (DeviceError, UnsupportedError) as error:
            refused.append(f"Not measured: {label}: {error}.")
            return
        held: list[Any] = []

        def run() -> None:
            held.extend(convert() for _ in range(CALLS))
            driver.synchronize()

        seconds = []
        for _ in range(rounds):
            seconds.append(_timed(run, CALLS))
            held.clear()
        samples[label] = {OURS: seconds}
        values = {OURS: median(seconds), COPY: copy(moved)}
        if alone := _kernel_seconds(run):
            values[ALONE] = alone / CALLS
            held.clear()
        columns.append(Column(label, "ms", values, moved=moved))
        targets.append(Target(f"{label} ÷ copy", copy(moved) / values.get(ALONE, values[OURS]), 0.7, "at least"))

    for one, other in PAIRS:
        source = _random(elements * DType(one).size_in_bits // 8).view(one).to(place)
        add(f"{one} → {other}", source, functools.partial(source.astype, other))
    for encoding in (*BLOCKS, *MORE_BLOCKS):
        kind = QuantizationEncoding(encoding)
        size = elements // kind.elements_per_block * kind.block_size
        source = _random(size).to(place)
        add(f"{encoding} → bfloat16", source, functools.partial(dequantize, source, kind, "bfloat16"))
    rows = elements // 8192
    source = _random(rows * 8192).view("float8_e4m3fn", [rows, 8192]).to(place)
    scales = Buffer.from_numpy(np.ones((-(-rows // 128), 64), np.float32)).to(place)
    add("float8_e4m3fn × scales of 128 x 128 → bfloat16", source, lambda: scale_blocks(source, scales, (128, 128)))
    return Report(
        "gpu_kernels",
        columns,
        targets=targets,
        limits=frozenset({COPY}),
        notes=(
            f"GB/s of input and output, {elements:,} elements; {CALLS} calls in a row, each of which takes memory for "
            "its result. The kernel alone is what torch's profiler says, and the target's where it is known.",
            *refused,
        ),
        samples=samples,
        throughput="conversion",
    )


def _kernel_seconds(run: Callable[[], None]) -> float | None:
    """Return the kernel time of a run as torch's profiler reports it for the device; None without the profiler."""
    try:
        import torch
        from torch.profiler import ProfilerActivity, profile

        if not torch.cuda.is_available():
            return None
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            run()
        kernels = [one for one in found.key_averages() if not one.key.startswith("Mem")]
        return sum(one.self_device_time_total for one in kernels) / 1e6 or None
    except (AttributeError, ImportError, RuntimeError):  # of another version, or another program is profiling
        return None


def _random(size: int) -> Buffer:
    """Return `size` bytes: a random MiB, repeated."""
    block = np.random.default_rng(0).integers(0, 256, min(size, 1 << 20), dtype=np.uint8)
    return Buffer.from_numpy(np.resize(block, size))


def _timed(run: Callable[[], None], calls: int) -> float:
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) / calls
