"""Rules for the dtype of results. docs/modules.md states them for users.

Two tensors are converted to the dtype of one of them, and only to one that holds every value of the other: no third
dtype is used, and nothing is lost. A scalar has no dtype: it takes the tensor's.
"""

from __future__ import annotations

import math

from max_weights._dtype import DType, finfo
from max_weights.graph._stack import graph_error

# Floats that other dtypes widen to, with the bits of their significands: they hold integers of that many bits exactly.
_SIGNIFICAND = {DType.float16: 11, DType.bfloat16: 8, DType.float32: 24, DType.float64: 53}


def promote(op: str, left: DType, right: DType) -> DType:
    """Return the dtype that holds both, if one of the two does."""
    if left is right:
        return left
    for wide, narrow in ((left, right), (right, left)):
        if _holds(wide, narrow):
            return wide
    raise graph_error(
        op,
        f"{left!r} and {right!r} are different dtypes, and neither holds every value of the other; convert one with "
        "`.cast(...)`",
    )


def same_dtype(op: str, left: DType, right: DType) -> DType:
    """Return the dtype of both, for operations that convert nothing."""
    if left is not right:
        raise graph_error(op, f"{left!r} and {right!r} are different dtypes; convert one with `.cast(...)`")
    return left


def quotient(op: str, left: DType, right: DType) -> DType:
    """Return the dtype in which two tensors are divided; float64 for any integers."""
    return DType.float64 if left.is_integral() and right.is_integral() else promote(op, left, right)


def _holds(wide: DType, narrow: DType) -> bool:
    """Whether one dtype holds every value of the other."""
    if narrow is DType.bool:
        return wide.is_integral() or (wide.is_float() and wide is not DType.float8_e8m0fnu)  # which has no zero
    if narrow.is_integral():
        bits = narrow.size_in_bits - narrow.is_signed_integral()
        if wide.is_integral():
            signed = wide.is_signed_integral()
            return bits <= wide.size_in_bits - signed and (signed or narrow.is_unsigned_integral())
        return bits <= _SIGNIFICAND.get(wide, 0)
    if wide not in _SIGNIFICAND or not narrow.is_float():
        return False
    if narrow in _SIGNIFICAND:
        return narrow.size_in_bits < wide.size_in_bits
    return narrow is not DType.float8_e8m0fnu or wide is not DType.float16  # whose exponents end far earlier


def fit_scalar(op: str, value: bool | int | float, dtype: DType) -> bool | int | float:
    """Return a scalar as an element of this dtype."""
    if dtype is DType.bool:
        if not isinstance(value, bool):
            raise graph_error(
                op, f"the number {value!r} is combined with a tensor of bool; convert the tensor with `.cast(...)`"
            )
        return value
    if dtype.is_integral():
        if isinstance(value, float):
            raise graph_error(
                op,
                f"the float {value!r} is combined with a tensor of {dtype!r}; convert the tensor with "
                "`.cast(DType.float32)`",
            )
        signed = dtype.is_signed_integral()
        bits = dtype.size_in_bits - signed
        if not (-(1 << bits) if signed else 0) <= value < 1 << bits:
            raise graph_error(op, f"the number {value!r} is outside the range of {dtype!r}")
        return int(value)
    if not dtype.is_float():
        raise graph_error(op, f"the scalar {value!r} is combined with a tensor of {dtype!r}, which accepts no scalars")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    limits = finfo(dtype)
    if not limits.min <= number <= limits.max and (isinstance(value, int) or math.isfinite(number)):
        raise graph_error(
            op,
            f"the number {value!r} is outside the range of {dtype!r}, {limits.min} to {limits.max}; write "
            "float('inf') if that is meant",
        )
    return number
