"""The machine's own limits for the bytes of a checkpoint: the limit rows of the loading benches.

No loader can be faster than the best of these. Memory is allocated before the clock runs, and reused; mapped pages are
touched. Run as a program, this module is the second reader of a disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np

from harness import BenchError, Loader
from rivals import shards

SEQUENTIAL: Final = "sequential read into one reused block"
COPY: Final = "readinto memory that is used again"
COPY_ALL_CORES: Final = "readinto the same, on all cores"
PLAIN: Final = "populate the mapping, 1 thread"
POPULATE_8: Final = "populate the mapping, 8 threads x 1 MiB"
POPULATE_32: Final = "populate the mapping, 32 threads x 1 MiB"
DIRECT: Final = {flight: f"direct reads, {flight} x 1 MiB in flight" for flight in (8, 16, 32, 64)}

_MIB: Final = 1 << 20
_HUGE_PAGE: Final = 2 * _MIB
_POPULATE_READ: Final = 22  # MADV_POPULATE_READ, Linux 5.14; Python has no name for it


def _pieces(files: list[Path], size: int) -> list[tuple[int, int, int]]:
    """(number of the file, offset, bytes) of all files, in order."""
    return [
        (number, start, min(size, length - start))
        for number, length in enumerate(file.stat().st_size for file in files)
        for start in range(0, length, size)
    ]


def _by_threads(threads: int, work: Callable[[int, int], object], items: int) -> Callable[[], None]:
    """Return a function that calls `work(thread, item)` for every item, in order, on a persistent pool."""
    pool = ThreadPoolExecutor(threads)

    def run() -> None:
        numbers = itertools.count()

        def each(thread: int) -> None:
            while (item := next(numbers)) < items:
                work(thread, item)

        for done in [pool.submit(each, thread) for thread in range(threads)]:
            done.result()

    return run


def sequential(path: Path) -> Callable[[], object]:
    """Read every byte, in order, into one block of 1 MiB."""
    block = bytearray(_MIB)

    def run() -> None:
        for file in shards(path):
            with file.open("rb", buffering=0) as opened:
                while opened.readinto(block):
                    pass

    return run


def copy(path: Path, threads: int = 1) -> Callable[[], object]:
    """Read every byte to its place in memory as large as the checkpoint."""
    files = shards(path)
    pieces = _pieces(files, 4 * _MIB)
    memory = memoryview(bytearray(sum(size for _, _, size in pieces)))
    starts = list(itertools.accumulate((size for _, _, size in pieces), initial=0))
    descriptors = [os.open(file, os.O_RDONLY) for file in files]

    def work(_: int, item: int) -> None:
        number, offset, size = pieces[item]
        if os.preadv(descriptors[number], [memory[starts[item] : starts[item] + size]], offset) != size:
            raise BenchError(f"{files[number]}: a short read at byte {offset}")

    return _by_threads(threads, work, len(pieces))


def populate(path: Path, threads: int) -> Callable[[], object]:
    """Map the files, let the kernel fill the page tables, piece by piece, and read a byte of every 4 KiB page."""
    files = shards(path)
    pieces = _pieces(files, _MIB)
    libc = ctypes.CDLL(None, use_errno=True)
    addresses: list[int] = []

    def work(_: int, item: int) -> None:
        number, offset, size = pieces[item]
        where = ctypes.c_void_p(addresses[number] + offset)
        if libc.madvise(where, ctypes.c_size_t(size), _POPULATE_READ):
            raise BenchError(f"{files[number]}: MADV_POPULATE_READ: {os.strerror(ctypes.get_errno())}")

    run = _by_threads(threads, work, len(pieces))

    def mapped() -> object:
        mappings = []
        for file in files:
            with file.open("rb") as opened:
                mappings.append(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY))
        arrays = [np.frombuffer(mapping, np.uint8) for mapping in mappings]
        addresses[:] = [array.ctypes.data for array in arrays]
        run()
        return sum(int(array[:: mmap.PAGESIZE].sum()) for array in arrays)

    return mapped


def huge_pages(size: int) -> memoryview:
    """Allocate memory in huge pages where available, so that a long request stays one request for the disk."""
    pages = mmap.mmap(-1, size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(pages, np.uint8)
    first = -array.ctypes.data % _HUGE_PAGE
    array[first : first + size : mmap.PAGESIZE] = 1
    return memoryview(pages)[first : first + size]


def direct(path: Path, in_flight: int) -> Callable[[], object]:
    """Read every byte by direct I/O, with `in_flight` requests, each into a separate block."""
    files = shards(path)
    pieces = _pieces(files, _MIB)
    blocks = huge_pages(in_flight * _MIB)
    descriptors = [os.open(file, os.O_RDONLY | os.O_DIRECT) for file in files]

    def work(thread: int, item: int) -> None:
        number, offset, size = pieces[item]
        if os.preadv(descriptors[number], [blocks[thread * _MIB : (thread + 1) * _MIB]], offset) != size:
            raise BenchError(f"{files[number]}: a short read at byte {offset}")

    return _by_threads(in_flight, work, len(pieces))


def _of(limit: Callable[..., Callable[[], object]], *arguments: Any) -> Loader:
    return lambda path: limit(path, *arguments)


DISK: Final[dict[str, Loader]] = {
    SEQUENTIAL: sequential,
    PLAIN: _of(populate, 1),
    POPULATE_8: _of(populate, 8),
    POPULATE_32: _of(populate, 32),
    **{label: _of(direct, flight) for flight, label in DIRECT.items()},
}
"""The ways to the bytes from a cold cache; the best of them is the limit."""

MEMORY: Final[dict[str, Loader]] = {
    COPY: copy,
    COPY_ALL_CORES: lambda path: copy(path, len(os.sched_getaffinity(0))),
    PLAIN: _of(populate, 1),
    POPULATE_8: _of(populate, 8),
}
"""The ways from a warm cache: copied, or mapped."""


@contextlib.contextmanager
def second_reader(path: Path) -> Iterator[None]:
    """Meanwhile another process reads `path` by direct I/O in a loop, 1 MiB at a time."""
    command = [sys.executable, str(Path(__file__).resolve()), str(path)]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert reader.stdout is not None
        if not reader.stdout.readline():  # it reports when it has begun
            raise BenchError(f"the second reader of {path} ended at once")
        yield
        if reader.poll() is not None:
            raise BenchError(f"the second reader of {path} ended with status {reader.returncode}")
    finally:
        reader.kill()
        reader.communicate()


def _read_on(path: Path) -> None:
    block = mmap.mmap(-1, _MIB)
    files = shards(path)
    descriptors = [os.open(file, os.O_RDONLY | os.O_DIRECT) for file in files]
    for turn, (number, offset, _) in enumerate(itertools.cycle(_pieces(files, _MIB))):
        os.preadv(descriptors[number], [block], offset)
        if turn == 0:
            print("reading", flush=True)


if __name__ == "__main__":
    _read_on(Path(sys.argv[1]))
