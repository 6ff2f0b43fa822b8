"""Fault injection: processes that are killed, or get an error, at a chosen system call of a save.

strace is attached to a process that waits before its save. It counts the calls, kills the process at one of them or
makes one fail, including calls that bypass the C library.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pytest

from max_weights import load_weights

PROGRAM = Path(__file__).with_name("saving_program.py")
# System calls by which a save may change something. The "?" makes strace ignore names that this kernel lacks.
CALLS = (
    "?open,openat,flock,?fcntl,?pwrite64,?pwritev,?pwritev2,?write,?writev,?fallocate,?ftruncate,?fchmod,?fchown,?fsync,"
    "?fdatasync,?sync_file_range,?rename,?renameat,?renameat2,?unlink,?unlinkat,?mkdir,?mkdirat,?link,?linkat,?copy_file_range"
)
UNFINISHED = ".max-weights-unfinished"
NAME = "model.safetensors"
WRITES = ("pwrite64", "pwritev", "pwritev2")


def named(call: str) -> str:
    """The name of a file that `save_file` and this call both save to."""
    return "model" if call == "save_gguf" else NAME


@dataclass
class Outcome:
    """The outcome of a save: the signal that ended the process, or the error of the save, and its system calls."""

    signal: int
    error: dict[str, Any]
    calls: list[tuple[str, str]] = field(default_factory=list)

    def counted(self) -> Counter[str]:
        """The number of calls by system call."""
        return Counter(name for name, _ in self.calls)

    def number(self, name: str, has: str) -> int:
        """Which call of that name, counted from 1, is the first with this text."""
        lines = [line for found, line in self.calls if found == name]
        return next(i for i, line in enumerate(lines, 1) if has in line)


class Saver:
    """A process that saves in children, one at a time."""

    def __enter__(self) -> Self:
        """Starts it."""
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Ends it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def begin(self, call: str, arguments: dict[str, Any], **process: Any) -> int:
        """A child that waits for permission to save."""
        paths = {name: str(value) if isinstance(value, Path) else value for name, value in arguments.items()}
        self._say(json.dumps({"call": call, "arguments": paths} | process))
        child: int = self._answer()
        return child

    def go(self) -> None:
        """Lets it save."""
        self._say("go")

    def end(self) -> Outcome:
        """Waits for its end."""
        error: dict[str, Any] = {}
        while "status" not in (answer := self._answer()):
            error = answer
        return Outcome(max(0, -answer["status"]), error)

    def save(self, call: str, inject: str | None = None, trace: bool = False, /, **arguments: Any) -> Outcome:
        """Save; `inject`, a rule of strace, injects a fault.

        `process` describes the child, and `calls` selects the traced system calls.
        """
        process, calls = arguments.pop("process", {}), arguments.pop("calls", CALLS)
        if inject is None and not trace:
            self.begin(call, arguments, **process)
            self.go()
            return self.end()
        # In one thread, so that the calls have a fixed order and one count.
        child = self.begin(call, arguments, one_thread=True, **process)
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder, "calls")
            watcher = attached(child, log, inject, calls)
            self.go()
            outcome = self.end()
            watcher.wait()
            assert watcher.stderr is not None
            watcher.stderr.close()
            outcome.calls = parsed(log.read_text(errors="replace"))
        return outcome


@pytest.fixture(scope="module")
def saver() -> Iterator[Saver]:
    """A process that saves, for all tests of a file."""
    with Saver() as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that is empty."""
    made = tmp_path / "folder"
    made.mkdir()
    return made


def attached(child: int, log: Path, inject: str | None, calls: str = CALLS) -> subprocess.Popen[str]:
    """A strace that is already attached to a process."""
    rules = [] if inject is None else ["-e", f"inject={inject}"]
    watcher = subprocess.Popen(
        ["strace", "-f", "-qqq", "-s", "0", "-o", str(log), "-e", f"trace={calls}", *rules, "-p", str(child)],
        stderr=subprocess.PIPE,
        text=True,
    )
    tracer = Path(f"/proc/{child}/status")
    while not re.search(r"^TracerPid:\s+[1-9]", tracer.read_text(), re.M):
        if watcher.poll() is not None:
            assert watcher.stderr is not None
            message = watcher.stderr.read()
            os.kill(child, signal.SIGKILL)
            raise RuntimeError(f"strace: {message}")
    return watcher


def parsed(log: str) -> list[tuple[str, str]]:
    """The system calls of a log of strace -f, by name, each with its line."""
    return [(found[1], found[0]) for found in re.finditer(r"^\d+ +(\w+)\(.*$", log, re.M)]


@functools.cache
def without_strace() -> str | None:
    """Why strace cannot be used here, if it cannot."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    done = subprocess.run(
        ["strace", "-o", os.devnull, "-e", "trace=getppid", "-e", "inject=getppid:error=EPERM", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    return None if done.returncode == 0 else f"strace cannot trace here: {done.stderr.strip()}"


with_strace = pytest.mark.skipif(without_strace() is not None, reason=without_strace() or "strace is there")


def saved(saver: Saver, call: str, /, **arguments: Any) -> None:
    """A successful save."""
    outcome = saver.save(call, **arguments)
    assert (outcome.signal, outcome.error) == (0, {})


def of_kind(clean: Outcome, kind: tuple[str, ...]) -> str:
    """The name of the system call that this save used, of several equivalent ones."""
    return next(name for name in kind if clean.counted()[name])


def values(path: Path) -> set[float]:
    """The values of a checkpoint's tensors, as this package loads them."""
    with load_weights(path) as weights:
        return {float(value) for _, weight in weights.items() for value in np.unique(np.asarray(weight.data()))}


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def put(folder: Path, files: dict[str, bytes]) -> None:
    """Make a folder contain exactly these files."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.name not in files:
            path.unlink()
    for name, content in files.items():
        if not (folder / name).is_file() or (folder / name).read_bytes() != content:
            (folder / name).write_bytes(content)


def unfinished(folder: Path) -> list[str]:
    """The unfinished files of a folder."""
    return [path.name for path in folder.iterdir() if path.name.endswith(UNFINISHED)]


def killed_at_each_call(
    saver: Saver, folder: Path, old: dict[str, bytes], call: str, /, again: bool = True, **arguments: Any
) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Kill a save into `folder`, which has the files `old`, at each of its system calls; yield the state after each.

    Unfinished files are excluded: the next save, the same with `again`, has to leave none.
    """
    put(folder, old)
    clean = saver.save(call, None, True, **arguments)
    assert (clean.signal, clean.error) == (0, {})
    new = contents(folder)
    for name, count in clean.counted().items():
        for number in range(1, count + 1):
            put(folder, old)
            outcome = saver.save(call, f"{name}:signal=SIGKILL:when={number}", **arguments)
            assert outcome.signal == signal.SIGKILL, (name, number)
            left = unfinished(folder)
            yield f"{name} {number}", {name: data for name, data in contents(folder).items() if name not in left}
            if again:
                saved(saver, call, **arguments)
                assert contents(folder) == new, f"after a save after a kill at {name} {number}"
            else:  # its input may be new now
                saved(saver, "save_file", path=folder / "other", value=0)
            assert unfinished(folder) == []
    put(folder, {})
