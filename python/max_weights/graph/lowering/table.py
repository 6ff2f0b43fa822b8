"""The table of the functions that lower operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from max_weights.graph.lowering.scope import Scope
    from max_weights.graph.value import Node

__all__ = ["Lowering", "lowering_of", "lowerings", "lowers"]

Lowering: TypeAlias = "Callable[[Scope, Node], str | Sequence[str]]"
"""Writes an operation to a scope, and returns the names of its results."""

_LOWERINGS: dict[str, Lowering] = {}
_FILES = (
    "arithmetic",
    "choice",
    "conv",
    "creation",
    "joining",
    "linear",
    "normalization",
    "packed",
    "positions",
    "reductions",
    "shaping",
    "subgraphs",
    "windows",
)


def lowers(*ops: str) -> Callable[[Lowering], Lowering]:
    """Register a function as the one that lowers the operations of these names."""

    def add(lowering: Lowering) -> Lowering:
        for op in ops:
            assert op not in _LOWERINGS, op
            _LOWERINGS[op] = lowering
        return lowering

    return add


def lowerings() -> dict[str, Lowering]:
    """Return the functions by the names of the operations; `input` and `weight` have none, as the model gets them."""
    for file in _FILES:
        import_module(f"max_weights.graph.lowering.{file}")
    return _LOWERINGS


def lowering_of(op: str) -> Lowering | None:
    """Return the function for an operation; `None` if there is none."""
    return _LOWERINGS.get(op) or lowerings().get(op)
