"""A process that holds one loader, and runs it on request."""

from __future__ import annotations

import gc
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from max_weights._benching.loaders import LOADERS, Answer, Run, proc, read_bytes, touch
from max_weights._core import printable
from max_weights._typing import known

__all__ = ["TIME_WAS_UP", "LoaderFailed", "Worker", "serve"]

RETAINED_HEAP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}
"""glibc then returns no memory, so that later runs do not measure how fast the system provides fresh pages."""
COMMAND = "from max_weights._benching.worker import serve; serve()"
MAX_REASON = 200
TIME_WAS_UP = "time ran out"


class LoaderFailed(Exception):
    """A loader raised an error, its process ended, or time ran out; the message is the reason."""


class Worker:
    """The side that sends requests, to a loader of `LOADERS`, or with a device of `ON_DEVICE`.

    The process looks for packages in the folder `first_on_path` before all others.
    """

    def __init__(self, loader: str, paths: list[str], device: int | None = None, first_on_path: str = "") -> None:
        self.loader = loader
        answers, write_end = os.pipe()
        self._answers = os.fdopen(answers, "rb", buffering=0)
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the worker; a pipe would not be read meanwhile)
        environment = (
            os.environ | RETAINED_HEAP | {"PYTHONPATH": os.pathsep.join(filter(None, [first_on_path, *sys.path]))}
        )
        try:
            self._process = subprocess.Popen(
                # In a new session, so that Ctrl-C only reaches the caller, which ends its workers.
                [sys.executable, "-P", "-c", COMMAND, loader, str(write_end), json.dumps([paths, device])],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=self._output,
                stderr=self._output,
                pass_fds=(write_end,),
                start_new_session=True,
            )
        finally:
            os.close(write_end)

    def ask(self, request: str, until: float) -> Answer:
        """Get the answer to "call", "touched" (one byte of every page is read, too), "ready", or what a device answers.

        Raises:
            LoaderFailed: it raised an error, its process ended, or `time.monotonic()` passed `until`.
        """
        requests = known(self._process.stdin)
        try:
            requests.write(f"{request}\n".encode())
            requests.flush()
        except BrokenPipeError:
            raise LoaderFailed(self._last_words()) from None
        line = b""
        while not line.endswith(b"\n"):
            if not select.select([self._answers], [], [], max(0.0, until - time.monotonic()))[0]:
                raise LoaderFailed(TIME_WAS_UP)
            if not (part := self._answers.read(1 << 16)):
                raise LoaderFailed(self._last_words())
            line += part
        answer: Answer = json.loads(line)
        if reason := answer.get("failed"):
            raise LoaderFailed(reason)
        return answer

    def _last_words(self) -> str:
        status = self._process.wait()
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").split("\n")
        messages = [line for line in lines if line.strip()]
        return printable(messages[-1])[:MAX_REASON] if messages else f"its process ended with status {status}"

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.communicate()
        self._answers.close()
        self._output.close()


def serve() -> None:
    """Answer requests until the caller closes the pipe: the worker's side."""
    loader, answers, work = sys.argv[1:]
    with os.fdopen(int(answers), "w", encoding="utf-8") as out:
        answering: Answering | None = None
        for request in sys.stdin:
            try:
                answering = answering or _prepared(loader, *json.loads(work))
                answer: Answer = {} if request.strip() == "ready" else answering(request.strip())
            except Exception as error:  # any error of another package becomes a row with its message
                answer = {"failed": printable(f"{type(error).__name__}: {error}")[:MAX_REASON]}
            print(json.dumps(answer), file=out, flush=True)


Answering = Callable[[str], Answer]


def _prepared(loader: str, paths: list[str], device: int | None) -> Answering:
    if device is not None:
        from max_weights._benching.on_device import DeviceRun

        return DeviceRun(loader, paths, device).answer
    run = LOADERS[loader].prepare(paths, None)
    return lambda request: _measured(run, touched=request == "touched")


def _measured(run: Run, *, touched: bool) -> Answer:
    gc.collect()
    _reset_peak()
    before, read = _status("VmRSS"), read_bytes()
    start = time.perf_counter()
    result = run()
    if touched:
        touch(result)
    seconds = time.perf_counter() - start
    peak = max(0, _status("VmHWM") - before)
    return {"seconds": seconds, "peak": peak, "read": read_bytes() - read}


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _status(name: str) -> int:
    return proc("self/status", name) * 1024
