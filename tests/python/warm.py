"""Processes that begin with torch imported, or with transformers: forked from one parent that imported it once, in a
tenth of the time that a new one takes.

A test takes one where its promise is about what a program does. Where it is about a new process (what it imports and
when, what its environment changes, how it ends), the test starts `sys.executable`. Nothing of max_weights is imported
in the parent.
"""

import atexit
import gc
import importlib
import json
import os
import select
import subprocess
import sys
import tempfile
import traceback
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn


class Ended(NamedTuple):
    """What a program left behind; a signal that ended it is a negative number, as in `subprocess`."""

    returncode: int
    stdout: str
    stderr: str


class Parent:
    """What all are forked from, one at a time; it starts with the first of them, and imports `modules`."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, code: str, cwd: Path, timeout: float = 120) -> Ended:
        """Run a program in a folder to its end; after `timeout` seconds it is killed, and that is an error."""
        with tempfile.TemporaryDirectory() as folder:
            outputs = [Path(folder, name) for name in ("stdout", "stderr")]
            process = self._started()
            assert process.stdin is not None
            assert process.stdout is not None
            request = {
                "code": code,
                "cwd": str(cwd),
                "environment": dict(os.environ),
                "outputs": [str(path) for path in outputs],
            }
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            if not select.select([process.stdout], [], [], timeout)[0]:
                self.close()
                raise subprocess.TimeoutExpired(code, timeout)
            answer = process.stdout.readline()
            assert answer, "the parent of warm processes ended"
            return Ended(int(answer), *(path.read_text() for path in outputs))

    def close(self) -> None:
        """End the parent, and with it whatever runs."""
        if self._process is not None:
            os.killpg(self._process.pid, 9)
            self._process.communicate()
            self._process = None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            # A group of its own, so that a program that hangs ends with it.
            command = [sys.executable, __file__, *self._modules]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        return self._process


@contextmanager
def parent(*modules: str) -> Iterator[Parent]:
    """A parent for as long as it is needed."""
    made = Parent(*modules)
    try:
        yield made
    finally:
        made.close()


def _become(request: dict[str, Any]) -> None:
    """In a forked child: what a new process would have been given."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    outputs = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for path in request["outputs"]]
    for number, descriptor in enumerate([nothing, *outputs]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    sys.argv = ["-c"]
    sys.path[0] = ""


def _main(request: dict[str, Any]) -> None:
    """Run the program as `__main__`; what it raises ends the process, as it would a new one."""
    _become(request)
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    exec(compile(request["code"], "<string>", "exec"), vars(module))


def _end(status: int) -> NoReturn:
    """As a process ends, but that modules are not taken apart: of torch that takes longer than most programs do."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _serve() -> None:
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is never looked through is never copied
    for line in sys.stdin.buffer:
        child = os.fork()
        if child == 0:
            try:
                _main(json.loads(line))
            except SystemExit as end:
                if isinstance(end.code, str):
                    print(end.code, file=sys.stderr)
                _end(end.code if isinstance(end.code, int) else int(end.code is not None))
            except BaseException:
                traceback.print_exc()
                _end(1)
            _end(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    _serve()
