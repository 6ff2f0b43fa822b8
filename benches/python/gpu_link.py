"""Load to a device that is a stand-in: how busy the pipeline keeps a link of 25 GB/s, and the disk.

The stand-in (tests/fake_cuda) takes the driver's place. Its copies take the time that they would on such a link and
move nothing, so that they take no core from the pipeline. What a real device adds (its own reads of host memory, the
time to pin pages) is not in these figures: `make bench-gpu` measures that, where there is one.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import files
import harness
import limits
from report import Column, Report, Target, best

TITLE = "Load to a device, on the stand-in driver with a link of 25 GB/s"
ROUNDS = harness.Effort(least=5, most=5)

SPEED: Final = 25  # GB/s
SETTINGS: Final = {
    "FAKE_CUDA_GBPS": str(SPEED),
    "FAKE_CUDA_BYTES": "0",
    "FAKE_CUDA_CHECK": "none",
    "FAKE_CUDA_DELAY": "10",
}
REPORTS: Final = "MAX_WEIGHTS_LINK_REPORTS"  # the counters of each process's stand-in
READ, DIRECT = "max_weights, backend='read'", "max_weights, backend='direct'"
LINK: Final = "the link alone: copies from pinned memory"
HOST_BYTES: Final = 512 << 20


def _on_the_stand_in(name: str, load: Callable[[Path, Any], Callable[[], object]]) -> harness.Loader:
    def prepare(path: Path) -> Callable[[], object]:
        report = Path(os.environ[REPORTS]) / f"{name} {os.getpid()}.json"
        os.environ |= SETTINGS | {"FAKE_CUDA_REPORT": str(report)}
        from max_weights._benching.cuda import Driver

        return load(path, Driver())

    return prepare


def _ours(**options: Any) -> Callable[[Path, Any], Callable[[], object]]:
    def prepare(path: Path, driver: Any) -> Callable[[], object]:
        import max_weights

        def run() -> object:
            tensors = max_weights.load_weights(path).load(device="cuda:0", **options)
            driver.synchronize()
            return tensors

        return run

    return prepare


def _link(path: Path, driver: Any) -> Callable[[], object]:
    size = sum(info.bytes for info in _infos(path))
    return driver.pinned_copier(size, 4 << 20, 16)  # type: ignore[no-any-return]


def _infos(path: Path) -> Any:
    import max_weights

    return max_weights.infos(max_weights.load_weights(path))


OURS: Final = {harness.OURS: _ours(), READ: _ours(backend="read"), DIRECT: _ours(backend="direct")}
_OURS = {name: _on_the_stand_in(name, load) for name, load in OURS.items()}
_LINK = {LINK: _on_the_stand_in("link", _link)}
_DISK = {name: limits.DISK[name] for name in (limits.SEQUENTIAL, *limits.DIRECT.values())}
_MEMORY = {name: limits.MEMORY[name] for name in (limits.COPY_ALL_CORES, limits.POPULATE_8)}

CASES: harness.Cases = {
    "a, warm": {**_OURS, **_LINK, **_MEMORY},
    "a, cold": {name: load for name, load in _OURS.items() if name != READ} | _DISK,
    "b, warm": {harness.OURS: _OURS[harness.OURS], **_LINK},
    "b, cold": {harness.OURS: _OURS[harness.OURS], **{limits.DIRECT[n]: _DISK[limits.DIRECT[n]] for n in (16, 32)}},
}


def _pinned(reports: Path, loader: str) -> float:
    """The most pinned memory that one of a loader's processes had."""
    counted = [json.loads(report.read_text()) for report in reports.glob(f"{loader} *.json")]
    for found in counted:
        if found["violations"]:
            raise harness.BenchError(f"{loader}: {found['violation_texts'][0]}")
    return float(max(found["most_pinned_bytes"] for found in counted))


@contextlib.contextmanager
def stand_in(reports: Path) -> Iterator[None]:
    """Meanwhile new processes load the stand-in instead of the driver."""
    root = Path(__file__).resolve().parents[2]
    named = os.environ.get("MAX_WEIGHTS_FAKE_CUDA")
    folders = [Path(named)] if named else [root / "target" / profile for profile in ("release", "quick", "debug")]
    found = [folder for folder in folders if (folder / "libcuda.so").is_file()]
    if not found:
        raise harness.Unavailable(f"the stand-in driver is in none of {folders}: cargo build --release -p fake-cuda")
    before = dict(os.environ)
    os.environ |= {"LD_LIBRARY_PATH": str(found[0]), REPORTS: str(reports)}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before


def measure(folder: Path, small: bool) -> Report:
    """Time a from a warm and from a cold page cache, in one file and in shards; and the pinned memory of it."""
    bench = Path(__file__)
    effort = harness.QUICK if small else ROUNDS
    columns, samples, targets = [], {}, []
    with tempfile.TemporaryDirectory() as reports, stand_in(Path(reports)):
        for case, loaders in CASES.items():
            name, state = case.split(", ")
            path = files.make(folder, name, small=small)
            cold = state == "cold" and not small
            timings = harness.alternate(bench, case, loaders, path, effort=effort, cold=cold)
            samples[case] = {loader: timing.seconds for loader, timing in timings.items()}
            values = {loader: timing.median for loader, timing in timings.items()}
            columns.append(Column(case, "ms", values, charted=False))
            least, what = sum(info.bytes for info in _infos(path)) / (SPEED * 1e9), "the link"
            if state == "cold":
                least, what = values[best(values, [way for way in _DISK if way in values])], "the disk"
            busy = {loader: least / values[loader] for loader in OURS if loader in values}
            columns.append(Column(f"{case}: {what} is busy", "%", busy, charted=False))
            targets.append(Target(f"{case}: {what} is busy", busy[harness.OURS], 0.9, "at least", ""))
        pinned = {loader: _pinned(Path(reports), loader) for loader in OURS}
    columns.append(Column("pinned memory", "MB", pinned, charted=False))
    most = pinned[harness.OURS] / 1e6
    return Report(
        "gpu_link",
        columns,
        targets=(*targets, Target("pinned memory, at its peak", most, HOST_BYTES / 1e6, "at most", "MB")),
        limits=frozenset({*_LINK, *_MEMORY, *_DISK}),
        notes=(
            f'`load(device="cuda:0")` until the device has everything, on a link of {SPEED} GB/s. The link is busy '
            "while its copies run; the disk's share is relative to the fastest plain read of the same files in this "
            "run. The other limits copy all bytes to reused memory, or map them.",
        ),
        samples=samples,
    )
