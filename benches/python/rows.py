"""Take scattered rows of a table that is larger than what one wants to load, by their ids.

The table is one U8 tensor with rows of 160 bytes in a safetensors file. ROWS_GB is its size (4.29). Each run takes new
ids, the same sequence of ids for every loader: no row is warm because an earlier run took it. The pages that a memory
map has in use cannot be evicted. The loaders with a map therefore make it within a cold run, and drop it afterwards.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

import harness
from report import Column, Report, Target

TITLE = "Rows of a table on a disk, cold"
NAME: Final = "table"
WIDTH: Final = 160
CACHED: Final = "max_weights, default cache"
MAPPED: Final = "NumPy's memmap"
THREADS: Final = 16
PREAD: Final = f"os.preadv, {THREADS} threads"
SLICES: Final = "safetensors, get_slice of each row"
FIO: Final = "fio, 4 KiB random reads, 64 in flight"

UNIFORM: Final = "uniform"
ZIPF: Final = "Zipf"
FEW, MANY, ALL = 8_192, 32_768, 1_000_000
ROUNDS = harness.Effort(least=5, most=5)
FIO_ROUNDS: Final = (3, 2)  # before and after the loaders, so that a disk that changes its speed affects both
HEADER_PAGES: Final = 8
FILLING: Final = 40
"""Takes before the first warm run: all maps then have their page tables."""
AWAKE: Final = 512
"""Rows that a loader with a new map takes before a cold run."""
_PAGE: Final = 4096
_BLOCK: Final = 16 << 20

Array: TypeAlias = npt.NDArray[Any]
Take: TypeAlias = Callable[[Array], object]
Opening: TypeAlias = Literal["once", "before each run", "in each run"]


def size_of(small: bool) -> int:
    """Return the bytes of the table, in whole rows."""
    gigabytes = 0.016 if small else float(os.environ.get("ROWS_GB", "4.294967296"))
    return round(gigabytes * 1e9) // WIDTH * WIDTH


def make(folder: Path, small: bool) -> Path:
    """Return the file of the table, written if it is not there yet."""
    size = size_of(small)
    path = folder / f"rows-{size // WIDTH}.safetensors"
    if path.exists():
        return path
    folder.mkdir(exist_ok=True)
    tensor = {"dtype": "U8", "shape": [size // WIDTH, WIDTH], "data_offsets": [0, size]}
    text = json.dumps({NAME: tensor}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    random, partial_path = np.random.default_rng(0), path.with_suffix(".partial")
    with partial_path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for start in range(0, size, _BLOCK):
            file.write(random.bytes(min(_BLOCK, size - start)))
    partial_path.rename(path)
    return path


def layout(path: Path) -> tuple[int, int]:
    """Return the offset of the first row in the file, and the number of rows."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    return 8 + length, int(header[NAME]["shape"][0])


def draw(rows: int, count: int, kind: str = UNIFORM, *, again: bool = False, series: int = 0) -> Iterator[Array]:
    """Yield the ids of each run without end; `again` yields the first ones each time. Each series has other ids."""
    for run in itertools.count():
        random = np.random.default_rng([count, series, 0 if again else run])
        yield random.zipf(1.2, count) % rows if kind == ZIPF else random.integers(0, rows, count)


@dataclass
class Run:
    """A timed take of new ids, which are drawn off the clock.

    The result holds what was opened for the run. A map is therefore unmapped when the clock has stopped. Other ids are
    taken before, off the clock: the host of a virtual machine takes back the memory of a process that has waited for
    some seconds, and its next access costs tens of milliseconds.
    """

    ids: Iterator[Array]
    others: Iterator[Array]
    open: Callable[[], Take]
    opening: Opening
    fills: int = 0
    """How many takes come before the first run, instead of one before each."""
    wakes: bool = True
    """Whether others are taken at all: they would count as memory that is there already."""
    _now: Array = field(default_factory=lambda: np.empty(0, np.int64))
    _take: Take | None = None

    def before(self) -> None:
        """Draw the ids, and open the table if that is not timed."""
        self._now = next(self.ids)
        is_new = self.opening == "before each run" or (self.opening == "once" and self._take is None)
        if not self.wakes:
            self._take = self.open() if is_new else self._take
        elif self.opening == "in each run":
            self.open()(next(self.others)[:AWAKE])
        elif is_new or not self.fills:
            take = self.open() if is_new or self._take is None else self._take
            for _ in range(self.fills or 1):
                take(next(self.others))
            # A table with a cache is opened again, so that the cache is empty.
            self._take = self.open() if self.opening == "before each run" else take

    def __call__(self) -> object:
        """Take the rows."""
        take = self.open() if self._take is None else self._take
        return take(self._now), take


def _ours(options: dict[str, Any], path: Path) -> Take:
    """Open a table of max_weights."""
    import max_weights

    table = max_weights.table(path, NAME, **options)
    return lambda ids: table.take(ids, framework="numpy")


def _mapped(path: Path) -> Take:
    """Map the file, and index the map with the ids."""
    start, rows = layout(path)
    table = np.memmap(path, np.uint8, "r", start, (rows, WIDTH))
    return lambda ids: table[ids]


def _pread(path: Path) -> Take:
    """Read each row by a separate call, in threads that share the ids evenly."""
    start, _ = layout(path)
    descriptor, pool = os.open(path, os.O_RDONLY), ThreadPoolExecutor(THREADS)

    def take(ids: Array) -> object:
        memory, places = np.empty((len(ids), WIDTH), np.uint8), np.arange(len(ids))
        view = memory.data.cast("B")

        def read(part: Array) -> None:
            for place, row in zip(part.tolist(), ids[part].tolist(), strict=True):
                if os.preadv(descriptor, [view[place * WIDTH : (place + 1) * WIDTH]], start + row * WIDTH) != WIDTH:
                    raise harness.BenchError(f"{path}: a short read of row {row}")

        list(pool.map(read, np.array_split(places, THREADS)))
        return memory

    return take


def _slices(path: Path) -> Take:
    """Take a slice of one row for each id, and join them."""
    from safetensors import safe_open

    opened: Any = safe_open(path, framework="numpy")
    table = opened.get_slice(NAME)
    return lambda ids: np.concatenate([table[row : row + 1] for row in ids.tolist()])


WAYS: Final[dict[str, tuple[Callable[[Path], Take], Opening]]] = {
    harness.OURS: (partial(_ours, {"cache": 0}), "once"),
    CACHED: (partial(_ours, {}), "before each run"),
    MAPPED: (_mapped, "in each run"),
    PREAD: (_pread, "once"),
    SLICES: (_slices, "in each run"),
}
"""How each loader takes rows, and when it opens the table for a cold run; for warm runs it does so once."""


def _prepare(way: str, count: int, kind: str, warm: bool, again: bool, wakes: bool, path: Path) -> Callable[[], object]:
    """Prepare the runs of one loader."""
    open_table, opening = WAYS[way]
    total = layout(path)[1]
    ids, others = (draw(total, count, kind, again=again, series=series) for series in (0, 0 if again else 1))
    return Run(ids, others, partial(open_table, path), "once" if warm else opening, FILLING if warm else 0, wakes)


def _loaders(
    count: int, kind: str = UNIFORM, *, warm: bool = False, again: bool = False, wakes: bool = True
) -> Callable[..., dict[str, harness.Loader]]:
    """Return a function that makes the loaders of some ways."""
    return lambda *ways: {way: partial(_prepare, way, count, kind, warm, again, wakes) for way in ways}


_OURS: Final = (harness.OURS, CACHED)
_FAST: Final = (*_OURS, MAPPED, PREAD)
COLD: Final = {f"cold, {count:,} {kind}": (count, kind) for kind in (UNIFORM, ZIPF) for count in (FEW, MANY)}
WARM: Final = {f"warm, {count:,} {UNIFORM}": count for count in (FEW, MANY)}
AGAIN: Final = f"warm, {FEW:,} {UNIFORM}, the same rows again"
MEMORY: Final = {f"peak memory without the result, {count:,} rows": count for count in (MANY, ALL)}
# A call for each row is so slow that it takes the fewest rows only.
CASES: harness.Cases = {
    **{
        label: _loaders(count, kind)(*_FAST, *((SLICES,) if (count, kind) == (FEW, UNIFORM) else ()))
        for label, (count, kind) in COLD.items()
    },
    **{
        label: _loaders(count, warm=True)(*_FAST, *((SLICES,) if count == FEW else ())) for label, count in WARM.items()
    },
    AGAIN: _loaders(FEW, warm=True, again=True)(*_FAST, SLICES),
    **{label: _loaders(count, wakes=False)(*_OURS) for label, count in MEMORY.items()},
}


def fio(path: Path, reads: int, seeds: range) -> list[float]:
    """Return the seconds of random direct reads of 4 KiB, once for each seed, without fio's own start.

    Raises:
        Unavailable: fio is missing, or does not run here.
    """
    program = shutil.which("fio")
    if program is None:
        raise harness.Unavailable("fio is not installed")
    name = str(path).replace(":", "\\:")  # a colon separates files
    command = [program, "--name=rows", f"--filename={name}", "--readonly", "--rw=randread", "--bs=4k", "--direct=1"]
    command += ["--ioengine=io_uring", "--iodepth=64", f"--number_ios={reads}", "--norandommap"]
    # It would end after as many bytes as the file has, which is fewer for small files.
    command += ["--io_size=1t", "--output-format=json"]
    seconds: list[float] = []
    for seed in seeds:
        done = subprocess.run([*command, f"--randseed={seed + 1}"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise harness.Unavailable(f"fio failed: {(done.stderr or done.stdout)[-200:].strip()}")
        found = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["read"]
        if found["total_ios"] < reads:
            raise harness.BenchError(f"fio made {found['total_ios']} of {reads} reads")
        seconds.append(found["runtime"] / 1e3)
    return seconds


def warm_up(path: Path) -> None:
    """Read a file once, so that it is in the page cache.

    Raises:
        Unavailable: the memory is too small for it.
    """
    block = bytearray(_BLOCK)
    with path.open("rb", buffering=0) as file:
        while file.readinto(block):
            pass
    if (fraction := harness.cached_fraction(path)) < 0.95:
        raise harness.Unavailable(f"only {fraction:.1%} of {path} stays in the page cache: set a smaller ROWS_GB")


def pages_left(bench: Path, case: str, path: Path) -> int:
    """Return how many pages of the file a cold take with an open table leaves in the page cache."""
    pages = -(-path.stat().st_size // mmap.PAGESIZE)
    with harness.Worker(bench, case, harness.OURS, path) as worker:
        worker.time(1)  # opens the table, which reads the header
        harness.evict(path)
        before = harness.cached_fraction(path)
        worker.time(1)
        return round((harness.cached_fraction(path) - before) * pages)


def _reads(path: Path, count: int, kind: str) -> int:
    """Return the reads of fio: as many as there are ids, or for Zipf as there are pages with such rows."""
    if kind == UNIFORM:
        return count
    start, rows = layout(path)
    first = start + next(draw(rows, count, kind)) * WIDTH
    return len(np.unique(np.concatenate([first, first + WIDTH - 1]) // _PAGE))


@dataclass
class Results:
    """The columns and samples of the report."""

    columns: list[Column] = field(default_factory=list)
    samples: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, label: str, seconds: dict[str, list[float]]) -> dict[str, float]:
        """Add a column of times, and return its medians."""
        self.samples[label] = seconds
        medians = {loader: float(np.median(of)) for loader, of in seconds.items()}
        self.columns.append(Column(label, "ms", medians))
        return medians


def _cold(bench: Path, path: Path, small: bool, results: Results) -> tuple[list[Target], list[str]]:
    """Time takes of rows that are on the disk; return the targets and notes."""
    targets, missing = list[Target](), list[str]()
    rounds = (1, 0) if small else FIO_ROUNDS
    for label, (count, kind) in COLD.items():
        reads, limit = _reads(path, count, kind), list[float]()
        seeds = (range(rounds[0]), range(rounds[0], sum(rounds)))
        try:
            limit += fio(path, reads, seeds[0])
        except harness.Unavailable as reason:
            missing = [f"Without the limit: {reason}."]
        effort = harness.QUICK if small else ROUNDS
        timings = harness.alternate(bench, label, CASES[label], path, effort=effort, cold=True)
        seconds = {loader: timing.seconds for loader, timing in timings.items()}
        if limit:
            seconds[FIO] = limit + fio(path, reads, seeds[1])
        values = results.add(label, seconds)
        if kind == UNIFORM:
            bounds = {FIO: 0.9, MAPPED: 3.0, PREAD: 1.5}
            targets += [
                Target(f"{label}: {rival} ÷ ours", values[rival] / values[harness.OURS], bound, "at least")
                for rival, bound in bounds.items()
                if rival in values
            ]
    left = pages_left(bench, f"cold, {MANY:,} {UNIFORM}", path)
    targets.append(Target("resident pages of the rows", left, HEADER_PAGES, "at most", "pages"))
    return targets, [f"After a cold take of {MANY:,} rows, {left:,} pages of its file are in the page cache.", *missing]


def _memory(bench: Path, path: Path, small: bool, results: Results) -> list[Target]:
    """Take the peak memory of cold takes, without that of the result; return the targets."""
    targets = list[Target]()
    for label, count in MEMORY.items():
        harness.evict(path)
        memory = harness.peak_memory(bench, label, CASES[label], path, runs=1 if small or count == ALL else 3)
        peaks = {loader: max(0.0, float(one.peak - count * WIDTH)) for loader, one in memory.items()}
        results.columns.append(Column(label, "MB", peaks, charted=False))
        targets.append(Target(label, peaks[harness.OURS] / 1e6, 64.0, "at most", "MB"))
    return targets


def measure(folder: Path, small: bool) -> Report:
    """Time takes of cold and of warm rows, and take the peak memory."""
    bench, path, results = Path(__file__), make(folder, small), Results()
    targets, notes = _cold(bench, path, small, results)
    warm_up(path)
    for label in (*WARM, AGAIN):
        effort = harness.QUICK if small else harness.Effort()
        timings = harness.alternate(bench, label, CASES[label], path, effort=effort)
        values = results.add(label, {loader: timing.seconds for loader, timing in timings.items()})
        if label in WARM:
            ratio = values[harness.OURS] / values[MAPPED]
            targets.append(Target(f"{label}: ours ÷ {MAPPED}", ratio, 1.5, "at most"))
    targets += _memory(bench, path, small, results)
    return Report(
        "rows",
        results.columns,
        targets=tuple(targets),
        limits=frozenset({FIO}),
        notes=(
            f"Rows of {WIDTH} bytes from a file of {path.stat().st_size / 1e9:.2f} GB, to an array of NumPy; each run "
            f"takes new ids. **{harness.OURS}** is `table(path, cache=0).take(ids)`. For cold runs the default cache "
            "is empty, and the maps of NumPy and safetensors are new. For warm runs they are kept and in use. "
            "Often used rows of Zipf's law are neighbours. fio makes a read for each uniform id, and one for each "
            "page with rows of Zipf's law. Peak memory is that of a cold take, less the bytes of the result.",
            *notes,
        ),
        samples=results.samples,
    )
