"""`DType`, the type of one element, and `finfo`, the limits of the floating-point types.

NumPy, ml_dtypes and torch are imported only by the methods that convert to them.
"""

from max_weights._dtype import DType, DTypeLike, finfo

__all__ = ["DType", "DTypeLike", "finfo"]
