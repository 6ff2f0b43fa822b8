"""Pause garbage collection while many objects are created that all stay alive: it would run repeatedly in vain."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

from max_weights._fork_lock import ForkLock

__all__ = ["gc_paused"]


class _Pause:
    """The pause of a process. Calls may overlap, on many threads: the first begins it, and the last ends it.

    It sets the threshold to 0 instead of calling `gc.disable()`, which belongs to the program, also during the pause.
    """

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._calls = 0
        self._thresholds: tuple[int, int, int] = gc.get_threshold()
        if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
            os.register_at_fork(after_in_child=self._end)

    def begin(self) -> None:
        """Begin a call."""
        with self._lock:
            if not self._calls and gc.get_threshold()[0]:
                self._thresholds = gc.get_threshold()
                gc.set_threshold(0, *self._thresholds[1:])
                self._calls = 1
            elif self._calls:
                self._calls += 1

    def end(self) -> None:
        """End a call; a threshold that the program has set meanwhile stays."""
        with self._lock:
            if self._calls > 1:
                self._calls -= 1
            else:
                self._end()

    def _end(self) -> None:
        """End the pause in a forked child, which has none of the threads that would."""
        if self._calls and not gc.get_threshold()[0]:
            gc.set_threshold(*self._thresholds)
        self._calls = 0


_pause = _Pause()


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause garbage collection within a `with` block."""
    _pause.begin()
    try:
        yield
    finally:
        _pause.end()
