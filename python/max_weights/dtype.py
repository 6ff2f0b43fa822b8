# fmt: off
# ruff: noqa: I001, RUF100
"""The dotted path `max.dtype` of MAX."""

from max_weights._dtype import DType, DTypeLike, finfo

__all__ = ["DType", "DTypeLike", "finfo"]
