"""Which function lowers an operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from max_weights.graph.lowering.scope import Scope
    from max_weights.graph.value import Node

__all__ = ["Lowering", "lowering_of", "lowerings", "lowers"]

Lowering: TypeAlias = "Callable[[Scope, Node], str | Sequence[str]]"
"""Writes what an operation becomes to a scope; gives the names of its results."""

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
    """Says of a function that it lowers the operations of these names."""

    def add(lowering: Lowering) -> Lowering:
        for op in ops:
            assert op not in _LOWERINGS, op
            _LOWERINGS[op] = lowering
        return lowering

    return add


def lowerings() -> dict[str, Lowering]:
    """The functions by the names of the operations; `input` and `weight` have none, as a model is given these."""
    for file in _FILES:
        import_module(f"max_weights.graph.lowering.{file}")
    return _LOWERINGS


def lowering_of(op: str) -> Lowering | None:
    """The function for an operation; none, if there is none."""
    return _LOWERINGS.get(op) or lowerings().get(op)
