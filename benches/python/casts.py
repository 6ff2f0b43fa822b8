"""Casts between dtypes: ours, torch's and NumPy's (with ml_dtypes), against a copy of as many bytes.

One process per number of threads measures everything; the casters take turns on the same arrays.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
from report import Column, Report, Target

TITLE = "Casts"
CASES: harness.Cases = {}
ELEMENTS = 48 << 20
ROUNDS = 7
PAIRS = (
    ("bfloat16", "float32"),
    ("float16", "float32"),
    ("float32", "bfloat16"),
    ("float32", "float16"),
    ("bfloat16", "float16"),
    ("float16", "bfloat16"),
    ("float8_e4m3fn", "float32"),
    ("float8_e4m3fn", "bfloat16"),
    ("float8_e4m3fn", "float16"),
    ("float8_e5m2", "float32"),
    ("float8_e5m2", "bfloat16"),
    ("float8_e5m2", "float16"),
    ("float32", "float8_e4m3fn"),
    ("float32", "float8_e5m2"),
    ("bfloat16", "float8_e4m3fn"),
    ("float64", "float32"),
    ("float32", "float64"),
)
MEMCPY, TORCH, NUMPY = "memcpy", "torch", "NumPy + ml_dtypes"
NEW, TORCH_NEW = f"{harness.OURS}, new", "torch .to(), new"
SCALED, SCALED_PLAIN = "e4m3fn × f32 scales of 128 x 128 → bf16", "the plain cast e4m3fn → bf16"
# Hidden sizes of models that are published in this format, and of many others.
SCALED_COLUMNS = (7168, 4096)


def _copy(destination: Any, source: Any, threads: int) -> Callable[[], object]:
    """A copy of flat arrays, a part for each thread."""
    import numpy as np

    step = -(-source.size // threads)

    def run() -> None:
        parts = [
            threading.Thread(target=np.copyto, args=(destination[start : start + step], source[start : start + step]))
            for start in range(step, source.size, step)
        ]
        for part in parts:
            part.start()
        np.copyto(destination[:step], source[:step])
        for part in parts:
            part.join()

    return run


def _casters(source: Any, target: str, threads: int) -> tuple[int, dict[str, Callable[[], object]]]:
    """The bytes that a cast moves, and every way to do it."""
    import numpy as np
    import torch

    from max_weights import DType

    dtype = DType(target)
    out = source.astype(dtype)
    moved = source.nbytes + out.nbytes
    in_torch, out_torch = (torch.utils.dlpack.from_dlpack(array) for array in (source, out))
    in_numpy, out_numpy = source.to_numpy(), out.to_numpy()
    block_from, block_to = np.ones(moved // 2, np.uint8), np.ones(moved // 2, np.uint8)
    return moved, {
        harness.OURS: lambda: source.astype(dtype, out=out),
        TORCH: lambda: out_torch.copy_(in_torch),
        NUMPY: lambda: np.copyto(out_numpy, in_numpy, casting="unsafe"),
        MEMCPY: _copy(block_to, block_from, threads),
        NEW: lambda: source.astype(dtype),
        TORCH_NEW: lambda: in_torch.to(out_torch.dtype),
    }


def _medians(casters: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each caster, in turns, after one run that does not count; slow ones take fewer turns."""
    seconds: dict[str, list[float]] = {name: [] for name in casters}
    for turn in range(rounds + 1):
        for name, call in casters.items():
            if turn > 2 and min(seconds[name]) > 0.5:
                continue
            start = time.perf_counter()
            result = call()
            elapsed = time.perf_counter() - start
            del result
            if turn:
                seconds[name].append(elapsed)
    return {name: sorted(found)[len(found) // 2] for name, found in seconds.items()}


def _measure_here(threads: int, elements: int, rounds: int) -> list[dict[str, Any]]:
    """Measure every pair in this process."""
    import numpy as np
    import torch

    import max_weights
    from max_weights.driver import Buffer

    torch.set_num_threads(threads)
    values = np.random.default_rng(0).standard_normal(elements, dtype=np.float32)
    plain = Buffer.from_numpy(values)
    found = []
    for source, target in PAIRS:
        moved, casters = _casters(plain.astype(source), target, threads)
        found.append({"label": f"{source} → {target}", "moved": moved, "values": _medians(casters, rounds)})
        max_weights.release_memory()
    for columns in SCALED_COLUMNS:
        rows = elements // columns
        matrix = Buffer.from_numpy(values[: rows * columns].reshape(rows, columns)).astype("float8_e4m3fn")
        scales = np.random.default_rng(1).uniform(0.5, 2, (-(-rows // 128), columns // 128)).astype(np.float32)
        times = _medians(_scalers(matrix, scales), rounds)
        found += [
            {"label": f"{label} ({columns} columns)", "moved": matrix.nbytes * 3, "values": {NEW: seconds}}
            for label, seconds in times.items()
        ]
    return found


def _scalers(matrix: Any, scales: Any) -> dict[str, Callable[[], object]]:
    """Dequantization by block scales, and the cast that it contains."""
    import max_weights

    return {
        SCALED: lambda: max_weights.scale_blocks(matrix, scales),
        SCALED_PLAIN: lambda: matrix.astype("bfloat16"),
    }


def _measure(threads: int, elements: int, rounds: int) -> list[dict[str, Any]]:
    """Measure in a process limited to `threads` cores, with an ordinary heap: the cost of new memory counts."""
    command = [sys.executable, __file__, str(threads), str(elements), str(rounds)]
    # Threads of torch that spin while they wait would take a core from the next caster.
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise harness.BenchError(f"casts on {threads} threads failed:\n{done.stderr}")
    result: list[dict[str, Any]] = json.loads(done.stdout)
    return result


def _least(columns: list[Column], rival: str, ours: str, pairs: Callable[[str], bool]) -> tuple[str, float]:
    """Return the pair with the smallest lead over the rival, and the ratio of the rival's time to ours."""
    ratios = [
        (column.label, column.values[rival] / column.values[ours])
        for column in columns
        if rival in column.values and ours in column.values and pairs(column.label)
    ]
    return min(ratios, key=lambda pair: pair[1])


def measure(folder: Path, small: bool) -> Report:  # noqa: ARG001 (no files are needed)
    """Measure on all cores and on one."""
    elements, rounds = (1 << 20, 1) if small else (ELEMENTS, ROUNDS)
    cores = len(os.sched_getaffinity(0))
    every, columns = [], {}
    for threads in sorted({cores, 1}, reverse=True):
        columns[threads] = [
            Column(f"{row['label']}, {threads} thread{'s' * (threads > 1)}", "ms", row["values"], False, row["moved"])
            for row in _measure(threads, elements, rounds)
        ]
        every += columns[threads]
    many, one = columns[cores], columns[1]

    def target(label: str, found: tuple[str, float], bound: float) -> Target:
        return Target(f"{label} (least: {found[0].split(',')[0]})", found[1], bound, "at least")

    widening = ("bfloat16 → float32", "float16 → float32")
    scaled = {column.label.split(",")[0]: column.values[NEW] for column in many if len(column.values) == 1}
    return Report(
        "casts",
        every,
        targets=(
            target("all cores, every pair ÷ memcpy", _least(many, MEMCPY, harness.OURS, lambda _: True), 0.95),
            target(
                "e4m3fn → wider ÷ torch",
                _least(many, TORCH, harness.OURS, lambda p: p.startswith("float8_e4m3fn →")),
                8,
            ),
            target(
                "e5m2 → wider ÷ torch", _least(many, TORCH, harness.OURS, lambda p: p.startswith("float8_e5m2 →")), 8
            ),
            target(
                "bf16 → f16 ÷ torch",
                _least(many, TORCH, harness.OURS, lambda p: p.startswith("bfloat16 → float16")),
                1.8,
            ),
            target(
                "f16 → bf16 ÷ torch", _least(many, TORCH, harness.OURS, lambda p: p.startswith("float16 → bf")), 3.5
            ),
            target(
                "f32 → f8 ÷ torch", _least(many, TORCH, harness.OURS, lambda p: p.startswith("float32 → float8")), 1.4
            ),
            target("one thread ÷ torch", _least(one, TORCH, harness.OURS, lambda _: True), 0.95),
            target("one thread ÷ NumPy", _least(one, NUMPY, harness.OURS, lambda _: True), 0.95),
            target(
                "new output, bf16, f16 → f32 ÷ torch .to()",
                _least(many, TORCH_NEW, NEW, lambda p: p.startswith(widening)),
                2,
            ),
            target(
                "new output, f8 → bf16 ÷ torch .to()",
                _least(many, TORCH_NEW, NEW, lambda p: "float8" in p.split(" → ")[0] and "→ bf" in p),
                8,
            ),
            *(
                Target(
                    f"scale_blocks ÷ the plain cast, {columns} columns",
                    scaled[f"{SCALED_PLAIN} ({columns} columns)"] / scaled[f"{SCALED} ({columns} columns)"],
                    0.9,
                    "at least",
                )
                for columns in SCALED_COLUMNS
            ),
        ),
        limits=frozenset({MEMCPY}),
        throughput="cast",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure in this process; the bench runs it.")
    for argument in ("threads", "elements", "rounds"):
        parser.add_argument(argument, type=int)
    given = parser.parse_args()
    # Before any library counts the cores: one core per thread.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.threads])
    json.dump(_measure_here(given.threads, given.elements, given.rounds), sys.stdout)
