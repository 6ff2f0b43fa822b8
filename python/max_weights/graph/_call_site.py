"""The line of the user's code that an error of a graph names, and that each recorded operation remembers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from max_weights._core import printable
from max_weights.errors import GraphError

if TYPE_CHECKING:
    from types import FrameType

_PACKAGE = __name__.partition(".")[0]
_INSIDE = f"{_PACKAGE}."


def caller_location() -> str:
    """Return `file:line` of the innermost call that comes from outside this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(_INSIDE) and module != _PACKAGE:
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return "<unknown>:0"


def graph_error(op: str, cause: str, kind: type[GraphError] = GraphError) -> GraphError:
    """Return the error for an operation that cannot be recorded.

    Its message begins with the operation and ends with the line of the user's code.
    """
    location = caller_location()
    error = kind(f"{op}: {cause} (at {printable(location)})")
    error.op, error.location = op, location
    return error
