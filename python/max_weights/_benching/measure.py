"""`bench`: which loaders run, in which order and how often, and which are left out for lack of time or memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from max_weights._benching import on_device
from max_weights._benching.loaders import LOADERS, PACKAGES, chosen
from max_weights._benching.result import CONDITIONS, ON_DEVICE, BenchResult, BenchRow
from max_weights._benching.worker import TIME_WAS_UP, LoaderFailed, Worker
from max_weights._core import files, infos, shown
from max_weights._devices import Accelerator
from max_weights._devices import place as placed
from max_weights._weights import GGUFWeights, PytorchWeights, load_weights
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    from max_weights._benching.loaders import Answer

__all__ = ["bench"]

ROUNDS = 5
STAYS_CACHED = 0.02
"""If more than this part of a file is in memory after it was dropped, it is not cold."""


def bench(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    against: Iterable[str] | None = None,
    *,
    cold: bool = True,
    seconds: float = 60.0,
    progress: Callable[[str], object] | None = None,
    device: object = None,
) -> BenchResult:
    """Measure how long this checkpoint takes to load: with this package, with other packages, and at the least.

    Each loader runs in a process of its own, which imports what it needs and runs once before the clock counts; then
    they take turns, up to five times. `call` is the time of the call alone, `touched` that until one byte of every page
    has been read, both with the file in the page cache; `cold` is the latter with the file dropped from it. A loader
    that copies to memory of its own is not measured if that takes more than half of the free memory. Print the result,
    or use `as_dict()`.

    With a GPU as `device`, a run ends when the GPU has everything. `first` is the first run of a process, `warm` a
    later one with the file in the page cache, `cold` one with the file dropped from it. The limit is a copy of as many
    bytes from pinned memory. The tensors of a first run are compared with the file, outside the measured time.

    Args:
        path: A file, a directory, an index, several files, or a model in the local Hugging Face cache.
        against: Any of "safetensors", "torch", "gguf", "runai" and "fastsafetensors", for a GPU with "instanttensor"
            and without "gguf"; `None` for those that are installed and read the format, () for none.
        cold: Whether to drop the files from the page cache, which affects other programs that read them.
        seconds: When to stop, whatever is left to do. One round is always completed.
        progress: Called with the next step, in words.
        device: A GPU to load to, such as "cuda" or "cuda:1"; `None` for host memory.

    Raises:
        ArgumentError: a name in `against` that is not known, or whose package does not read the format (a ValueError).
        ImportError: a package that `against` names is not installed.
        WeightsError: the checkpoint cannot be opened.
        DeviceError: there is no such device.
    """
    begun = time.monotonic()
    kind, index = ("cpu", 0) if device is None else placed(device)
    gpu = None if kind == "cpu" else Accelerator(index).id
    paths = [path] if isinstance(path, str | os.PathLike) else list(path)
    with load_weights(paths) as weights:
        places = [os.fspath(file) for file in files(weights)]
        form = {GGUFWeights: "gguf", PytorchWeights: "pytorch"}.get(type(weights), "safetensors")
        tensors = len(infos(weights))
    size = sum(os.stat(place).st_size for place in places)
    readers = _Readers(form, gpu is not None)
    names = readers.installed() if against is None else readers.named(against)
    measuring = _Measuring([os.fspath(one) for one in paths], places, begun + seconds, progress or (lambda _: None))
    conditions = CONDITIONS if gpu is None else ON_DEVICE
    rows = {
        name: BenchRow(name, readers.of(name), {condition: [] for condition in conditions})
        for name in chosen(form, names, readers.loaders)
    }
    try:
        if gpu is None:
            measuring.measure(rows, size, cold)
        else:
            measuring.measure_on(gpu, rows, cold)
    finally:
        measuring.close()
    on = "" if gpu is None else f"cuda:{gpu}"
    return BenchResult(places, form, size, tensors, list(rows.values()), measuring.not_cold, on)


class _Measuring:
    def __init__(self, paths: list[str], places: list[str], until: float, progress: Callable[[str], object]) -> None:
        self._paths, self._places, self._until, self._progress = paths, places, until, progress
        self._workers: dict[str, Worker] = {}
        self.not_cold = ""

    def measure(self, rows: dict[str, BenchRow], size: int, cold: bool) -> None:
        """Fill the rows: all loaders in turns, or one after the other if their memory does not fit together."""
        self.not_cold = "" if cold else "it was not asked for"
        free = _available_memory() // 2
        copies = [name for name in rows if LOADERS[name].copies]
        if copies and size > free:
            why = f"it takes {size / 1e9:.1f} GB of memory, but {2 * free / 1e9:.1f} GB are free"
            for name in copies:
                rows[name].failed = why
        measurable = [name for name, row in rows.items() if not row.failed]
        together = size * len([name for name in measurable if LOADERS[name].copies]) <= free
        for group in [measurable] if together else [[name] for name in measurable]:
            self._begin([rows[name] for name in group])
            self._rounds([rows[name] for name in group if not rows[name].failed], cold)
            self.close()

    def _begin(self, rows: list[BenchRow]) -> None:
        for row in rows:
            self._progress(f"{row.loader}: first run")
            self._workers[row.loader] = Worker(row.loader, self._places if row.of else self._paths)
            if (answer := self._run(row, touched=True)) is not None:
                row.peak = answer["peak"]

    def _rounds(self, rows: list[BenchRow], cold: bool) -> None:
        """Do one round of everything before the second of anything."""
        for number in range(ROUNDS):
            for row in rows if number % 2 == 0 else reversed(rows):
                for condition in ("call", "touched", "cold"):
                    if (
                        row.failed
                        or time.monotonic() > self._until
                        or (condition == "cold" and not self._dropped(cold))
                    ):
                        continue
                    self._progress(f"{row.loader}: {condition}, round {number + 1} of {ROUNDS}")
                    if (answer := self._run(row, touched=condition != "call")) is not None:
                        row.seconds[condition].append(answer["seconds"])
                        if condition == "cold":
                            row.read.append(answer["read"])

        for row in rows:
            if not row.failed and not row.seconds["touched"]:
                row.failed = TIME_WAS_UP

    def measure_on(self, device: int, rows: dict[str, BenchRow], cold: bool) -> None:
        """Fill the rows of a device: all loaders in turns; a first run of each is checked, and a second one watched."""
        self.not_cold = "" if cold else "it was not asked for"
        for row in rows.values():
            self._progress(f"{row.loader}: first run")
            self._workers[row.loader] = Worker(row.loader, self._places if row.of else self._paths, device)
            for request, condition in (("checked", "first"), ("memory", "")):
                answer = {} if row.failed else self._ask(row, request, condition) or {}
                row.failed = row.failed or answer.get("wrong", "")
                row.peak, row.device_peak = answer.get("host_peak", 0), answer.get("device_peak", 0)
        for number in range(ROUNDS):
            ordered = list(rows.values())
            for row in ordered if number % 2 == 0 else reversed(ordered):
                for condition in ("warm", "cold"):
                    limit = row.of == "limit" and condition == "cold"  # the limit reads no file
                    if (
                        row.failed
                        or limit
                        or time.monotonic() > self._until
                        or (condition == "cold" and not self._dropped(cold))
                    ):
                        continue
                    self._progress(f"{row.loader}: {condition}, round {number + 1} of {ROUNDS}")
                    self._ask(row, "call", condition)
        for row in rows.values():
            row.failed = row.failed or ("" if row.seconds["warm"] else TIME_WAS_UP)

    def _ask(self, row: BenchRow, request: str, condition: str) -> Answer | None:
        """Run a loader of a device, and record its time as that of `condition`."""
        try:
            answer = self._workers[row.loader].ask(request, self._until)
        except LoaderFailed as error:
            if not row.seconds["warm"] or str(error) != TIME_WAS_UP:
                row.failed = str(error)
            self._workers[row.loader].close()
            return None
        if condition:
            row.seconds[condition].append(answer["seconds"])
        if condition == "cold":
            row.read.append(answer["read"])
        return answer

    def _dropped(self, cold: bool) -> bool:
        if cold and not self.not_cold:
            self.not_cold = drop(self._places)
        return not self.not_cold

    def _run(self, row: BenchRow, *, touched: bool) -> Answer | None:
        try:
            return self._workers[row.loader].run(touched=touched, until=self._until)
        except LoaderFailed as error:
            if not row.seconds["touched"] or str(error) != TIME_WAS_UP:
                row.failed = str(error)
            self._workers[row.loader].close()
            return None

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()


def drop(places: list[str]) -> str:
    """Drop files from the page cache; return "", or the reason why that did not work."""
    for place in places:
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
        left = _cached_fraction(place)
        if left > STAYS_CACHED:
            return f"{left:.0%} of '{shown(place)}' stays in memory: it is on a RAM disk, or another process maps it"
    return ""


def _cached_fraction(place: str) -> float:
    libc = ctypes.CDLL(None, use_errno=True)
    with open(place, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapping:
        pages = -(-len(mapping) // mmap.PAGESIZE)
        resident = (ctypes.c_ubyte * pages)()
        first = ctypes.c_char.from_buffer(mapping)
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(mapping)), resident)
        del first  # the mapping cannot be closed while something points into it
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), place)
    return bytes(resident).count(1) / pages


def _available_memory() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        fields = dict(line.split(":", 1) for line in file)
    return int(fields["MemAvailable"].split()[0]) * 1024


class _Readers:
    """The packages that read a format, to host memory or to a device."""

    def __init__(self, form: str, on_a_device: bool) -> None:
        self.loaders = on_device.LOADERS if on_a_device else LOADERS
        packages = on_device.PACKAGES if on_a_device else PACKAGES
        self._form, self._packages = form, packages
        self._reading = [
            name for name in packages if any(one.of == name and form in one.formats for one in self.loaders.values())
        ]

    def of(self, loader: str) -> str:
        """Return the package of a row."""
        return self.loaders[loader].of

    def installed(self) -> list[str]:
        """Return the packages that can be measured."""
        return [name for name in self._reading if _is_installed(name)]

    def named(self, against: Iterable[str]) -> list[str]:
        """Return the requested packages, each of which must be known, suitable, and installed."""
        names = [against] if isinstance(against, str) else list(against)
        for name in names:
            if name not in self._packages:
                raise ArgumentError(f"against names {name!r}; it can name {', '.join(self._packages)}")
            if name not in self._reading:
                raise ArgumentError(f"{name} reads no {self._form} files; {', '.join(self._reading) or 'nothing'} does")
            if not _is_installed(name):
                raise ImportError(f"{name} is not installed: pip install {self._packages[name]}")
        return names


def _is_installed(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec({"runai": "runai_model_streamer"}.get(name, name)) is not None
