"""`Runs`: runs of ONNX Runtime that Ctrl-C interrupts."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnxruntime

    from max_weights._buffer import DLPackArray

__all__ = ["Runs"]

_QUICK = 0.05
"""Runs of up to this many seconds need not be interrupted."""


class Runs:
    """The runs of one session.

    Python handles Ctrl-C only in the main thread, and only after a call into ONNX Runtime returns. So a call from the
    main thread is made in another thread, while the main thread waits where it can be interrupted. This is not done for
    inputs that are no larger than those of a quick run, because the other thread would take a part of that time.

    Args:
        session: The session of ONNX Runtime.
        results: The names of the results that are wanted.
        bound: The values that are given in each run, by name.
    """

    def __init__(
        self, session: onnxruntime.InferenceSession, results: Sequence[str], bound: Mapping[str, onnxruntime.OrtValue]
    ) -> None:
        self._session, self._results, self._kept = session, results, bound
        self._bound = {name: value._ortvalue for name, value in bound.items()}
        self._quick = -1
        self._process = -1

    def run(self, feeds: Mapping[str, onnxruntime.OrtValue], size: int) -> list[DLPackArray]:
        """Return the results, in order, as tensors that support DLPack."""
        if size <= self._quick or threading.current_thread() is not threading.main_thread():
            return self._run(feeds)
        began = time.monotonic()
        results = self._interruptible(feeds)
        if time.monotonic() - began < _QUICK:
            self._quick = max(self._quick, size)
        return results

    def _run(
        self, feeds: Mapping[str, onnxruntime.OrtValue], options: onnxruntime.RunOptions | None = None
    ) -> list[DLPackArray]:
        # `InferenceSession.run_with_ort_values` takes a quarter of a millisecond more for 100 weights.
        values = self._bound | {name: value._ortvalue for name, value in feeds.items()}
        results = self._session._sess.run_with_ort_values(values, self._results, options)
        return [results[index] for index in range(len(self._results))]  # iterating over them takes 30 µs

    def _interruptible(self, feeds: Mapping[str, onnxruntime.OrtValue]) -> list[DLPackArray]:
        import onnxruntime

        options = onnxruntime.RunOptions()
        run = self._thread().submit(self._run, feeds, options)
        try:
            return run.result()
        except BaseException:
            options.terminate = True
            wait([run])
            raise

    def _thread(self) -> ThreadPoolExecutor:
        """The other thread, which is kept, as ONNX Runtime has memory for each thread. A forked child has lost it."""
        process = os.getpid()
        if self._process != process:
            self._process, self._executor = process, ThreadPoolExecutor(1, "max_weights run")
        return self._executor
