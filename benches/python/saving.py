"""Save the tensors of a as one file: into the page cache and onto the disk, as a new file and over an existing one.

SAVE_GB is about how much of a is saved: its first layers; the default, 1.93 GB, is all of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import files
import harness
import written
from report import Column, Report, Target, best, ratio

TITLE = "Save a"
SAFETENSORS = "safetensors.torch.save_file"
TORCH = "torch.save"
PLAIN = "write() of the same bytes, 1 thread"
PLAIN_ALL = "pwrite() of the same bytes, on all cores"
LIMITS = (PLAIN, PLAIN_ALL)
# Each of five processes holds the tensors in memory: 10 GB in all.
ROUNDS = harness.Effort(least=5, most=9, seconds=15.0)
MEMORY = 64e6
WHOLE_GB = 1.93


def make(folder: Path, small: bool) -> Path:
    """The file a, or its first layers."""
    size = os.environ.get("SAVE_GB")
    if small or size is None:
        return files.make(folder, "a", small=small)
    path = folder / f"a-{size}.safetensors"
    files.write_safetensors(path, files.llama(layers=max(1, round(files.LAYERS_A * float(size) / WHOLE_GB))))
    return path


def _tensors(path: Path) -> dict[str, Any]:
    """Return copies of the tensors that no file backs, as after training."""
    from safetensors.torch import load_file

    return {name: tensor.clone() for name, tensor in load_file(path).items()}


def _ours(path: Path, to: Path, sync: bool) -> Callable[[], object]:
    import max_weights

    tensors = _tensors(path)
    return lambda: max_weights.save_file(tensors, to, sync=sync)


def _safetensors(path: Path, to: Path, sync: bool) -> Callable[[], object]:
    from safetensors.torch import save_file

    tensors = _tensors(path)

    def run() -> None:
        save_file(tensors, to, {"format": "pt"})
        if sync:
            written.flush(to)

    return run


def _torch(path: Path, to: Path, sync: bool) -> Callable[[], object]:
    import torch

    tensors = _tensors(path)

    def run() -> None:
        torch.save(tensors, to)
        if sync:
            written.flush(to)

    return run


def _plain(path: Path, to: Path, sync: bool) -> Callable[[], object]:
    memory = memoryview(path.read_bytes())
    return lambda: written.write(to, memory, sync)


def _plain_all(path: Path, to: Path, sync: bool) -> Callable[[], object]:
    memory, pool = memoryview(path.read_bytes()), ThreadPoolExecutor(written.CORES)
    return lambda: written.write_on_all_cores(to, memory, sync, pool)


SAVES: dict[str, Callable[[Path, Path, bool], Callable[[], object]]] = {
    harness.OURS: _ours,
    SAFETENSORS: _safetensors,
    TORCH: _torch,
    PLAIN: _plain,
    PLAIN_ALL: _plain_all,
}


def _saved(name: str, sync: bool, over: bool, path: Path) -> Callable[[], object]:
    to = path.with_name(f"saved-{path.stem}")
    return written.Written(SAVES[name](path, to, sync), to, path.stat().st_size, path if over else None)


CASES: harness.Cases = {
    label: {name: partial(_saved, name, sync, over) for name in SAVES}
    for label, sync, over in (
        ("a", False, False),
        ("a, fsync", True, False),
        ("a over a file", False, True),
    )
}


def measure(folder: Path, small: bool) -> Report:
    """Time all ways to save a, and measure the memory of all except the limits."""
    bench, effort = Path(__file__), harness.QUICK if small else ROUNDS
    path = make(folder, small)
    columns, samples = [], {}
    for case, loaders in CASES.items():
        timings = harness.alternate(bench, case, loaders, path, effort=effort)
        samples[case] = {loader: timing.seconds for loader, timing in timings.items()}
        columns.append(Column(case, "ms", {loader: timing.median for loader, timing in timings.items()}))
    saved = [name for name in SAVES if name not in LIMITS]
    found = harness.peak_memory(bench, "a", saved, path, runs=1 if small else 3)
    memory = {loader: float(one.peak) for loader, one in found.items()}
    columns.append(Column("a, peak memory beyond the tensors", "MB", memory, charted=False))
    written.remove(path.with_name(f"saved-{path.stem}"))
    targets = []
    for column in columns[:2]:
        plain = best(column.values, LIMITS)
        targets += [
            Target(f"{column.label}: {SAFETENSORS} ÷ ours", ratio(column.values, SAFETENSORS), 1.5, "at least"),
            Target(f"{column.label}: {plain} ÷ ours", ratio(column.values, plain), 0.8, "at least"),
        ]
    ours = memory[harness.OURS] / 1e6
    return Report(
        "saving",
        columns,
        targets=(*targets, Target("a, peak memory beyond the tensors", ours, MEMORY / 1e6, "at most", "MB")),
        limits=frozenset(LIMITS),
        notes=(
            f"{path.stat().st_size / 1e9:.2f} GB of tensors in memory. Before each run the old file is removed or, in "
            "the column over a file, is on the disk, and no writes are pending. max_weights has `sync=True` in the "
            "fsync column, which also waits for the folder, and `sync=False` elsewhere; the others call `os.fsync` "
            "on the file. max_weights and safetensors write a temporary file and rename it. torch.save and the "
            "limits write to the file itself, so a crash would leave neither the old nor the new file.",
        ),
        samples=samples,
    )
