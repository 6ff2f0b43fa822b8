"""Failures while many weights are loaded: the error names them, nothing leaks, and the next load works."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import max_weights
from max_weights import FileChangedError
from refusals import refuses

BACKENDS = ["mmap", "read", "direct"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """64 MB in 16 tensors."""
    path = tmp_path / "model.safetensors"
    save_file({f"t{i:02}": np.full(1 << 20, i, np.float32) for i in range(16)}, path)
    return path


def left_behind(path: Path) -> int:
    """Descriptors and mappings of the file."""
    descriptors = of_each("fd", os.readlink).count(str(path))
    mappings = Path("/proc/self/maps").read_text().count(str(path))
    return descriptors + mappings


def of_each(folder: str, ask: Callable[[Path], str]) -> list[str]:
    found = []
    for entry in Path("/proc/self", folder).iterdir():
        with contextlib.suppress(OSError):  # gone meanwhile
            found.append(ask(entry))
    return found


def check_next_load(path: Path) -> None:
    with max_weights.load_weights(path) as weights:
        loaded = weights.load(copy=True, framework="numpy")
    assert [int(tensor[-1]) for tensor in loaded.values()] == list(range(16))


class Gone(Exception):
    pass


@pytest.mark.parametrize("dtype", [None, "float64"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_callback_that_raises_ends_the_load_wherever_it_is(path: Path, backend: Any, dtype: str | None) -> None:
    for call in range(4):
        calls = []

        def progress(done: int, total: int, call: int = call, calls: list[int] = calls) -> None:
            calls.append(done)
            if len(calls) > call or done == total:
                raise Gone(f"at {done} of {total}")

        with max_weights.load_weights(path) as weights, pytest.raises(Gone, match=r"at \d+ of \d+"):
            weights.load(backend=backend, dtype=dtype, progress=progress)
        assert left_behind(path) == 0
    check_next_load(path)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_file_that_is_truncated_during_a_load_is_an_error_and_kills_nobody(path: Path, backend: Any) -> None:
    content = path.read_bytes()
    for size in (len(content) // 2, 4096, 0):
        with max_weights.load_weights(path) as weights:

            def progress(done: int, _: int, size: int = size) -> None:
                if done == 0:
                    os.truncate(path, size)

            with refuses(FileChangedError, "file.truncated"):
                weights.load(backend=backend, copy=backend != "mmap", progress=progress)
        assert left_behind(path) == 0
        path.write_bytes(content)
        check_next_load(path)


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_that_is_too_small_is_refused_before_a_byte_is_written(path: Path, backend: Any) -> None:
    with max_weights.load_weights(path) as weights:
        good, small = np.zeros(1 << 20, np.float32), np.zeros((1 << 20) - 1, np.float32)
        with refuses(ValueError):
            weights.load(backend=backend, out={"t03": good, "t04": small})
        assert not good.any()
        assert not small.any()
    assert left_behind(path) == 0
    check_next_load(path)


FORKS = """
import os, sys, threading
import max_weights
path = sys.argv[1]
weights = max_weights.load_weights(path)
# What is imported is imported before: a child that is forked during an import waits for ever, whatever is imported.
weights.load(copy=True, dtype="float64", framework="numpy")
stop = threading.Event()

def again_and_again():
    while not stop.is_set():
        weights.load(copy=True, backend="read")

threads = [threading.Thread(target=again_and_again) for _ in range(2)]
for thread in threads:
    thread.start()
try:
    for _ in range(5):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                loaded = weights.load(copy=True, dtype="float64", framework="numpy")
                status = 0 if [int(tensor[0]) for tensor in loaded.values()] == list(range(16)) else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
finally:
    stop.set()
    for thread in threads:
        thread.join()
print("whole", flush=True)
"""


def test_loads_in_threads_and_a_fork_in_the_middle_disturb_nobody(path: Path) -> None:
    # In a separate process, because JAX warns about forks of a process with its threads.
    command = [sys.executable, "-W", "ignore", "-c", FORKS, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr


LOADS = """
import os, sys
import numpy
import max_weights
path, backend, dtype = sys.argv[1:]
weights = max_weights.load_weights(path)
options = {"backend": backend, "copy": backend != "mmap", "dtype": dtype or None}
weights.load(**options)
before = len(os.listdir("/proc/self/fd"))
print("ready", flush=True)
interrupted = 0
while interrupted < 12:
    try:
        while True:
            loaded = weights.load(**options)
    except KeyboardInterrupt:
        interrupted += 1
        loaded = None
        print("interrupted", flush=True)
assert len(os.listdir("/proc/self/fd")) == before
numbers = [float(tensor.to_numpy()[0]) for tensor in weights.load(**options).values()]
assert numbers == [float(number) for number in range(16)], numbers
print("whole", flush=True)
"""


@pytest.mark.parametrize(("backend", "dtype"), [("mmap", ""), ("read", ""), ("direct", ""), ("read", "float64")])
def test_ctrl_c_ends_a_load_at_any_point_and_the_next_one_is_whole(path: Path, backend: str, dtype: str) -> None:
    command = [sys.executable, "-c", LOADS, str(path), backend, dtype]
    chance = random.Random(f"{backend} {dtype}")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        read: Callable[[], str] = process.stdout.readline
        assert read() == "ready\n"
        for _ in range(12):
            threading.Event().wait(chance.uniform(0, 0.04))
            process.send_signal(signal.SIGINT)
            assert read() == "interrupted\n"
        assert read() == "whole\n"
    assert process.returncode == 0
