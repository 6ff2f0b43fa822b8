# fmt: off
# ruff: noqa: I001, RUF100
"""The dotted path `max.graph.dim` of MAX."""

from max_weights._dim import AlgebraicDim, Dim, DimLike, StaticDim, SymbolicDim

__all__ = ["AlgebraicDim", "Dim", "DimLike", "StaticDim", "SymbolicDim"]
