"""The graph that is being recorded: each thread and each asynchronous task has its own stack of graphs."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from max_weights.errors import NoGraphError
from max_weights.graph._call_site import graph_error

if TYPE_CHECKING:
    from max_weights.graph._value import Recorder

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
