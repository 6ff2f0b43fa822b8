"""Shared by the benches of writing: runs that start from the same state of the disk, and the lower bound of a save.

A run is timed from memory to a file, or from files to files. The output of the previous run is removed or restored, and
all dirty pages are flushed, off the clock.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import harness

PIECE: Final = 4 << 20
CORES: Final = len(os.sched_getaffinity(0))


class Written:
    """A call that writes files, and the preparation of each run: see `harness.Loader`."""

    def __init__(self, call: Callable[[], object], path: Path, size: int, over: Path | None = None) -> None:
        """`call` writes about `size` bytes to `path`, a file or a folder; with `over`, over a copy of that file."""
        self._call, self._path, self._size, self._over = call, path, size, over

    def before(self) -> None:
        """Reset the disk and the memory before a run."""
        if self._over is None:
            remove(self._path)
        elif not self._path.exists():
            shutil.copyfile(self._over, self._path)
        os.sync()
        # Memory for the page cache: page faults of first-touched memory would be the loudest noise.
        harness.touch_memory(max(self._size, 1) * 3 // 2)

    def __call__(self) -> None:
        """Write."""
        self._call()


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Wait until a file, or each of a folder, is on the disk."""
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write(path: Path, memory: memoryview, sync: bool) -> None:
    """Write memory to a file sequentially, by one thread."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o666)
    try:
        for start in range(0, len(memory), PIECE):
            whole(os.write(descriptor, memory[start : start + PIECE]), memory[start : start + PIECE])
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_on_all_cores(path: Path, memory: memoryview, sync: bool, pool: ThreadPoolExecutor) -> None:
    """Write memory to a file, several pieces at a time."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o666)
    try:
        os.ftruncate(descriptor, len(memory))

        def one(start: int) -> None:
            piece = memory[start : start + PIECE]
            whole(os.pwrite(descriptor, piece, start), piece)

        for _ in pool.map(one, range(0, len(memory), PIECE)):
            pass
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def whole(written: int, piece: memoryview) -> None:
    """Fail if a piece was written partially: the figure would be too low."""
    if written != len(piece):
        raise harness.BenchError(f"{written} of {len(piece)} bytes were written")


def read_and_write(sources: Sequence[Path], path: Path, size: int, sync: bool, threads: int) -> Callable[[], None]:
    """Return a function that reads all of some files and writes `size` bytes to another: a conversion without work."""
    pieces = [(file, start) for file in sources for start in range(0, file.stat().st_size, PIECE)]
    each = -(-size // max(1, len(pieces)))
    own, pool = threading.local(), ThreadPoolExecutor(threads)

    def run() -> None:
        read = {file: os.open(file, os.O_RDONLY) for file in sources}
        written = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o666)

        def one(number: int) -> None:
            file, start = pieces[number]
            if not hasattr(own, "memory"):
                own.memory = memoryview(bytearray(max(PIECE, each)))
            os.preadv(read[file], [own.memory[:PIECE]], start)
            piece = own.memory[: max(0, min(each, size - number * each))]
            whole(os.pwrite(written, piece, number * each), piece)

        try:
            for _ in pool.map(one, range(len(pieces))):
                pass
            if sync:
                os.fsync(written)
        finally:
            for descriptor in (*read.values(), written):
                os.close(descriptor)

    return run
