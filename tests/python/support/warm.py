"""Processes that start with torch or transformers imported, forked from one that imported it once, in a tenth of the
usual time. All workers of a run share that process, so torch is in memory once.

A test uses one if its promise is about a program's behaviour. If it is about a new process (its imports, its
environment, its end), the test starts `sys.executable`. The forking process imports nothing of max_weights.
"""

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

# The imports of each set, and the set that it extends. Each set has a separate process, which shares the pages of its
# parent.
SETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "numpy": ("", ("numpy", "ml_dtypes")),
    "torch": ("", ("torch",)),
    "transformers": ("torch", ("transformers.modeling_utils", "transformers.integrations.ggml")),
}
# The folder of the sockets, one for each set, in the environment that the workers of a run inherit.
FOLDER = "MAX_WEIGHTS_TESTS_WARM"


class Ended(NamedTuple):
    """The result of a program; a signal that ended it is a negative number, as in `subprocess`."""

    returncode: int
    stdout: str
    stderr: str


class Parent:
    """A test's handle of the process with a set of modules."""

    def __init__(self, modules: str) -> None:
        self._modules = modules

    def run(self, code: str, cwd: Path, timeout: float = 120) -> Ended:
        """Run a program in a folder to its end; after `timeout` seconds it is killed, which is an error."""
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as connection:
            outputs = [Path(folder, name) for name in ("stdout", "stderr")]
            request = {
                "code": code,
                "cwd": str(cwd),
                "environment": dict(os.environ),
                "outputs": [str(path) for path in outputs],
            }
            connection.settimeout(timeout)
            try:
                connection.connect(str(Path(os.environ[FOLDER], self._modules)))
                connection.sendall(json.dumps(request).encode() + b"\n")
                answer = connection.recv(64)
            except TimeoutError:  # to close the connection ends the program
                raise subprocess.TimeoutExpired(code, timeout) from None
            assert answer, "the parent of warm processes ended"
            return Ended(int(answer), *(path.read_text() for path in outputs))


class Server:
    """The processes of all sets: the first starts without imports; they end when this is closed or its process dies."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="warm-")
        os.environ[FOLDER] = self._folder
        listening = []
        for name in SETS:
            listening.append(socket.socket(socket.AF_UNIX))
            listening[-1].bind(str(Path(self._folder, name)))
            listening[-1].listen()
        numbers = [listener.fileno() for listener in listening]
        command = [sys.executable, __file__, *map(str, numbers)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=numbers, start_new_session=True)
        for listener in listening:
            listener.close()

    def close(self) -> None:
        """End the processes and all running programs."""
        os.environ.pop(FOLDER, None)
        self._process.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """A lock for programs of many processes with torch: one test at a time among all workers."""
    with open(Path(os.environ[FOLDER], "turn"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _become(request: dict[str, Any]) -> None:
    """In a forked child: set the state of a new process."""
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
    """Run the program as `__main__`; an exception ends the process, as in a new one."""
    _become(request)
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    exec(compile(request["code"], "<string>", "exec"), vars(module))


def _end(status: int) -> NoReturn:
    """End the process normally, but without module finalization, which for torch takes longer than most programs."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _run(request: dict[str, Any]) -> NoReturn:
    try:
        _main(request)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        _end(end.code if isinstance(end.code, int) else int(end.code is not None))
    except BaseException:
        traceback.print_exc()
        _end(1)
    _end(0)


def _chain(name: str) -> list[str]:
    """The sets that a set extends, in order of import."""
    base = SETS[name][0]
    return [*(_chain(base) if base else ()), name]


class _Forking:
    """One process: it runs programs with its imports, and forks the processes of the sets that extend it."""

    def __init__(self, imported: str, listeners: dict[str, socket.socket]) -> None:
        self._imported, self._listeners = imported, listeners
        self._running: dict[socket.socket, tuple[int, int]] = {}  # connection: process, its descriptor
        self._events = selectors.DefaultSelector()
        self._events.register(0, selectors.EVENT_READ)  # ends with the run
        for listener in listeners.values():
            self._events.register(listener, selectors.EVENT_READ)

    def serve(self) -> NoReturn:
        gc.collect()
        gc.freeze()  # unscanned objects are never copied
        while True:
            for key, _ in self._events.select():
                if key.fileobj == 0:
                    for process, _descriptor in self._running.values():
                        os.killpg(process, signal.SIGKILL)
                    os._exit(0)
                elif key.data is not None:
                    self._report(key.data)
                elif (connection := key.fileobj) in self._running:
                    os.killpg(self._running[connection][0], signal.SIGKILL)  # its caller is gone
                else:
                    name = next((name for name, listener in self._listeners.items() if listener is key.fileobj), None)
                    if name == self._imported:
                        self._begin(*self._listeners[name].accept())
                    elif name is not None:
                        self._extend(name)

    def _begin(self, connection: socket.socket, _address: object) -> None:
        with connection.makefile("rb") as stream:
            line = stream.readline()
        if not line:
            connection.close()
            return
        process = os.fork()
        if process == 0:
            os.setsid()
            connection.close()
            self._forget()
            _run(json.loads(line))
        descriptor = os.pidfd_open(process)
        self._running[connection] = process, descriptor
        self._events.register(descriptor, selectors.EVENT_READ, connection)
        self._events.register(connection, selectors.EVENT_READ)

    def _report(self, connection: socket.socket) -> None:
        process, descriptor = self._running.pop(connection)
        _, status = os.waitpid(process, 0)
        self._events.unregister(descriptor)
        self._events.unregister(connection)
        os.close(descriptor)
        with contextlib.suppress(BrokenPipeError):  # it was killed because its caller is gone
            connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
        connection.close()

    def _extend(self, name: str) -> None:
        """Fork the next process towards a set: it takes over the sockets of all sets that extend it."""
        chain = _chain(name)
        added = chain[chain.index(self._imported) + 1 if self._imported else 0]
        taken = {other: self._listeners.pop(other) for other in list(self._listeners) if added in _chain(other)}
        for listener in taken.values():
            self._events.unregister(listener)
        if os.fork() == 0:
            self._forget()
            for module in SETS[added][1]:
                importlib.import_module(module)
            _Forking(added, taken).serve()
        for listener in taken.values():
            listener.close()

    def _forget(self) -> None:
        """In a forked child: close the descriptors of others, whose end of file would otherwise be missed."""
        for key in list(self._events.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
            elif key.fd != 0:
                os.close(key.fd)
        self._events.close()


if __name__ == "__main__":
    inherited = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    _Forking("", dict(zip(SETS, inherited, strict=True))).serve()
