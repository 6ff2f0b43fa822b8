"""A file that changes under an open checkpoint: all copies raise FileChangedError, and the process survives."""

import copy
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import max_weights
from max_weights import DType, FileChangedError
from max_weights.driver import Buffer
from refusals import refuses

Make = Callable[..., Path]
ROWS = 4096

COPIES: dict[str, Callable[[Buffer], Any]] = {
    "copy": lambda buffer: buffer.copy(),
    "deepcopy": copy.deepcopy,
    "contiguous columns": lambda buffer: buffer[:, ::2].contiguous(),
    "contiguous rows": lambda buffer: buffer[::2].contiguous(),
    "reversed": lambda buffer: buffer[::-1, ::-1].copy(),
    "item": lambda buffer: buffer[-1, -1].item(),
    "bool": lambda buffer: bool(buffer[-1, -1]),
    "numpy copy": lambda buffer: buffer.__array__(copy=True),
    "dlpack copy": lambda buffer: buffer.__dlpack__(copy=True),
    "from_dlpack copy": lambda buffer: Buffer.from_dlpack(buffer, copy=True),
}


@pytest.fixture
def path(make_file: Make) -> Path:
    return make_file({"w": np.arange(ROWS * 64, dtype=np.float32).reshape(ROWS, 64)})


@pytest.mark.parametrize("how", COPIES)
def test_truncated_after_opening_every_copy_gives_an_error(path: Path, how: str) -> None:
    buffer = max_weights.load_weights(path).w.data().data
    assert buffer.is_mapped
    COPIES[how](buffer)
    os.truncate(path, 8192)
    with refuses(FileChangedError, "file.truncated") as caught:
        COPIES[how](buffer)
    assert caught.value.rule == "file.truncated"
    assert caught.value.path == str(path)
    assert isinstance(caught.value, OSError)
    buffer[:4].copy()  # the remaining bytes can be read


def test_truncated_after_opening_a_read_gives_an_error(path: Path) -> None:
    weights = max_weights.load_weights(path, backend="read")
    os.truncate(path, 8192)
    with refuses(FileChangedError, "file.truncated"):
        weights.w.data()


def test_written_after_opening_a_read_gives_an_error(path: Path) -> None:
    weights = max_weights.load_weights(path, backend="read")
    time.sleep(0.02)
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\0\0\0\0")
    with refuses(FileChangedError, "file.changed") as caught:
        weights.w.data()
    assert caught.value.rule == "file.changed"


def test_a_file_replaced_by_renaming_changes_nothing(path: Path, make_file: Make) -> None:
    weights = max_weights.load_weights(path, backend="read")
    mapped = max_weights.load_weights(path)
    make_file({"w": np.zeros((ROWS, 64), np.float32)}, "new.safetensors").rename(path)
    for opened in (weights, mapped):
        assert np.asarray(opened.w.data())[-1, -1] == ROWS * 64 - 1


def test_copies_of_a_mapped_tensor_equal_numpys_and_see_what_was_written(path: Path) -> None:
    value = max_weights.load_weights(path).w.data()
    array = np.asarray(value)
    array[5, 7] = -1
    expected = np.arange(ROWS * 64, dtype=np.float32).reshape(ROWS, 64)
    expected[5, 7] = -1
    buffer = value.data
    for key in (
        ...,
        np.s_[::3],
        np.s_[:, 3:60:7],
        np.s_[::-1, ::-1],
        np.s_[10:12, :],
        np.s_[:, 5],
        np.s_[0:0],
        (None, 3),
    ):
        assert np.array_equal(buffer[key].copy().to_numpy(), expected[key]), key
    assert (
        buffer.view(DType.uint8)[:, 200:201].copy().to_numpy().tobytes()
        == expected.view(np.uint8)[:, 200:201].tobytes()
    )


def test_views_of_a_truncated_file_are_the_documented_limit(path: Path) -> None:
    """Reading a view beyond the new end kills the process, as docs/security.md says; not with backend="read"."""
    script = f"""
import os, sys, numpy, max_weights
array = numpy.asarray(max_weights.load_weights({str(path)!r}, backend=sys.argv[1]).w.data())
os.truncate({str(path)!r}, 8192)
print(array[-1, -1])
"""
    run = lambda backend: subprocess.run([sys.executable, "-c", script, backend], capture_output=True, text=True)  # noqa: E731
    content = path.read_bytes()
    assert run("read").stdout.strip() == f"{ROWS * 64 - 1:.1f}"
    path.write_bytes(content)
    assert run("mmap").returncode < 0
