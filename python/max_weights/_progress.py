"""Progress reports of long operations, and the bars that show them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

__all__ = ["Progress", "progress_of"]

Progress = Callable[[int, int], object]
"""Called with the bytes done and the total; an exception that it raises stops the operation."""

_COLUMNS = 30
_UNITS = ((1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB"))
_SECONDS = 0.1
"""The line is rewritten at most this often."""


def progress_of(progress: Progress | bool | None) -> tuple[Progress | None, Callable[[], None]]:
    """Return a function that is called with the bytes done and the total, and one that ends the display.

    True is a bar in a notebook, and otherwise a line on standard error.
    """
    if progress is None or progress is False:
        return None, lambda: None
    if progress is not True:
        return progress, lambda: None
    bar = _bar_of_notebook() or _Bar()
    return bar, bar.close


def progress_html(done: int, total: int, seconds: float) -> str:
    """Return the bar that a notebook shows."""
    from max_weights._html import Html, frame, paragraph

    bar = f'<progress value="{done}" max="{max(total, 1)}"></progress>' if done < total else ""
    return frame(paragraph(Html(f"{bar}<small>{_status(done, total, seconds)}</small>")))


def _status(done: int, total: int, seconds: float) -> str:
    unit, name = next(((unit, name) for unit, name in _UNITS if total >= unit), (1, "B"))
    digits = 2 if unit > 1 else 0
    rate = done / max(seconds, 1e-3)
    return f"{done / unit:.{digits}f} of {total / unit:.{digits}f} {name}, {_size(rate)}/s"


def _size(size: float) -> str:
    unit, name = next(((unit, name) for unit, name in _UNITS if size >= unit), (1, "B"))
    return f"{size / unit:.1f} {name}"


def _bar_of_notebook() -> _NotebookBar | None:
    """Return a bar in the output of the running cell, if there is one; IPython is not imported for this."""
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    if getattr(shell, "kernel", None) is None:
        return None
    from IPython.display import DisplayHandle

    return _NotebookBar(DisplayHandle())  # type: ignore[no-untyped-call]


class _Bar:
    """A display that is updated at most every tenth of a second, and at the end."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._updated = 0.0
        self._width = 0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._updated < _SECONDS and done < total:
            return
        self._updated = now
        self._show(done, total, now - self._begun)

    def _show(self, done: int, total: int, seconds: float) -> None:
        """Overwrite one line of standard error."""
        filled = _COLUMNS * done // total if total else _COLUMNS
        text = f"[{'#' * filled:{_COLUMNS}}] {_status(done, total, seconds)}"
        sys.stderr.write("\r" + text.ljust(self._width))
        sys.stderr.flush()
        self._width = len(text)

    def close(self) -> None:
        """End the line, if there is one; once."""
        if self._width:
            self._width = 0
            sys.stderr.write("\n")


class _NotebookBar(_Bar):
    """A display in the output of a cell, which is replaced each time."""

    def __init__(self, handle: Any) -> None:
        super().__init__()
        self._handle = handle
        self._is_shown = False

    def _show(self, done: int, total: int, seconds: float) -> None:
        page = {"text/html": progress_html(done, total, seconds), "text/plain": _status(done, total, seconds)}
        show = self._handle.update if self._is_shown else self._handle.display
        show(page, raw=True)
        self._is_shown = True
