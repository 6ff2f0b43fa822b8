"""The errors of operations of graphs."""

from __future__ import annotations

from max_weights.errors import WeightsError

__all__ = ["GraphError", "GraphIndexError", "NoGraphError"]


class GraphError(WeightsError, ValueError):
    """An operation of a graph has operands that do not fit, or has no graph to go to."""

    rule = "graph.invalid"
    op: str | None = None
    """The name of the operation."""
    location: str | None = None
    """The line of the user's code, as `file:line`."""


class GraphIndexError(GraphError, IndexError):
    """A shape does not have this axis, or this position on an axis."""

    rule = "graph.index"


class NoGraphError(GraphError, LookupError):
    """There is no graph for an operation to go to."""

    rule = "graph.absent"
