"""Rows of files that change, processes that fork, are interrupted or end, and threads that take at the same time."""

import concurrent.futures
import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import max_weights
from faults import attached, with_strace
from max_weights import ClosedError, FileChangedError
from max_weights.errors import ArgumentError
from refusals import refuses

ROWS = 20_000
WHOLE = np.random.default_rng(5).integers(0, 256, (ROWS, 160), dtype=np.uint8)
IDS = np.random.default_rng(6).integers(0, ROWS, 3000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "t.safetensors"
    safetensors.numpy.save_file({"t": WHOLE}, path)
    return path


@pytest.mark.parametrize("cache", [0, "64MB"])
@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("cold", [True, False])
@pytest.mark.parametrize("fault", ["truncated", "written"])
def test_a_file_that_changed_is_not_read(path: Path, fault: str, cold: bool, wait: bool, cache: Any) -> None:
    table = max_weights.table(path, "t", cache=cache)
    table.take([1])
    time.sleep(0.02)
    if fault == "truncated":
        os.truncate(path, 100_000)
    else:
        with path.open("r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(b"1234")
            os.fsync(file.fileno())
    if cold:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with refuses(FileChangedError):
        made = table.take(IDS, wait=wait)
        made.result()
    with refuses(FileChangedError):
        table.take([1])  # also if it is in the cache


_TAKING = """
import sys, numpy as np, max_weights
table = max_weights.table(sys.argv[1], "t", cache=0)
ids = np.random.default_rng(0).integers(0, len(table), 100_000)
print("ready", flush=True)
try:
    while True:
        table.take(ids)
except max_weights.FileChangedError:
    print("changed", flush=True)
"""


def test_a_file_truncated_under_a_take_ends_no_process(path: Path) -> None:
    for number in range(8):
        safetensors.numpy.save_file({"t": WHOLE}, path)
        command = [sys.executable, "-c", _TAKING, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(0.003 * number)
            os.truncate(path, 100_000)
            out, errors = process.communicate(timeout=30)
        assert (process.returncode, out, errors) == (0, "changed\n", "")


_FAILING = """
import os, sys, numpy as np, max_weights
path = sys.argv[1]
table = max_weights.table(path, "t", cache=0)
table.take([1])
print("ready", flush=True)
sys.stdin.readline()
file = os.open(path, os.O_RDONLY)
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
try:
    table.take(np.arange(0, len(table), 100))
except OSError as error:
    print(error.errno, error.filename, flush=True)
"""


@with_strace
def test_a_disk_that_cannot_be_read_is_an_error_that_names_the_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
    environment = {**os.environ, "MAX_WEIGHTS_IO_URING": "0"}
    command = [sys.executable, "-c", _FAILING, str(path)]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        watcher = attached(process.pid, path.with_name("log"), "pread64:error=EIO:when=5+", "pread64")
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == f"{errno.EIO} {path}\n"
        process.wait()
    watcher.communicate()


def test_a_replaced_file_is_read_on(path: Path) -> None:
    table = max_weights.table(path, "t", cache=0)
    safetensors.numpy.save_file({"t": WHOLE[::-1].copy()}, path.with_name("new"))
    path.with_name("new").replace(path)
    assert np.array_equal(table.take(IDS, framework="numpy"), WHOLE[IDS])
    path.unlink()
    assert np.array_equal(table.take(IDS, framework="numpy"), WHOLE[IDS])


def test_values_written_to_a_view_are_those_of_the_rows(path: Path) -> None:
    weights = max_weights.load_weights(path)
    view = weights["t"].data().to_numpy()
    view[[3, 19_999]] = 7
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    cached = max_weights.table(weights, "t")
    for table in (max_weights.table(weights, "t", cache=0), cached):
        for ids in ([3, 4, 19_999], IDS, [3] * 5):
            assert np.array_equal(table.take(ids, framework="numpy"), np.asarray(view)[ids])
    view[IDS] = 9  # some of these rows are in the cache
    assert np.all(cached.take(IDS, framework="numpy") == 9)


def test_a_closed_checkpoint_gives_no_rows_but_those_on_their_way(path: Path) -> None:
    weights = max_weights.load_weights(path)
    table = max_weights.table(weights, "t")
    pending = table.take(IDS, wait=False, framework="numpy")
    weights.close()
    assert np.array_equal(pending.result(), WHOLE[IDS])
    with refuses(ClosedError):
        table.take([1])
    with refuses(ClosedError):
        table.hint([1])


def test_many_threads_share_a_table(path: Path) -> None:
    table = max_weights.table(path, "t", cache="200kB")

    def take(seed: int) -> bool:
        ids = np.random.default_rng(seed).integers(0, ROWS, 700)
        table.hint(ids[::-1])
        pending = table.take(ids, wait=False, framework="numpy")
        return np.array_equal(table.take(ids, framework="numpy"), WHOLE[ids]) and np.array_equal(
            pending.result(), WHOLE[ids]
        )

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(take, range(40)))


def forked(work: Callable[[], object]) -> int:
    """The status of a child that runs `work`."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore")  # Python and JAX warn of a fork beside threads
def test_a_forked_child_reads_rows_itself(path: Path) -> None:
    table = max_weights.table(path, "t")
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            table.take(IDS)
            table.hint(IDS)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    pending = table.take(IDS, wait=False)

    def child() -> None:
        table.hint(IDS)
        assert np.array_equal(table.take(IDS, framework="numpy"), WHOLE[IDS])
        assert not pending.done()
        with pytest.raises(ArgumentError, match="request them again in the child"):
            pending.result()

    statuses = [forked(child) for _ in range(5)]
    stop.set()
    for thread in threads:
        thread.join()
    assert statuses == [0] * 5
    pending.result()


def test_the_error_of_pending_rows_is_raised_once(path: Path) -> None:
    table = max_weights.table(path, "t", cache=0)
    time.sleep(0.02)
    os.truncate(path, 100_000)
    pending = table.take(IDS, wait=False)
    with refuses(FileChangedError):
        pending.result()
    with refuses(ArgumentError):
        pending.result()
    assert pending.done()


def test_pending_rows_that_nobody_takes_end(path: Path) -> None:
    table = max_weights.table(path, "t", cache=0)
    out = np.zeros((3000, 160), np.uint8)
    for _ in range(20):
        table.take(IDS, out=out, wait=False)
    gc.collect()
    until = time.monotonic() + 20
    while sys.getrefcount(out) > 2 and time.monotonic() < until:
        time.sleep(0.01)
    assert sys.getrefcount(out) == 2


_ENDING = """
import os, sys, signal, threading, time, numpy as np, max_weights
path, how = sys.argv[1:]
table = max_weights.table(path, "t", cache=0)
ids = np.random.default_rng(0).integers(0, len(table), 3_000_000)
if how == "exit":
    pending = table.take(ids, wait=False)
    table.hint(ids)
    sys.exit(7)
def interrupt():
    time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
began = time.monotonic()
try:
    if how == "take":
        while True:
            table.take(ids)
    else:
        while True:
            table.take(ids, wait=False).result()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("how", ["take", "pending", "exit"])
def test_ctrl_c_and_the_end_of_the_process_are_prompt(path: Path, how: str) -> None:
    run = subprocess.run([sys.executable, "-c", _ENDING, str(path), how], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (7 if how == "exit" else 0, "")
    assert run.stdout == ("" if how == "exit" else "interrupted\n")


def test_an_interrupt_leaves_the_table_usable(path: Path) -> None:
    table = max_weights.table(path, "t")

    def interrupt(*_: object) -> None:
        raise TimeoutError

    def take() -> None:
        while True:
            table.take(np.resize(IDS, 500_000))

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(TimeoutError):
            take()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert np.array_equal(table.take(IDS, framework="numpy"), WHOLE[IDS])
