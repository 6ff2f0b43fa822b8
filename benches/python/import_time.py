"""What `import` costs: wall time of fresh interpreters, less that of one that imports nothing."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

import harness
from report import Column, Report, Target

TITLE = "Import"
BARE = "bare Python"
USED = f"{harness.OURS}, and load_weights used"
# Less than this is the noise of starting a process.
RESOLUTION = 1e-4
MODULES = ("safetensors", "safetensors.numpy", "numpy", "ml_dtypes", "torch")
# Imported only when their door is opened; none may be loaded by `import max_weights`.
FRAMEWORKS = ("numpy", "torch", "jax", "ml_dtypes", "rich", "typer")
CASES: harness.Cases = {}


def _run(code: str) -> float:
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=False)
    spent = time.perf_counter() - start
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise harness.BenchError(f"import_time: {code}: {lines[-1]}")
    return spent


def loaded_frameworks() -> list[str]:
    """Return the frameworks that `import max_weights` loads: none, if all is well."""
    code = f"import sys, max_weights; print(*(name for name in {FRAMEWORKS!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.split()


def measure(folder: Path, small: bool) -> Report:  # noqa: ARG001 (every bench is called alike; this one needs no file)
    """Time the imports in turns."""
    ours = {harness.OURS: "import max_weights", USED: "import max_weights; max_weights.load_weights"}
    programs = {BARE: "pass"} | ours | {name: f"import {name}" for name in MODULES}
    for code in programs.values():
        _run(code)
    samples: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(1 if small else 9):
        for name, code in programs.items():
            samples[name].append(_run(code))
    bare = statistics.median(samples[BARE])
    over = {name: max(RESOLUTION, statistics.median(values) - bare) for name, values in samples.items() if name != BARE}
    return Report(
        "import_time",
        [Column("over bare Python", "ms", over)],
        targets=(
            Target("import max_weights over bare Python", over[harness.OURS] * 1e3, 25.0, "at most", "ms"),
            Target("with load_weights fetched from it", over[USED] * 1e3, 25.0, "at most", "ms"),
            Target(
                "frameworks it loads: " + ", ".join(FRAMEWORKS), float(len(loaded_frameworks())), 0.0, "at most", ""
            ),
        ),
        notes=(
            f"Bare Python takes {bare * 1e3:.1f} ms here. The names of the package are imported when first used, so "
            "the second row is what a program pays that opens a file.",
        ),
        samples={"over bare Python": samples},
    )
