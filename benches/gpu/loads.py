"""Whole checkpoints from the page cache and from the disk to a GPU: ours, the rivals', and the upper bounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import checkpoints
import harness
import limits
import rows as table
from report import Column, Report, Target, best
from rows import LINK, LINK_BY_TORCH, OURS, SAFETENSORS, Limits, Row

TITLES: Final = {
    "warm": "To a GPU, from the page cache",
    "cold": "To a GPU, from the disk",
    "conversions": "Converted on arrival",
}
ALL_LIMITS = (LINK, LINK_BY_TORCH)
HOST_BYTES: Final = 512 << 20
MEMORY: Final = "Memory is the drop of free memory of host, pinned or not, and device at the peak of a separate run."


def _files(folder: Path, gigabytes: float) -> tuple[Path, Path | None]:
    path = checkpoints.safetensors(folder, gigabytes)
    try:
        return path, checkpoints.torch_file(path)
    except ImportError:
        return path, None


def _values(rows: list[Row], what: str) -> dict[str, float]:
    return {row.label: found for row in rows if (found := row.median(what)) is not None}


def _rivals(values: Mapping[str, float]) -> list[str]:
    return [name for name in values if not name.startswith(OURS) and name not in ALL_LIMITS]


def warm(folder: Path, gigabytes: float, bounds: Limits) -> Report:
    """Time a process's first load of a cached file, and its second one."""
    path, torch_path = _files(folder, gigabytes)
    rows = table.loads(path, torch_path)
    for file in filter(None, (path, torch_path)):
        limits.sequential(file)()

    def turn(row: Row, ask: Callable[[str], dict[str, Any]]) -> None:
        table.timed(row, "first", ask("call" if "first" in row.seconds else "checked"))
        table.timed(row, "again", ask("call"))

    table.in_turns(rows, bounds, turn)
    table.weigh([row for row in rows if row.label not in ALL_LIMITS], bounds)
    first, again = _values(rows, "first"), _values(rows, "again")
    host = {row.label: float(row.host) for row in rows if row.device}
    device = {row.label: float(row.device) for row in rows if row.device}
    targets = []
    if OURS in again:
        link = best(again, [name for name in ALL_LIMITS if name in again])
        targets.append(Target(f"{link} ÷ ours, again", again[link] / again[OURS], 0.9, "at least"))
        for label, values in (("first", first), ("again", again)):
            if SAFETENSORS in values:
                targets.append(
                    Target(f"{SAFETENSORS} ÷ ours, {label}", values[SAFETENSORS] / values[OURS], 4.0, "at least")
                )
            if rivals := _rivals(values):
                rival = best(values, rivals)
                targets.append(Target(f"{rival} ÷ ours, {label}", values[rival] / values[OURS], 1.0, "at least"))
        if OURS in host:
            most = HOST_BYTES / 1e6
            targets.append(Target("host memory at the peak, ours", host[OURS] / 1e6, most, "at most", "MB"))
    return Report(
        "gpu_warm",
        [
            Column("first, warm", "ms", first),
            Column("again, warm", "ms", again),
            Column("host memory, peak", "MB", host, charted=False),
            Column("device memory, peak", "MB", device, charted=False),
        ],
        targets=targets,
        limits=frozenset(ALL_LIMITS),
        notes=(_about(path, "in the page cache"), MEMORY, *table.not_measured(rows)),
        samples={what: {row.label: row.seconds.get(what, []) for row in rows} for what in ("first", "again")},
    )


def cold(folder: Path, gigabytes: float, bounds: Limits) -> Report:
    """Time a process's first load of a file that is not cached, and plain direct reads of it."""
    path, torch_path = _files(folder, gigabytes)
    rows = [row for row in table.loads(path, torch_path) if row.label not in ALL_LIMITS]
    reads = {label: limits.direct(path, flight) for flight, label in limits.DIRECT.items()}
    reads[limits.SEQUENTIAL] = limits.sequential(path)
    disk: dict[str, list[float]] = {label: [] for label in reads}

    def turn(row: Row, ask: Callable[[str], dict[str, Any]]) -> None:
        for file in row.files:
            harness.evict(Path(file))
        table.timed(row, "cold", ask("call" if "cold" in row.seconds else "checked"))
        if row.label == OURS:  # as often as ours, between it and its rivals
            for label, read in reads.items():
                harness.evict(path)
                start = time.perf_counter()
                read()
                disk[label].append(time.perf_counter() - start)

    table.in_turns(rows, bounds, turn)
    samples = {row.label: row.seconds.get("cold", []) for row in rows} | disk
    plain = {label: harness.Timing(label, seconds).median for label, seconds in disk.items() if seconds}
    found = _values(rows, "cold") | plain
    targets = []
    if OURS in found:
        read = best(found, list(plain))
        targets.append(Target(f"{read} ÷ ours", found[read] / found[OURS], 0.95, "at least"))
        if rivals := [name for name in _rivals(found) if name not in plain]:
            rival = best(found, rivals)
            targets.append(Target(f"{rival} ÷ ours", found[rival] / found[OURS], 1.0, "at least"))
    return Report(
        "gpu_cold",
        [Column("first, cold", "ms", found)],
        targets=targets,
        limits=frozenset(reads),
        notes=(_about(path, "dropped from the page cache before each run"), *table.not_measured(rows)),
        samples={"cold": samples},
    )


def conversions(folder: Path, gigabytes: float, bounds: Limits) -> Report:
    """Time loads that convert on arrival, and loads of the same bytes unchanged."""
    bf16, q4 = checkpoints.safetensors(folder, gigabytes), checkpoints.gguf(folder, gigabytes / 2)
    cases = {
        "bf16 unchanged": (OURS, bf16),
        "bf16 → f32": (f"{OURS}, float32", bf16),
        "Q4_K blocks unchanged": (OURS, q4),
        "Q4_K → bf16": (f"{OURS}, bfloat16", q4),
    }
    rows = [Row(label, loader, "", [str(path)]) for label, (loader, path) in cases.items()]
    for path in (bf16, q4):
        limits.sequential(path)()

    def turn(row: Row, ask: Callable[[str], dict[str, Any]]) -> None:
        table.timed(row, "first", ask("call" if "first" in row.seconds else "checked"))
        table.timed(row, "again", ask("call"))

    table.in_turns(rows, bounds, turn)
    again = _values(rows, "again")
    labels = list(cases)
    targets = [
        Target(f"{other} ÷ {one}", again[other] / again[one], 1.0, "at most")
        for one, other in (labels[:2], labels[2:])
        if one in again and other in again
    ]
    return Report(
        "gpu_conversions",
        [Column(what, "ms", _values(rows, what), charted=False) for what in ("first", "again")],
        targets=targets,
        notes=(_about(bf16, "in the page cache, and half as much of Q4_K blocks"), *table.not_measured(rows)),
        samples={what: {row.label: row.seconds.get(what, []) for row in rows} for what in ("first", "again")},
    )


def _about(path: Path, state: str) -> str:
    size = path.stat().st_size / 1e9
    return (
        f"One file of {size:.3g} GB, {state}; a fresh process for each row and round, until the device has everything. "
        "In the first round some tensors were compared with the file, outside of the time."
    )
