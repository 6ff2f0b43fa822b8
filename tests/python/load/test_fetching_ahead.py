"""Readahead: when tensors are taken one by one from a disk, the next ones are fetched in advance."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import harness
import max_weights
from max_weights.safetensors import safe_open


def readahead_threads() -> list[str]:
    """The kernel function of each readahead thread: `folio_wait_bit` while it waits for the disk."""
    found = []
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            if (thread / "comm").read_text().strip() == "max_weights-ahe":  # which the system truncates there
                found.append((thread / "wchan").read_text())
    return found


def wait_until(reached: Callable[[], bool]) -> bool:
    # Long, because a disk that other tests have just written to may take many seconds to answer.
    until = time.monotonic() + 200
    while not reached():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    # Not polled twice: a new thread has no name at first, so it would be missed once and then seen.
    return True


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    """32 MB in 8 tensors, and small ones, with a cold page cache."""
    path = tmp_path / "model.safetensors"
    large = {f"t{i}": np.full(1 << 20, i, np.float32) for i in range(8)}
    save_file(large | {f"s{i}": np.full(9, i, np.float32) for i in range(50)}, path)
    os.sync()
    try:
        harness.evict(path)
    except harness.BenchError as error:
        pytest.skip(f"needs a file system that gives up its cache: {error}")
    return path


@pytest.mark.parametrize("options", [{}, {"copy": True}, {"dtype": "float16"}])
def test_what_follows_the_first_tensor_is_fetched_and_no_thread_stays(cold: Path, options: dict[str, Any]) -> None:
    weights = max_weights.load_weights(cold)
    state = max_weights.lazy_state_dict(weights, **options)
    assert harness.cached_fraction(cold) < 0.2, "nothing is read before a tensor is taken"
    first = next(iter(state))
    state[first][...]
    assert wait_until(lambda: harness.cached_fraction(cold) > 0.98)
    assert wait_until(lambda: not readahead_threads()), readahead_threads()
    for i in range(8):
        assert int(state[f"t{i}"][...][-1]) == i
    assert not readahead_threads(), "what is in the page cache is not fetched"


def test_a_part_of_a_tensor_fetches_no_more(cold: Path) -> None:
    state = max_weights.lazy_state_dict(max_weights.load_weights(cold))
    assert int(state["t3"][:8][0]) == 3
    assert not readahead_threads()
    time.sleep(0.05)
    assert harness.cached_fraction(cold) < 0.5


@pytest.mark.parametrize("end", ["drop", "close"])
def test_the_end_of_the_dict_or_of_the_weights_ends_the_fetching(cold: Path, end: str) -> None:
    weights = max_weights.load_weights(cold)
    state = max_weights.lazy_state_dict(weights)
    state["t0"][...]
    if end == "close":
        weights.close()
    del state, weights
    assert wait_until(lambda: not readahead_threads()), readahead_threads()
    assert wait_until(lambda: str(cold) not in Path("/proc/self/maps").read_text())


class TestSafeOpen:
    """`safe_open` gives views of a mapping: taking one reads nothing by itself."""

    def test_the_first_whole_tensor_fetches_nothing_and_the_second_what_follows(self, cold: Path) -> None:
        with safe_open(cold, "pt") as file:
            tensors = [file.get_tensor("t0")]
            time.sleep(0.05)
            assert not readahead_threads()
            assert harness.cached_fraction(cold) < 0.2
            tensors.append(file.get_slice("t1")[...])
            assert wait_until(lambda: harness.cached_fraction(cold) > 0.98)
            assert wait_until(lambda: not readahead_threads()), readahead_threads()
            assert [int(tensor[-1]) for tensor in tensors] == [0, 1]

    def test_what_was_taken_is_fetched_when_the_file_is_closed_already(self, cold: Path) -> None:
        file = safe_open(cold, "pt")
        slices = {name: file.get_slice(name) for name in [f"t{i}" for i in range(8)]}
        tensors = {name: part[...] for name, part in slices.items()}
        file.__exit__(None, None, None)
        del file, slices
        assert wait_until(lambda: harness.cached_fraction(cold) > 0.98)
        assert wait_until(lambda: not readahead_threads()), readahead_threads()
        assert all(int(tensor[0]) == int(name[1:]) for name, tensor in tensors.items())

    def test_what_nobody_has_any_more_is_not_fetched(self, cold: Path) -> None:
        with safe_open(cold, "pt") as file:
            for name in ("t0", "t1"):
                file.get_tensor(name)
        assert wait_until(lambda: not readahead_threads()), readahead_threads()
        assert wait_until(lambda: str(cold) not in Path("/proc/self/maps").read_text())

    def test_parts_fetch_no_more(self, cold: Path) -> None:
        with safe_open(cold, "pt") as file:
            parts = [file.get_slice(name)[:8] for name in ("t2", "t3", "t4")]
            assert int(parts[0][0]) == 2
            assert not readahead_threads()
            time.sleep(0.05)
            assert harness.cached_fraction(cold) < 0.5

    def test_a_forked_child_takes_tensors_and_fetches_nothing(self, cold: Path) -> None:
        # A separate process: libraries imported by other tests warn about forks.
        done = subprocess.run([sys.executable, "-c", FORKED, str(cold)], check=False, timeout=100)
        assert done.returncode == 0


FORKED = """
import os, sys
from pathlib import Path
from max_weights.safetensors import safe_open

def names():
    return [(thread / "comm").read_text().strip() for thread in Path("/proc/self/task").iterdir()]

with safe_open(sys.argv[1], "pt") as file:
    file.get_tensor("t0")
    file.get_tensor("t1")
    child = os.fork()
    if child == 0:
        good = all(int(file.get_tensor(f"t{i}")[-1]) == i for i in range(8))
        os._exit(0 if good and "max_weights-ahe" not in names() else 1)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
