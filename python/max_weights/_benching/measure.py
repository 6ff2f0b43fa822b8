"""`bench`: which loaders run, in which order and how often, and which are skipped for lack of time or memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from max_weights._benching.loaders import LOADERS, ON_DEVICE, PACKAGES, PACKAGES_ON_DEVICE, available_memory, chosen
from max_weights._benching.result import CONDITIONS, ON_DEVICE_CONDITIONS, BenchResult, BenchRow
from max_weights._benching.worker import TIME_WAS_UP, LoaderFailed, Worker
from max_weights._checking import files_of
from max_weights._checkpoints import opened
from max_weights._core import escape, file_identities, files, infos
from max_weights._devices import Accelerator, parse_device
from max_weights._weights import GGUFWeights, PytorchWeights
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    from max_weights._benching.loaders import Answer, Loader
    from max_weights._checkpoints import Checkpoint
    from max_weights._devices import DeviceLike

__all__ = ["bench"]

ROUNDS = 5
STAYS_CACHED = 0.02
"""If more than this part of a file is in memory after it was dropped, it is not cold."""


def bench(
    checkpoint: Checkpoint,
    against: str | Iterable[str] | None = None,
    *,
    cold: bool = True,
    seconds: float = 60.0,
    progress: Callable[[str], object] | None = None,
    device: DeviceLike | None = None,
) -> BenchResult:
    """Measure how long a checkpoint takes to load: with this package, with other packages, and a lower bound.

    Each loader runs in a separate process, which imports what it needs and runs once before the clock counts. The
    loaders then take turns, up to five times. The time `call` is that of the call alone; `touched` ends when one byte
    of every page has been read. Both have the file in the page cache; `cold` is `touched` with the file dropped from
    it. A loader that makes a copy is not measured if that takes more than half of the free memory.

    With a GPU as `device`, a run ends when the GPU has everything. The first run of a process is `first`; a later one
    is `warm` with the file in the page cache, `cold` with the file dropped from it. The bound is a copy of as many
    bytes from pinned memory. The tensors of a first run are compared with the file, outside the measured time.

    Args:
        checkpoint: A file, a folder, an index, several files, a model in the local Hugging Face cache, or a tree, whose
            files are measured.
        against: Any of "safetensors", "torch", "gguf", "runai" and "fastsafetensors", for a GPU with "instanttensor"
            and without "gguf"; `None` for those that are installed and read the format, () for none.
        cold: Whether to drop the files from the page cache, which affects other programs that read them.
        seconds: When to stop, even if measurements are missing. One round is always completed.
        progress: Called with the next step, in words.
        device: A GPU to load to, such as "cuda" or "cuda:1"; `None` for host memory.

    Returns:
        Rows, a summary and a table: print it, or use `as_dict()`.

    Raises:
        ArgumentError: a name in `against` that is not known, or whose package does not read the format; a checkpoint
            that has no files (a ValueError).
        ImportError: a package that `against` names is not installed.
        WeightsError: the checkpoint cannot be opened.
        DeviceError: there is no such device.

    Example:
        >>> result = max_weights.bench("model.safetensors", (), cold=False, seconds=1)
        >>> result.format, result.tensors
        ('safetensors', 5)
    """
    begun = time.monotonic()
    kind, index = ("cpu", 0) if device is None else parse_device(device)
    gpu = None if kind == "cpu" else Accelerator(index).id
    paths = [os.fspath(path) for path in files_of(checkpoint, "bench")]
    with opened(paths, "bench") as weights:
        places = [os.fspath(file) for file in files(weights)]
        form = {GGUFWeights: "gguf", PytorchWeights: "pytorch"}.get(type(weights), "safetensors")
        tensors, size = len(infos(weights)), sum(length for length, *_ in file_identities(weights))
    loaders, packages = (LOADERS, PACKAGES) if gpu is None else (ON_DEVICE, PACKAGES_ON_DEVICE)
    names = _rivals(form, loaders, packages, against)
    conditions = CONDITIONS if gpu is None else ON_DEVICE_CONDITIONS
    rows = [
        BenchRow(name, loaders[name].of, {condition: [] for condition in conditions})
        for name in chosen(form, names, loaders)
    ]
    measuring = _Measuring(paths, places, begun + seconds, progress or (lambda _: None), gpu, cold)
    try:
        measuring.measure(rows, size)
    finally:
        measuring.close()
    on = "" if gpu is None else f"cuda:{gpu}"
    return BenchResult(places, form, size, tensors, rows, measuring.not_cold, on)


class _Measuring:
    def __init__(
        self,
        paths: list[str],
        places: list[str],
        until: float,
        progress: Callable[[str], object],
        device: int | None,
        cold: bool,
    ) -> None:
        self._paths, self._places, self._until, self._progress = paths, places, until, progress
        self._device = device
        # {condition: the request}, and the condition that a loader needs a time for, to count as measured.
        host_tensors = {"call": "call", "touched": "touched", "cold": "touched"}
        self._requests, self._decisive = (
            (host_tensors, "touched") if device is None else ({"warm": "call", "cold": "call"}, "warm")
        )
        self._workers: dict[str, Worker] = {}
        self.not_cold = "" if cold else "it was not asked for"

    def measure(self, rows: list[BenchRow], size: int) -> None:
        """Fill the rows: all loaders in turns, or sequentially if their memory does not fit at the same time."""
        together = True
        if self._device is None:
            free = available_memory() // 2
            copying = [row for row in rows if LOADERS[row.loader].copies]
            if size > free:
                for row in copying:
                    row.failed = f"it takes {size / 1e9:.1f} GB of memory, but {2 * free / 1e9:.1f} GB are free"
            together = size * sum(not row.failed for row in copying) <= free
        measurable = [row for row in rows if not row.failed]
        for group in [measurable] if together else [[row] for row in measurable]:
            for row in group:
                self._begin(row)
            self._rounds(group)
            self.close()

    def _begin(self, row: BenchRow) -> None:
        """Run a loader for the first time; on a device check that, and watch a second run."""
        self._progress(f"{row.loader}: first run")
        self._workers[row.loader] = Worker(row.loader, self._places if row.of else self._paths, self._device)
        if self._device is None:
            row.peak = self._ask(row, "touched").get("peak", 0)
            return
        answer = self._ask(row, "checked", "first")
        row.failed = row.failed or answer.get("wrong", "")
        answer = {} if row.failed else self._ask(row, "memory")
        row.peak, row.device_peak = answer.get("host_peak", 0), answer.get("device_peak", 0)

    def _rounds(self, rows: list[BenchRow]) -> None:
        """Do one round of everything before the second of anything."""
        for number in range(ROUNDS):
            for row in rows if number % 2 == 0 else reversed(rows):
                for condition, request in self._requests.items():
                    if row.failed or time.monotonic() > self._until:
                        continue
                    # The bound of a device reads no file.
                    if condition == "cold" and (
                        (self._device is not None and row.of == "limit") or not self._dropped()
                    ):
                        continue
                    self._progress(f"{row.loader}: {condition}, round {number + 1} of {ROUNDS}")
                    self._ask(row, request, condition)
        for row in rows:
            row.failed = row.failed or ("" if row.seconds[self._decisive] else TIME_WAS_UP)

    def _ask(self, row: BenchRow, request: str, condition: str = "") -> Answer:
        """Run a loader, and record its time as that of `condition`; nothing is answered if it fails."""
        try:
            answer = self._workers[row.loader].ask(request, self._until)
        except LoaderFailed as error:
            if not row.seconds[self._decisive] or str(error) != TIME_WAS_UP:
                row.failed = str(error)
            self._workers[row.loader].close()
            return {}
        if condition:
            row.seconds[condition].append(answer["seconds"])
        if condition == "cold":
            row.read.append(answer["read"])
        return answer

    def _dropped(self) -> bool:
        self.not_cold = self.not_cold or drop(self._places)
        return not self.not_cold

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
            return f"{left:.0%} of '{escape(place)}' stays in memory: it is on a RAM disk, or another process maps it"
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


def _rivals(
    form: str, loaders: Mapping[str, Loader], packages: Mapping[str, str], against: str | Iterable[str] | None
) -> list[str]:
    """Return the packages to measure: the installed ones, or those that are named, which must be installed."""
    reading = [name for name in packages if any(one.of == name and form in one.formats for one in loaders.values())]
    if against is None:
        return [name for name in reading if _is_installed(name)]
    names = [against] if isinstance(against, str) else list(against)
    for name in names:
        if name not in packages:
            raise ArgumentError(f"against names {name!r}; it can name {', '.join(packages)}", rule="argument.choice")
        if name not in reading:
            raise ArgumentError(
                f"{name} reads no {form} files; {', '.join(reading) or 'nothing'} does", rule="argument.format"
            )
        if not _is_installed(name):
            raise ImportError(f"{name} is not installed: pip install {packages[name]}")
    return names


def _is_installed(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec({"runai": "runai_model_streamer"}.get(name, name)) is not None
