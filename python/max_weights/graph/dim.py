"""Dimensions under the dotted path of MAX."""

from max_weights.dim import AlgebraicDim, Dim, DimLike, StaticDim, SymbolicDim

__all__ = ["AlgebraicDim", "Dim", "DimLike", "StaticDim", "SymbolicDim"]
