"""What long work tells of how far it is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

__all__ = ["Progress", "progress_of"]

Progress = Callable[[int, int], object]
"""Called with the bytes that are done, and those of all; an exception that it raises ends the work."""

_COLUMNS = 30
_SECONDS = 0.1
"""The line is written anew at most so often."""


def progress_of(progress: Progress | bool | None) -> tuple[Progress | None, Callable[[], None]]:
    """What is called with bytes done and bytes of all, and what ends it; True is a line on standard error."""
    if progress is None or progress is False:
        return None, lambda: None
    if progress is not True:
        return progress, lambda: None
    bar = _Bar()
    return bar, bar.close


class _Bar:
    """One line of standard error, written over and over."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._told = 0.0
        self._width = 0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._told < _SECONDS and done < total:
            return
        self._told = now
        filled = _COLUMNS * done // total if total else _COLUMNS
        rate = done / max(now - self._begun, 1e-3)
        text = f"[{'#' * filled:{_COLUMNS}}] {done / 1e9:.2f} of {total / 1e9:.2f} GB, {rate / 1e9:.1f} GB/s"
        sys.stderr.write("\r" + text.ljust(self._width))
        sys.stderr.flush()
        self._width = len(text)

    def close(self) -> None:
        """End the line."""
        if self._width:
            sys.stderr.write("\n")
