"""The result of `bench`: rows, one paragraph in words, a table, and plain data."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from max_weights._benching.loaders import LOADERS, OURS, OWN, PACKAGES
from max_weights._core import printable
from max_weights._html import paragraph, table, view

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BenchResult", "BenchRow"]

CONDITIONS = ("call", "touched", "cold")
ON_DEVICE_CONDITIONS = ("first", "warm", "cold")
SAME = 1.05
"""Two loaders within five percent count as equally fast."""


@dataclass
class BenchRow:
    """One loader; `BenchResult` says what its fields are."""

    loader: str
    of: str
    seconds: dict[str, list[float]] = field(default_factory=lambda: {condition: [] for condition in CONDITIONS})
    peak: int = 0
    read: list[int] = field(default_factory=list)
    failed: str = ""
    device_peak: int = 0

    def median(self, condition: str) -> float | None:
        """Return the median seconds of a condition that `seconds` names; `None` if it was not measured."""
        return statistics.median(self.seconds[condition]) if self.seconds[condition] else None


@dataclass(frozen=True, repr=False)
class BenchResult:
    """The measurements of one checkpoint.

    Attributes:
        files: The paths of its files.
        format: "safetensors", "gguf" or "pytorch".
        bytes: The size of all files.
        tensors: The number of tensors.
        rows: A row for each loader, ours first, the limits last. The name is `loader`; its package is `of`, as
            `against` names it ("" for ours, "limit" for a lower bound). The times are `seconds`, {condition: one for
            each round}: "call", "touched" and "cold" for host memory, "first", "warm" and "cold" for a device. The
            memory is `peak`, in bytes: what the first run added to the process, with pages of mapped files. For a
            device, it is what the second run took of the host at its peak, and `device_peak` that of the device. The
            bytes from the disk of each cold run are in `read`, and the reason of a failure is in `failed`, or "".
        not_cold: Why nothing was measured from the disk, or "".
        device: The device that it was loaded to, such as "cuda:0"; "" for host memory.
    """

    files: list[str]
    format: str
    bytes: int
    tensors: int
    rows: list[BenchRow]
    not_cold: str = ""
    device: str = ""

    @property
    def conditions(self) -> tuple[str, ...]:
        """What was timed, by the names in the rows."""
        return ON_DEVICE_CONDITIONS if self.device else CONDITIONS

    def as_dict(self) -> dict[str, object]:
        """Give everything as plain data, for JSON.

        Returns:
            Medians and each run in seconds, sizes in bytes, the summary, and the environment.

        Example:
            >>> max_weights.bench("model.safetensors", (), cold=False, seconds=1).as_dict()["format"]
            'safetensors'
        """
        return {
            "files": self.files,
            "format": self.format,
            "bytes": self.bytes,
            "tensors": self.tensors,
            "environment": _environment(),
            "not_cold": self.not_cold,
            "device": self.device,
            "rows": [
                {
                    "loader": row.loader,
                    "of": row.of,
                    "copies": bool(self.device) or LOADERS[row.loader].copies,
                    "median_seconds": {condition: row.median(condition) for condition in self.conditions},
                    "seconds": row.seconds,
                    "peak_bytes": row.peak,
                    "device_peak_bytes": row.device_peak,
                    "read_bytes": row.read,
                    "failed": row.failed,
                }
                for row in self.rows
            ],
            "summary": self.summary,
        }

    @property
    def summary(self) -> str:
        """Return one paragraph of findings, which also says where another loader is fastest."""
        sentences = [f"{self.tensors:,} tensors, {_size(self.bytes)}."]
        warm = "warm" if self.device else "touched"
        for condition, where in ((warm, "from the page cache"), ("cold", "from the disk")):
            sentences += self._compared(condition, where)
        if self.not_cold:
            sentences.append(f"Nothing was measured from the disk: {self.not_cold}.")
        peaks = [f"{row.loader} {_size(row.peak)}" for row in self.rows if row.peak and row.of != "limit"]
        if peaks:
            which = (
                "of host memory at the peak, pinned or not"
                if self.device
                else "at the peak, including pages of mapped files"
            )
            sentences.append(f"Memory {which}: {', '.join(peaks)}.")
        sentences += [f"{row.loader} was not measured: {row.failed}." for row in self.rows if row.failed]
        return printable(" ".join(sentences))

    def _compared(self, condition: str, where: str) -> list[str]:
        medians = {row.loader: seconds for row in self.rows if (seconds := row.median(condition)) is not None}
        ours = {row.loader: medians[row.loader] for row in self.rows if self._is_own(row) and row.loader in medians}
        if not ours:
            return []
        theirs = {
            row.loader: medians[row.loader]
            for row in self.rows
            if row.of not in ("", "limit") and row.loader in medians
        }
        least = {row.loader: medians[row.loader] for row in self.rows if row.of == "limit" and row.loader in medians}
        times = " and ".join(f"{name} {_time(seconds)}" for name, seconds in ours.items())
        until = f"To {self.device}" if self.device else "With every page read"
        sentence = f"{until}, {where}: {times}"
        if theirs:
            rival = min(theirs, key=lambda name: theirs[name])
            fastest = min(ours, key=lambda name: ours[name])
            sentence += f"; the fastest of the others, {rival}, {_time(theirs[rival])}: "
            sentence += _verdict(fastest, ours[fastest], rival, theirs[rival])
        if least:
            limit = min(least, key=lambda name: least[name])
            sentence += f"; the least that this machine needs, {limit}, {_time(least[limit])}"
        return [f"{sentence}."]

    def _is_own(self, row: BenchRow) -> bool:
        return row.of == "" if self.device else row.loader in (OURS, OWN)

    def _cells(self) -> Iterator[list[str]]:
        for row in self.rows:
            name = f"limit: {row.loader}" if row.of == "limit" else row.loader
            times = [
                "" if (median := row.median(condition)) is None else _time(median) for condition in self.conditions
            ]
            yield [name, *times, _size(row.peak) if row.peak else "", row.failed]

    def _repr_html_(self) -> str:
        numbers = (*self.conditions, "peak")
        cells = table(("loader", *numbers, ""), self._cells(), total=len(self.rows), numbers=numbers, code=("loader",))
        return view("BenchResult", f"{self.tensors:,} tensors, {_size(self.bytes)}", cells, paragraph(self.summary))

    def __repr__(self) -> str:
        return f"<BenchResult: {self.tensors:,} tensors, {_size(self.bytes)}, {len(self.rows)} loaders>"

    def __str__(self) -> str:
        heads = ["loader", *self.conditions, "peak", ""]
        rows = [heads, *self._cells()]
        widths = [max(len(row[column]) for row in rows) for column in range(len(heads) - 1)]
        lines = []
        for name, *cells, failed in rows:
            line = "  ".join([f"{name:{widths[0]}}", *map(str.rjust, cells, widths[1:]), failed])
            lines.append(printable(line.rstrip()))
        return "\n".join([*lines, "", self.summary])


def _verdict(ours: str, our_seconds: float, theirs: str, their_seconds: float) -> str:
    times = max(our_seconds, their_seconds) / min(our_seconds, their_seconds)
    if times <= SAME:
        return "equally fast"
    fastest = ours if our_seconds < their_seconds else theirs
    return f"{fastest} is fastest, {times:.2f} times as fast"


def _time(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1 or unit == "µs":
            return f"{seconds * factor:.3g} {unit}"
    raise AssertionError


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 999.95:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"


def _environment() -> dict[str, object]:
    import os
    import platform
    from importlib import metadata

    from max_weights._core import __version__

    versions = {"max_weights": __version__}
    for package in ("numpy", *PACKAGES.values()):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0)),
        "packages": versions,
    }
