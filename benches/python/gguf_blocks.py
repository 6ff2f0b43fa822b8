"""Decode packed blocks: ours, ggml's C and gguf-py, compared with a memset of the output.

One process per type and number of threads measures everything: the decoders take turns on the same memory, each turn a
burst of calls. Arrays of gguf-py are new. The C of ggml decodes on one thread; with several threads, each one decodes a
part.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import ggml_c
import harness
from report import Column, Report, Target

TITLE = "GGUF blocks"
CASES: harness.Cases = {}
GGUF_PY: Final = "gguf-py"
MEMSET: Final = "memset"
ROUNDS: Final = 7
# Seconds of a decoder's turn, a burst of calls.
BURST_SECONDS: Final = 0.05
# Bytes of float32: what is measured of every type, and of those that the memory holds up.
OUTPUT: Final = 64 << 20
LARGE_OUTPUT: Final = 1 << 30
# The types that ggml's C decodes as fast as memory takes them, and those that it leaves to plain loops.
FAST_IN_C: Final = ("Q8_0", "Q4_0", "Q4_K", "Q5_K")
SLOW_IN_C: Final = ("Q6_K", "Q2_K", "Q3_K", "IQ4_XS", "MXFP4")
BY_SHIFTS: Final = ("Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "NVFP4", "TQ1_0", "TQ2_0")
OTHERS: Final = (*BY_SHIFTS, "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")


def _in_parts(threads: int, count: int, work: Callable[[int, int], object]) -> Callable[[], None]:
    """Return a function that calls `work(start, end)` for a part of `count` on each thread."""
    step = -(-count // threads)
    parts = [(start, min(start + step, count)) for start in range(0, count, step)]

    def run() -> None:
        others = [threading.Thread(target=work, args=part) for part in parts[1:]]
        for other in others:
            other.start()
        work(*parts[0])
        for other in others:
            other.join()

    return run


def memset(array: Any, threads: int) -> Callable[[], None]:
    """Return a function that fills an array with ones, a part on each thread."""
    libc = ctypes.CDLL(None)
    libc.memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)

    def fill(start: int, end: int) -> None:
        libc.memset(array.ctypes.data + start, 1, end - start)  # the function holds the array

    return _in_parts(threads, array.nbytes, fill)


def _decoders(kind: str, threads: int, output: int) -> dict[str, dict[str, Callable[[], object]]]:
    """Every way to decode, by the dtype of the output."""
    import gguf
    import numpy as np

    import max_weights

    number = gguf.GGMLQuantizationType[kind]
    elements, size = gguf.GGML_QUANT_SIZES[number]
    count = output // 4 // elements
    blocks = np.random.default_rng(0).integers(0, 256, (count, size), dtype=np.uint8)
    memory = np.zeros((count, elements), np.float32)
    # Any bytes are a block, but no model has one with an infinite scale, or with one that makes denormal numbers.
    max_weights.dequantize(blocks, kind, "float32", out=memory)
    ordinary = np.isfinite(memory) & ((memory == 0) | (np.abs(memory) >= np.finfo(np.float32).tiny))
    ordinary = ordinary.all(axis=1)
    blocks[~ordinary] = blocks[ordinary][0]
    half = max_weights.Buffer.from_numpy(memory.view(np.uint16).reshape(-1)[: memory.size].reshape(count, -1))
    half = half.view("bfloat16")

    to_float32: dict[str, Callable[[], object]] = {
        harness.OURS: lambda: max_weights.dequantize(blocks, kind, "float32", out=memory)
    }
    if not ggml_c.why_not() and (decode := ggml_c.to_float(int(number))):

        def in_c(start: int, end: int) -> None:
            at, out = blocks.ctypes.data + start * size, memory.ctypes.data + start * elements * 4
            decode(at, out, (end - start) * elements)

        to_float32[ggml_c.NAME] = _in_parts(threads, count, in_c)
    if threads == 1 and output == OUTPUT:
        to_float32[GGUF_PY] = lambda: gguf.quants.dequantize(blocks, number)
    return {
        "float32": to_float32 | {MEMSET: memset(memory, threads)},
        "bfloat16": {
            harness.OURS: lambda: max_weights.dequantize(blocks, kind, "bfloat16", out=half),
            MEMSET: memset(memory.reshape(-1)[: memory.size // 2], threads),
        },
    }


def medians(decoders: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each, in turns, after one that does not count; slow ones take fewer turns.

    A turn is a burst of calls, and counts as their median: a call that follows another decoder finds that one's threads
    and data where it wants its own.
    """
    seconds: dict[str, list[float]] = {name: [] for name in decoders}
    for turn in range(rounds + 1):
        for name, decode in decoders.items():
            if turn > 2 and min(seconds[name]) > 0.3:
                continue
            burst: list[float] = []
            while sum(burst) < (BURST_SECONDS if turn and rounds > 1 else 0) or not burst:
                start = time.perf_counter()
                decode()
                burst.append(time.perf_counter() - start)
            if turn:
                seconds[name].append(statistics.median(burst))
    return {name: statistics.median(found) for name, found in seconds.items()}


def _measure(kind: str, threads: int, output: int, rounds: int) -> dict[str, dict[str, float]]:
    """Measure one type in a process limited to `threads` cores: seconds by output dtype and decoder."""
    command = [sys.executable, __file__, kind, *map(str, (threads, output, rounds))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise harness.BenchError(f"{kind} on {threads} threads failed:\n{done.stderr}")
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found


def _least(label: str, ratios: Iterable[tuple[str, float]], bound: float) -> Target:
    """The type that comes nearest to missing a figure."""
    kind, ratio = min(ratios, key=lambda pair: pair[1])
    return Target(f"{label} (least: {kind})", ratio, bound, "at least")


def measure(folder: object, small: bool) -> Report:  # noqa: ARG001 (no files are needed)
    """Measure every type on random blocks of finite values, on one core and on all."""
    import gguf

    reason = ggml_c.why_not()
    if reason:
        print(f"gguf_blocks: without {ggml_c.NAME}: {reason}", flush=True)
    cores = len(os.sched_getaffinity(0))
    kinds = ("Q8_0", "Q4_K") if small else (*FAST_IN_C, *SLOW_IN_C, *OTHERS)
    output, rounds = (1 << 20, 1) if small else (OUTPUT, ROUNDS)
    columns: list[Column] = []
    found: dict[tuple[str, int], dict[str, dict[str, float]]] = {}

    def add(kind: str, threads: int, size: int) -> dict[str, dict[str, float]]:
        seconds = _measure(kind, threads, size, rounds)
        on = f"{threads} thread{'s' * (threads > 1)}" + ", 1 GiB" * (size == LARGE_OUTPUT)
        for dtype, moved in (("float32", size), ("bfloat16", size // 2)):
            columns.append(Column(f"{kind} → {dtype}, {on}", "ms", seconds[dtype], False, moved))
        return seconds

    for threads in sorted({1, cores}):
        found |= {(kind, threads): add(kind, threads, output) for kind in kinds}
    large = {} if small else {kind: add(kind, cores, LARGE_OUTPUT) for kind in FAST_IN_C}
    return Report(
        "gguf_blocks",
        columns,
        targets=() if small or reason else tuple(_targets(found, large, cores, gguf.GGML_QUANT_SIZES)),
        limits=frozenset({MEMSET}),
        notes=(
            "GB/s of output, 64 MiB as float32 unless a row names 1 GiB, from random blocks of ordinary values into "
            "reused memory. The decoder of ggml's C is the one in its own type table, from the package "
            "libggml-python.",
        ),
        throughput="blocks",
        across=(" → float32", " → bfloat16"),
    )


def _targets(
    found: dict[tuple[str, int], dict[str, dict[str, float]]],
    large: dict[str, dict[str, dict[str, float]]],
    cores: int,
    sizes: dict[Any, tuple[int, int]],
) -> Iterable[Target]:
    """The figures to reach; those of 1 GiB where the types were measured so."""
    import gguf

    def rate(kind: str, threads: int, decoder: str, dtype: str = "float32") -> float:
        return 1 / found[kind, threads][dtype].get(decoder, float("inf"))

    def ratios(kinds: Iterable[str], threads: int, decoder: str) -> list[tuple[str, float]]:
        return [
            (kind, rate(kind, threads, harness.OURS) / rate(kind, threads, decoder))
            for kind in kinds
            if decoder in found[kind, 1]["float32"]
        ]

    every = (*FAST_IN_C, *SLOW_IN_C, *OTHERS)
    yield _least(f"one thread ÷ {ggml_c.NAME}", ratios(every, 1, ggml_c.NAME), 1.0)
    for where, measured in (("64 MiB", {kind: found[kind, cores] for kind in FAST_IN_C}), ("1 GiB", large)):
        for kind in FAST_IN_C:
            seconds = measured[kind]["float32"]
            elements, size = sizes[gguf.GGMLQuantizationType[kind]]
            limit = 0.9 * seconds[ggml_c.NAME] / seconds[MEMSET] / (1 + size / (4 * elements))
            bound = min(1.2, limit)
            ratio = seconds[ggml_c.NAME] / seconds[harness.OURS]
            yield Target(f"{kind}, {cores} threads, {where}, ÷ {ggml_c.NAME}", ratio, round(bound, 2), "at least")
    yield _least(f"{cores} threads, types slow in C ÷ {ggml_c.NAME}", ratios(SLOW_IN_C, cores, ggml_c.NAME), 2.5)
    yield _least(f"{cores} threads, types slow in C ÷ {MEMSET}", ratios(SLOW_IN_C, cores, MEMSET), 0.7)
    yield _least(f"{cores} threads, other types ÷ {ggml_c.NAME}", ratios(OTHERS, cores, ggml_c.NAME), 1.0)
    against_python = [
        (kind, rate(kind, cores, harness.OURS) / rate(kind, 1, GGUF_PY)) for kind in (*SLOW_IN_C, *OTHERS)
    ]
    yield _least(f"{cores} threads ÷ {GGUF_PY}", against_python, 15)
    for threads in (1, cores):
        halves = [
            (kind, rate(kind, threads, harness.OURS, "bfloat16") / rate(kind, threads, harness.OURS))
            for kind in (*FAST_IN_C, *SLOW_IN_C, *BY_SHIFTS)
        ]
        yield _least(f"elements to bfloat16 ÷ to float32, {threads} thread{'s' * (threads > 1)}", halves, 1.3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure one type in this process; the bench runs it.")
    parser.add_argument("kind")
    for argument in ("threads", "output", "rounds"):
        parser.add_argument(argument, type=int)
    given = parser.parse_args()
    # Before anything counts the cores: as many as there are threads.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.threads])
    decoders = _decoders(given.kind, given.threads, given.output)
    json.dump({dtype: medians(each, given.rounds) for dtype, each in decoders.items()}, sys.stdout)
