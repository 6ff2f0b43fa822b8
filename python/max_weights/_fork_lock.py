"""A lock that a forked child does not inherit as taken."""

from __future__ import annotations

import os
import threading
from types import TracebackType

__all__ = ["ForkLock"]


class ForkLock:
    """A lock that is free in a forked child, whichever thread of the parent held it; a thread may take it twice.

    It is for the state of a module, and stays until the process ends.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
            os.register_at_fork(after_in_child=self._free)

    def _free(self) -> None:
        """Forget a thread that the child does not have. What the forking thread itself holds stays locked."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._lock.release()
