"""Dimensions under the dotted path of MAX."""

from max_weights._dim import AlgebraicDim, Dim, DimLike, StaticDim, SymbolicDim

__all__ = ["AlgebraicDim", "Dim", "DimLike", "StaticDim", "SymbolicDim"]
