"""The graph that is being recorded, and the line of the user's code that an error of it names."""

from __future__ import annotations

import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING

from max_weights._core import printable
from max_weights.graph._errors import GraphError, NoGraphError

if TYPE_CHECKING:
    from types import FrameType

    from max_weights.graph._value import Recorder


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


_GRAPHS: ContextVar[tuple[Recorder, ...]] = ContextVar("max_weights_graphs", default=())


def current_or_none() -> Recorder | None:
    """Return the innermost graph of this context, or `None`."""
    graphs = _GRAPHS.get()
    return graphs[-1] if graphs else None


def current(op: str) -> Recorder:
    """Return the innermost graph of this context."""
    graphs = _GRAPHS.get()
    if not graphs:
        raise graph_error(op, "there is no parent graph; use it inside `with Graph(...)`", NoGraphError)
    return graphs[-1]


def enter(graph: Recorder) -> None:
    """Make a graph the innermost one; the same graph may be entered again."""
    _GRAPHS.set((*_GRAPHS.get(), graph))


def leave(graph: Recorder) -> None:
    """Go back to the previous graph."""
    graphs = _GRAPHS.get()
    if not graphs or graphs[-1] is not graph:
        raise RuntimeError(f"graph {graph.name!r} is exited, but was not the last to be entered")
    _GRAPHS.set(graphs[:-1])
