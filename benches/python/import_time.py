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
# Smaller differences are noise of starting a process.
RESOLUTION = 1e-4
MODULES = ("safetensors", "safetensors.numpy", "numpy", "ml_dtypes", "torch")
# Imported on first use; `import max_weights` must not import any of them.
FRAMEWORKS = ("numpy", "torch", "jax", "ml_dtypes")
CASES: harness.Cases = {}
# A program that is patched before its imports is timed from outside, with and without the patch. A program that is
# patched after them (torch does so at the end of its import for MAX_WEIGHTS_PATCH=1) times the patch alone: imports of
# torch vary more than the patch takes.
SHORT = "import safetensors.numpy"
PATCH = "import max_weights; max_weights.patch()"
AFTER = f"""
import time, torch, safetensors.torch, gguf
start = time.perf_counter()
{PATCH}
print(time.perf_counter() - start)
"""
PATCHED, PATCHED_AFTER = "patched before its imports", "patched after its imports"


def _output(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise harness.BenchError(f"import_time: {code}: {lines[-1]}")
    return done.stdout


def _run(code: str) -> float:
    start = time.perf_counter()
    _output(code)
    return time.perf_counter() - start


def _patch(rounds: int) -> dict[str, list[float]]:
    """Return the time that a patch adds to the imports of a program, in each round."""
    added: dict[str, list[float]] = {PATCHED: [], PATCHED_AFTER: []}
    for code in (SHORT, f"{PATCH}; {SHORT}", AFTER):
        _run(code)
    for _ in range(rounds):
        plain = _run(SHORT)
        added[PATCHED].append(_run(f"{PATCH}; {SHORT}") - plain)
        added[PATCHED_AFTER].append(float(_output(AFTER)))
    return added


def loaded_frameworks() -> list[str]:
    """Return the frameworks that `import max_weights` loads: none, if all is well."""
    return _output(f"import sys, max_weights; print(*(name for name in {FRAMEWORKS!r} if name in sys.modules))").split()


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
    patched = _patch(1 if small else 20)
    added = {name: max(RESOLUTION, statistics.median(values)) for name, values in patched.items()}
    return Report(
        "import_time",
        [Column("over bare Python", "ms", over), Column("over the program unpatched", "ms", added, charted=False)],
        targets=(
            Target("import max_weights over bare Python", over[harness.OURS] * 1e3, 25.0, "at most", "ms"),
            Target("with load_weights fetched from it", over[USED] * 1e3, 25.0, "at most", "ms"),
            *(Target(f"a program {name}", added[name] * 1e3, 30.0, "at most", "ms") for name in added),
            Target(
                "frameworks it loads: " + ", ".join(FRAMEWORKS), float(len(loaded_frameworks())), 0.0, "at most", ""
            ),
        ),
        notes=(
            f"Bare Python takes {bare * 1e3:.1f} ms here. The package imports its names on first use, so the second "
            "row is the cost for a program that opens a file. The patched programs import safetensors.numpy, and the "
            "second also torch and gguf.",
        ),
        samples={"over bare Python": samples, "over the program unpatched": patched},
    )
