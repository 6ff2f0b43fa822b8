"""Decode quantized weights of safetensors files: packed integers in groups, FP4 and FP8 in blocks, compared with a
memset.

One process per number of threads measures everything; the decoders take turns. The rival is the torch formula of each
scheme's library. Each call allocates a new output, as loading does.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final

import gguf_blocks
import harness
from report import Column, Report, Target

TITLE = "Quantized safetensors"
CASES: harness.Cases = {}
TORCH: Final = "the formula in torch"
MEMSET: Final = "memset"
ROUNDS: Final = 7
# Rows and columns of the weight.
SIDE: Final = 8192
GROUP: Final = 128
INT4: Final = "int4, groups of 128"
INT4_ZEROS: Final = "int4, groups of 128, zero points"
INT8: Final = "int8, groups of 128"
GPTQ: Final = "GPTQ int4, groups of 128"
AWQ: Final = "AWQ int4, groups of 128"
MXFP4: Final = "MXFP4"
NVFP4: Final = "NVFP4"


def _unpacked(words: Any, bits: int) -> Any:
    """The codes of each row of int32 words, the lowest bits first."""
    import torch

    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return ((words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)).flatten(-2)


def _decoders(side: int, dtype: str) -> dict[str, dict[str, Callable[[], object]]]:
    """Every way to decode each scheme to a dtype."""
    import numpy as np
    import torch

    import max_weights
    from max_weights import dequantize_groups

    random = np.random.default_rng(0)
    groups = side // GROUP

    def words(*shape: int) -> Any:
        return random.integers(-(1 << 31), 1 << 31, shape, dtype=np.int32)

    scales = max_weights.Buffer.from_numpy(random.uniform(0.001, 0.01, (side, groups)).astype(np.float32))
    scales = scales.astype("bfloat16")
    of_columns = random.uniform(0.001, 0.01, (groups, side)).astype(np.float16)
    int4, int8, zeros = words(side, side // 8), words(side, side // 4), words(side // 8, groups)
    gptq, awq, zeros_of_columns = words(side // 8, side), words(side, side // 8), words(groups, side // 8)
    index = np.repeat(np.arange(groups, dtype=np.int32), GROUP)
    target, torch_scales = getattr(torch, dtype), torch.utils.dlpack.from_dlpack(scales)

    def ours(packed: Any, layout: Any, bits: int, by: Any = scales, **parts: Any) -> Callable[[], object]:
        shape = (side, side)
        return lambda: dequantize_groups(packed, by, layout=layout, bits=bits, shape=shape, dtype=dtype, **parts)

    def formula(packed: Any, bits: int) -> Callable[[], object]:
        tensor = torch.from_numpy(packed)

        def run() -> Any:
            codes = _unpacked(tensor, bits) - (1 << (bits - 1))
            values = codes.view(side, groups, GROUP).to(target) * torch_scales.to(target).unsqueeze(-1)
            return values.view(side, side)

        return run

    fp4 = max_weights.Buffer.from_numpy(random.integers(0, 256, (side, side // 2), dtype=np.uint8))
    fp4 = fp4.view("float4_e2m1fn")
    exponents = max_weights.Buffer.from_numpy(random.integers(110, 120, (side, side // 32), dtype=np.uint8))
    small = max_weights.Buffer.from_numpy(random.integers(0, 120, (side, side // 16), dtype=np.uint8))
    mx, nv = exponents.view("float8_e8m0fnu"), small.view("float8_e4m3fn")
    out = np.ones(side * side * (4 if dtype == "float32" else 2), np.uint8)
    decoders: dict[str, dict[str, Callable[[], object]]] = {
        INT4: {harness.OURS: ours(int4, "rows", 4), TORCH: formula(int4, 4)},
        INT4_ZEROS: {harness.OURS: ours(int4, "rows", 4, zero_points=zeros)},
        INT8: {harness.OURS: ours(int8, "rows", 8), TORCH: formula(int8, 8)},
        GPTQ: {
            harness.OURS: ours(
                gptq, "gptq", 4, of_columns, zero_points=zeros_of_columns, zero_point_offset=1, group_index=index
            )
        },
        AWQ: {harness.OURS: ours(awq, "awq", 4, of_columns, zero_points=zeros_of_columns)},
        MXFP4: {harness.OURS: lambda: max_weights.scale_blocks(fp4, mx, block=(1, 32), dtype=dtype)},
        NVFP4: {harness.OURS: lambda: max_weights.scale_blocks(fp4, nv, block=(1, 16), dtype=dtype)},
    }
    memset = gguf_blocks.memset(out, len(os.sched_getaffinity(0)))
    return {scheme: each | {MEMSET: memset} for scheme, each in decoders.items()}


def _measure(threads: int, side: int, rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Measure in a process limited to `threads` cores: seconds by dtype, scheme and decoder."""
    command = [sys.executable, __file__, *map(str, (threads, side, rounds))]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise harness.BenchError(f"quantized on {threads} threads failed:\n{done.stderr}")
    found: dict[str, dict[str, dict[str, float]]] = json.loads(done.stdout)
    return found


def measure(folder: object, small: bool) -> Report:  # noqa: ARG001 (no files are needed)
    """Measure every scheme on random numbers, on one core and on all."""
    side, rounds = (512, 1) if small else (SIDE, ROUNDS)
    cores = len(os.sched_getaffinity(0))
    columns, targets = [], []
    for threads in sorted({1, cores}):
        for dtype, schemes in _measure(threads, side, rounds).items():
            moved = side * side * (4 if dtype == "float32" else 2)
            on = f"{threads} thread{'s' * (threads > 1)}"
            columns += [
                Column(f"{scheme} → {dtype}, {on}", "ms", values, False, moved) for scheme, values in schemes.items()
            ]
            if threads == cores:
                targets += [
                    Target(f"{scheme} → {dtype} ÷ {MEMSET}", values[MEMSET] / values[harness.OURS], 0.6, "at least")
                    for scheme, values in schemes.items()
                    if scheme in (INT4, INT4_ZEROS, GPTQ, AWQ)
                ]
    return Report(
        "quantized",
        columns,
        targets=tuple(targets),
        limits=frozenset({MEMSET}),
        notes=(f"GB/s of output, a weight of {SIDE} x {SIDE}. FP8 in blocks of 128 x 128 is among the casts.",),
        throughput="weights",
        across=(" → bfloat16", " → float32"),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure in this process; the bench runs it.")
    for argument in ("threads", "side", "rounds"):
        parser.add_argument(argument, type=int)
    given = parser.parse_args()
    # Before any library counts the cores: one core per thread.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.threads])
    import torch

    torch.set_num_threads(given.threads)
    measured: dict[str, dict[str, dict[str, float]]] = {"bfloat16": {}, "float32": {}}
    for dtype, schemes in measured.items():
        for scheme, each in _decoders(given.side, dtype).items():
            schemes[scheme] = gguf_blocks.medians(each, given.rounds)
    json.dump(measured, sys.stdout)
