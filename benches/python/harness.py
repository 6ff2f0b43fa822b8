"""How the benches time: one process per loader, the rivals taking turns, medians, and memory from fresh processes.

A bench is a module of this folder with `TITLE`, `CASES` and `measure(folder, small) -> Report`. `CASES` maps each case
to loaders by name. A loader takes the file's path, does all untimed work (imports, and opening unless that is
measured), and returns the function that is timed. If the function has an attribute `before`, it is called before each
run, off the clock.

Four rules keep the figures honest. Each loader runs in a separate process that keeps its heap (`MALLOC_MMAP_MAX_=0`),
because page faults of new memory are the loudest noise on virtual machines. Loaders alternate, so that a slow second of
the machine affects all of them. A run's result is dropped after the clock has stopped. Before a cold run, the harness
allocates, touches and frees 1.5 times the file's size: otherwise the page cache would take first-touched pages.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Final, Self

Loader = Callable[[Path], Callable[[], object]]
Cases = dict[str, dict[str, Loader]]

OURS: Final = "max_weights"
RETAINED_HEAP: Final = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}
_BURST_SECONDS: Final = 0.05
_BURST_MOST: Final = 200


class BenchError(Exception):
    """A loader failed, or the machine does not support the measurement; the message names the loader and its error."""


class Unavailable(BenchError):
    """This machine lacks a requirement of a bench, which the message names; the other benches still run."""


@dataclass(frozen=True)
class Effort:
    """How long a case is measured: rounds of all loaders until `seconds` have gone, within [least, most] rounds."""

    least: int = 5
    most: int = 25
    seconds: float = 12.0


QUICK: Final = Effort(least=1, most=1, seconds=0.0)


@dataclass
class Timing:
    """The measurements of one loader per round: seconds (the median of a burst of calls), bytes read from a disk."""

    loader: str
    seconds: list[float] = field(default_factory=list)
    read: list[int] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Median seconds over the rounds."""
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Memory:
    """Bytes that one call adds to a fresh process: at its peak, and while its result is held, without and with the
    pages of mapped files.
    """

    loader: str
    peak: int
    own: int
    held: int


def load_module(path: Path) -> ModuleType:
    """Import a bench module by its path."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise BenchError(f"{path} is not a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def other_version(requirement: str, load: Loader) -> Loader:
    """Return a loader that runs with another version of a package, such as `safetensors-0.9.0rc1`.

    The Makefile installs it to a separate folder, which comes first on the search path of the loader's process.
    """

    def prepare(path: Path) -> Callable[[], object]:
        folder = Path(sys.prefix) / "rivals" / requirement
        if not folder.is_dir():
            raise BenchError(f"{requirement} is missing: `make bench` installs it to {folder}")
        sys.path.insert(0, str(folder))
        return load(path)

    return prepare


class Worker:
    """A process that prepares one loader and runs it on request."""

    def __init__(self, bench: Path, case: str, loader: str, target: Path, *, retain_heap: bool = True) -> None:
        self.loader = loader
        self._name = f"{bench.stem}: {case}: {loader}"
        environment = os.environ | (RETAINED_HEAP if retain_heap else {})
        command = [sys.executable, str(Path(__file__).resolve()), str(bench), case, loader, str(target)]
        # A file, because a full pipe without a reader would block a library that prints much.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the worker)
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )

    def ask(self, request: str) -> dict[str, object]:
        """Send one request and return the answer; a loader that fails is a BenchError with its last words."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(request + "\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._process.wait()
            self._errors.seek(0)
            reported = [text for text in self._errors.read().splitlines() if text.strip()]
            last = reported[-1] if reported else f"exit status {self._process.returncode}"
            raise BenchError(f"{self._name} failed: {last}")
        answer: dict[str, object] = json.loads(line)
        return answer

    def time(self, burst: int) -> tuple[list[float], int]:
        """Run `burst` times and return the seconds of each run, and the bytes that one had read from a disk."""
        answer = self.ask(f"time {burst}")
        seconds, read = answer["seconds"], answer["read"]
        assert isinstance(seconds, list)
        assert isinstance(read, int)
        return seconds, read

    def memory(self) -> Memory:
        """Run once and return the added memory; the figure is only valid for the first run of a process."""
        answer = self.ask("memory")
        peak, own, held = answer["peak"], answer["own"], answer["held"]
        assert isinstance(peak, int)
        assert isinstance(own, int)
        assert isinstance(held, int)
        return Memory(self.loader, peak, own, held)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()


def alternate(
    bench: Path,
    case: str,
    loaders: Iterable[str],
    target: Path,
    *,
    effort: Effort,
    cold: bool = False,
    companions: Sequence[Path] = (),
) -> dict[str, Timing]:
    """Time the loaders of a case on `target`, in turns.

    `cold` empties the page cache of the file before each run, and of those `companions` it, which some loaders read.
    """
    size = sum(file.stat().st_size for file in (target.iterdir() if target.is_dir() else [target]))
    workers = [Worker(bench, case, loader, target) for loader in loaders]
    timings = {worker.loader: Timing(worker.loader) for worker in workers}
    try:
        bursts: dict[str, int] = {}
        for worker in workers:  # one run that does not count, for imports on first use and a warm heap
            first = worker.time(2)[0][-1]
            bursts[worker.loader] = 1 if cold else max(1, min(_BURST_MOST, int(_BURST_SECONDS / max(first, 1e-9))))
        began = time.perf_counter()
        for turn in range(effort.most):
            if turn >= effort.least and time.perf_counter() - began > effort.seconds:
                break
            for worker in workers if turn % 2 == 0 else reversed(workers):
                if cold:
                    for file in (target, *companions):
                        evict(file)
                    touch_memory(3 * size // 2)
                seconds, read = worker.time(bursts[worker.loader])
                timings[worker.loader].seconds.append(statistics.median(seconds))
                timings[worker.loader].read.append(read)
    finally:
        for worker in workers:
            worker.__exit__(None, None, None)
    return timings


def first_calls(bench: Path, case: str, loaders: Iterable[str], target: Path, *, rounds: int) -> dict[str, Timing]:
    """Time the first call of fresh processes with an ordinary heap, in turns: the cost of a program that loads once."""
    timings = {loader: Timing(loader) for loader in loaders}
    for turn in range(rounds):
        for timing in timings.values() if turn % 2 == 0 else reversed(timings.values()):
            with Worker(bench, case, timing.loader, target, retain_heap=False) as worker:
                seconds, read = worker.time(1)
            timing.seconds += seconds
            timing.read.append(read)
    return timings


def peak_memory(bench: Path, case: str, loaders: Iterable[str], target: Path, *, runs: int = 3) -> dict[str, Memory]:
    """Return the median memory of each loader over fresh processes with an ordinary heap."""
    result: dict[str, Memory] = {}
    for loader in loaders:
        samples: list[Memory] = []
        for _ in range(runs):
            with Worker(bench, case, loader, target, retain_heap=False) as worker:
                samples.append(worker.memory())
        figures = zip(*((sample.peak, sample.own, sample.held) for sample in samples), strict=True)
        result[loader] = Memory(loader, *(int(statistics.median(values)) for values in figures))
    return result


def cached_fraction(path: Path) -> float:
    """Return the part of a file that is in the page cache, between 0 and 1."""
    size = path.stat().st_size
    pages = -(-size // mmap.PAGESIZE)
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapping:
        view = ctypes.c_char.from_buffer(mapping)
        resident = (ctypes.c_ubyte * pages)()
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(size), resident)
        del view
    if failed:
        raise BenchError(f"{path}: mincore: {os.strerror(ctypes.get_errno())}")
    return sum(byte & 1 for byte in bytes(resident)) / pages


def evict(path: Path) -> None:
    """Drop a file, or all files of a folder, from the page cache.

    Raises:
        BenchError: the file system keeps it (a RAM disk, a live mapping).
    """
    if path.is_dir():
        for file in path.iterdir():
            evict(file)
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    left = cached_fraction(path)
    if left > 0.02:
        raise BenchError(f"{path}: {left:.0%} of it stays in the page cache: name a folder on a disk with --dir")


def touch_memory(size: int) -> None:
    """Allocate memory of this size in huge pages, write to each page, and free it.

    The host of a virtual machine reclaims free memory after seconds, and the next access waits for it: up to 2 s per GB
    were observed.
    """
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for page in range(0, size, mmap.PAGESIZE):
            memory[page] = 1


def _status(*names: str) -> list[int]:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return [int(fields[name].split()[0]) * 1024 for name in names]


def _read_bytes() -> int:
    fields = dict(line.split(": ", 1) for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["read_bytes"])


def _before(call: Callable[[], object]) -> None:
    before: Callable[[], object] | None = getattr(call, "before", None)
    if before is not None:
        before()


def _timed(call: Callable[[], object], burst: int) -> dict[str, object]:
    seconds: list[float] = []
    read = _read_bytes()
    for _ in range(burst):
        _before(call)
        start = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - start)
        del result
    return {"seconds": seconds, "read": (_read_bytes() - read) // burst}


def _measured(call: Callable[[], object]) -> dict[str, int]:
    _before(call)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    resident, own_before = _status("VmRSS", "RssAnon")
    result = call()
    peak, own_after, held = _status("VmHWM", "RssAnon", "VmRSS")
    del result
    return {"peak": max(0, peak - resident), "own": max(0, own_after - own_before), "held": max(0, held - resident)}


def _serve(bench: str, case: str, loader: str, target: str) -> None:
    cases: Cases = load_module(Path(bench)).CASES
    call = cases[case][loader](Path(target))
    for line in sys.stdin:
        request, *arguments = line.split()
        gc.collect()
        answer = _timed(call, int(arguments[0])) if request == "time" else _measured(call)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    _serve(*sys.argv[1:])
