"""Load whole checkpoints from the disk with a cold page cache: alone, and while another process reads the disk."""

from __future__ import annotations

from pathlib import Path

import files
import harness
import limits
import rivals
import torch_files
from report import Column, Report, Target, best

TITLE = "Load a whole checkpoint, cold"
ROUNDS = harness.Effort(least=5, most=5)

_LOADS: dict[str, harness.Loader] = {harness.OURS: rivals.touched(rivals.ours), rivals.OWN: rivals.own}
_RIVALS = {**rivals.RESIDENT, **rivals.COPIES}
_FEW_LIMITS = (limits.SEQUENTIAL, limits.POPULATE_8, limits.DIRECT[32])

CASES: harness.Cases = {
    "a": {**_LOADS, **_RIVALS, **limits.DISK},
    "torch": {**_LOADS, **rivals.TORCH_FILES, **{name: limits.DISK[name] for name in _FEW_LIMITS}},
    "b": {**_LOADS, **_RIVALS, **{name: limits.DISK[name] for name in _FEW_LIMITS}},
    "beside": {
        **_LOADS,
        rivals.MAPPED: rivals.RESIDENT[rivals.MAPPED],
        rivals.PREAD: rivals.COPIES[rivals.PREAD],
        rivals.RUNAI: rivals.COPIES[rivals.RUNAI],
        **{name: limits.DISK[name] for name in (limits.SEQUENTIAL, limits.DIRECT[32])},
    },
}


def measure(folder: Path, small: bool) -> Report:
    """Time a, b, and a while another process reads b."""
    bench = Path(__file__)
    effort = harness.QUICK if small else ROUNDS
    a, b = files.make(folder, "a", small=small), files.make(folder, "b", small=small)
    torch_file = torch_files.make(folder, small)
    columns, samples = [], {}

    def time(case: str, label: str, path: Path) -> dict[str, float]:
        timings = harness.alternate(bench, case, CASES[case], path, effort=effort, cold=not small)
        samples[label] = {loader: timing.seconds for loader, timing in timings.items()}
        columns.append(Column(label, "ms", {loader: timing.median for loader, timing in timings.items()}))
        return {loader: timing.median for loader, timing in timings.items()}

    targets = []
    for case, label, path in (("a", "a", a), ("b", "b", b), ("torch", "a as a torch file", torch_file)):
        values = time(case, label, path)
        limit = best(values, [name for name in values if name in limits.DISK])
        rival = best(values, [name for name in values if name not in limits.DISK and name not in _LOADS])
        for way, ours in (("resident", values[harness.OURS]), ("own memory", values[rivals.OWN])):
            targets += [
                Target(f"{label}, {way}: ours ÷ {limit}", ours / values[limit], 1.05, "at most"),
                Target(f"{label}, {way}: ours ÷ {rival}", ours / values[rival], 1.0, "at most"),
            ]
            if path != torch_file:
                mapped = best(values, list(rivals.RESIDENT))
                targets.append(Target(f"{label}, {way}: ours ÷ {mapped}", ours / values[mapped], 0.65, "at most"))
    with limits.second_reader(b):
        values = time("beside", "a with a second reader", a)
    rival = best(values, [name for name in values if name in _RIVALS])
    for way, ours in (("resident", values[harness.OURS]), ("own memory", values[rivals.OWN])):
        targets.append(Target(f"second reader, {way}: ours ÷ {rival}", ours / values[rival], 1.0, "at most"))
    return Report(
        "loading_cold",
        columns,
        targets=targets,
        limits=frozenset(limits.DISK),
        notes=(
            f"**{harness.OURS}** is `weights.load()`: views or copies, whichever is faster here. One byte of every 4 "
            "KiB page is read, of what a loader returns and of what the limits map. Targets are relative to the best "
            "limit or rival. The second reader reads b past the page cache, 1 MiB at a time. A shared disk can "
            "become half as fast within a minute: the JSON has each run.",
        ),
        samples=samples,
    )
