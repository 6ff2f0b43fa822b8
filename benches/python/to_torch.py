"""Hand every tensor of a file to torch: lazily (a mapped load ends before a byte is read) and with pages touched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import files
import harness
from report import Column, Report, Target, ratio
from rivals import touched

TITLE = "All tensors to torch"
RIVAL = "safetensors.torch.load_file"
BY_HAND = "json + np.memmap by hand"
LIMIT = "np.memmap, pages touched in file order"


def _ours(path: Path) -> Callable[[], Any]:
    import torch  # noqa: F401 (imported before the clock runs, for each loader alike)

    import max_weights.torch

    return lambda: max_weights.torch.load_file(path)


def _safetensors(path: Path) -> Callable[[], Any]:
    import safetensors.torch

    return lambda: safetensors.torch.load_file(path)


def _by_hand(path: Path) -> Callable[[], Any]:
    import json

    import numpy as np
    import torch

    dtypes = {"BF16": torch.bfloat16, "F32": torch.float32}

    def run() -> dict[str, torch.Tensor]:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        data = torch.from_numpy(np.memmap(path, np.uint8, "c", offset=8 + length))
        tensors = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            tensors[name] = data[begin:end].view(dtypes[entry["dtype"]]).reshape(entry["shape"])
        return tensors

    return run


def _pages(path: Path) -> Callable[[], object]:
    import numpy as np

    return lambda: int(np.memmap(path, np.uint8, "r")[::4096].sum())


_LOADS = {harness.OURS: _ours, RIVAL: _safetensors, BY_HAND: _by_hand}

CASES: harness.Cases = {
    "lazy": dict(_LOADS),
    "touch": {**{name: touched(load) for name, load in _LOADS.items()}, LIMIT: _pages},
}


def measure(folder: Path, small: bool) -> Report:
    """Time both files lazily and touched, a also cold, and take the memory of a touched load of a."""
    effort = harness.QUICK if small else harness.Effort()
    bench = Path(__file__)
    a, c = files.make(folder, "a", small=small), files.make(folder, "c", small=small)
    columns, samples = [], {}
    for label, case, path, cold in (
        ("a lazy", "lazy", a, False),
        ("a touched", "touch", a, False),
        ("c lazy", "lazy", c, False),
        ("c touched", "touch", c, False),
        ("a touched, cold", "touch", a, True),
    ):
        # In c a page holds sixteen tensors, so touching each page once is no limit for loaders of c.
        loaders = CASES[case] if path is a else _LOADS
        timings = harness.alternate(bench, case, loaders, path, effort=effort, cold=cold and not small)
        samples[label] = {loader: timing.seconds for loader, timing in timings.items()}
        columns.append(Column(label, "ms", {loader: timing.median for loader, timing in timings.items()}))
    memory = harness.peak_memory(bench, "touch", _LOADS, a, runs=1 if small else 3)
    columns.append(Column("a, peak memory", "MB", {name: found.peak for name, found in memory.items()}, charted=False))
    columns.append(Column("a, own pages", "MB", {name: found.own for name, found in memory.items()}, charted=False))
    return Report(
        "to_torch",
        columns,
        targets=(
            Target(f"291 tensors, 2 GB: {RIVAL} ÷ ours", ratio(columns[0].values, RIVAL), 3.0, "at least"),
            Target(f"50,000 tensors: {RIVAL} ÷ ours", ratio(columns[2].values, RIVAL), 4.0, "at least"),
        ),
        limits=frozenset({LIMIT}),
        notes=(
            "Peak memory counts the mapped file's pages, which the kernel reclaims when it needs them; own pages are"
            " what belongs to the process alone.",
        ),
        samples=samples,
    )
