"""Open and list a quarter of a million tensors: time, and the memory of a process that holds the listing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import files
import harness
from listing import LIMIT, READ, header_only, ours_read, safetensors
from report import Column, Report, Target, ratio

TITLE = "250,000 tensors"
RIVAL = "safetensors, NumPy"


def _ours(path: Path) -> Callable[[], object]:
    import max_weights

    def run() -> object:
        infos = max_weights.infos(max_weights.load_weights(path))
        for info in infos:  # every field is read, as the rival's are; the records stay with the listing
            _ = info.name, info.dtype, info.shape
        return infos

    return run


CASES: harness.Cases = {
    "open": {
        harness.OURS: _ours,
        READ: ours_read,
        RIVAL: lambda path: safetensors(path, "np"),
        LIMIT: header_only,
    },
}


def measure(folder: Path, small: bool) -> Report:
    """Time opening and listing d, and take the memory of it."""
    effort = harness.QUICK if small else harness.Effort()
    d = files.make(folder, "d", small=small)
    bench = Path(__file__)
    timings = harness.alternate(bench, "open", CASES["open"], d, effort=effort)
    memory = harness.peak_memory(bench, "open", CASES["open"], d, runs=1 if small else 3)
    columns = [
        Column("d", "ms", {loader: timing.median for loader, timing in timings.items()}),
        Column("d, peak memory", "MB", {name: found.peak for name, found in memory.items()}, charted=False),
    ]
    return Report(
        "many_tensors",
        columns,
        targets=(
            Target(f"time: {RIVAL} ÷ ours", ratio(columns[0].values, RIVAL), 4.0, "at least"),
            Target(f"memory: {RIVAL} ÷ ours", ratio(columns[1].values, RIVAL), 3.0, "at least"),
        ),
        limits=frozenset({LIMIT}),
        notes=(f"The size of the header is {_header_bytes(d) / 1e6:.1f} MB.",),
        samples={"d": {loader: timing.seconds for loader, timing in timings.items()}},
    )


def _header_bytes(path: Path) -> int:
    with path.open("rb") as file:
        return int.from_bytes(file.read(8), "little")
