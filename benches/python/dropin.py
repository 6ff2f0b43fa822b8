"""Calls of other libraries, unpatched and after `max_weights.patch()`: the same lines load whole checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import files
import harness
import torch_files
from report import Column, Report, Target, ratio
from rivals import touched

TITLE = "The same lines, before and after patch()"
STOCK = "without patch()"


def _load_file(path: Path) -> Callable[[], Any]:
    from safetensors.torch import load_file

    return lambda: load_file(path)


def _safe_open(path: Path) -> Callable[[], Any]:
    from safetensors import safe_open

    def run() -> Any:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)

    return run


def _torch_load(path: Path) -> Callable[[], Any]:
    import torch

    return lambda: torch.load(path, weights_only=True)


def _torch_map(path: Path) -> Callable[[], Any]:
    import torch

    return lambda: torch.load(path, weights_only=True, mmap=True)


def _both(load: harness.Loader) -> dict[str, harness.Loader]:
    def patched(path: Path) -> Callable[[], Any]:
        import max_weights

        max_weights.patch()
        return load(path)

    return {harness.OURS: patched, STOCK: load}


MAPPED = "torch.load(mmap=True)"
CASES: harness.Cases = {
    "load_file": _both(touched(_load_file)),
    "safe_open, get_tensor": _both(touched(_safe_open)),
    "torch.load": _both(_torch_load),
    MAPPED: _both(_torch_map),
    f"{MAPPED}, touched": _both(touched(_torch_map)),
}


def measure(folder: Path, small: bool) -> Report:
    """Time each call on file a, or on the torch file of its tensors, warm and cold."""
    effort = harness.QUICK if small else harness.Effort(least=5, most=15, seconds=15.0)
    safetensors_file, torch_file = files.make(folder, "a", small=small), torch_files.make(folder, small)
    columns, samples = [], {}
    for case, loaders in CASES.items():
        path = torch_file if case.startswith("torch") else safetensors_file
        for state in ("warm",) if case == MAPPED else ("warm", "cold"):
            cold = state == "cold" and not small
            timings = harness.alternate(Path(__file__), case, loaders, path, effort=effort, cold=cold)
            label = f"{case}, {state}"
            samples[label] = {loader: timing.seconds for loader, timing in timings.items()}
            columns.append(Column(label, "ms", {loader: timing.median for loader, timing in timings.items()}))
    by_label = {column.label: column.values for column in columns}
    return Report(
        "dropin",
        columns,
        targets=(
            Target("torch.load, eagerly, warm", ratio(by_label["torch.load, warm"], STOCK), 1.0, "at least"),
            Target("torch.load, lazily", ratio(by_label[f"{MAPPED}, warm"], STOCK), 5.0, "at least"),
        ),
        notes=(
            f"**{harness.OURS}** is the same program after `max_weights.patch()`. 291 bf16 tensors, 1.9 GB. A run "
            "ends when one byte of every page has been read, except for `torch.load`, which copies, and for the lazy "
            "column.",
        ),
        samples=samples,
    )
