"""Which dtype a result has. docs/graph.md states the rules for people.

Only widening that loses nothing happens by itself: two signed integers, two unsigned ones, or two floats of 16 bits and
more. A scalar has no dtype of its own and takes the tensor's.
"""

from __future__ import annotations

import math

from max_weights.dtype import DType, finfo
from max_weights.graph.call_site import problem

# A float holds every value of those named beside it.
_WIDER_FLOATS = {
    DType.float16: (),
    DType.bfloat16: (),
    DType.float32: (DType.float16, DType.bfloat16),
    DType.float64: (DType.float16, DType.bfloat16, DType.float32),
}


def promote(op: str, left: DType, right: DType) -> DType:
    """The dtype that holds both, if one of the two does.

    Raises:
        GraphError: neither does; names both.
    """
    if left is right:
        return left
    for wide, narrow in ((left, right), (right, left)):
        if _holds(wide, narrow):
            return wide
    raise problem(op, f"{left!r} and {right!r} are different dtypes; convert one with `.cast(...)`")


def _holds(wide: DType, narrow: DType) -> bool:
    if wide.is_signed_integral() and narrow.is_signed_integral():
        return wide.size_in_bits > narrow.size_in_bits
    if wide.is_unsigned_integral() and narrow.is_unsigned_integral():
        return wide.size_in_bits > narrow.size_in_bits
    return narrow in _WIDER_FLOATS.get(wide, ())


def fit_scalar(op: str, value: bool | int | float, dtype: DType) -> bool | int | float:
    """A scalar as an element of this dtype.

    Raises:
        GraphError: the dtype has no such value: a fraction among integers, or a number out of range.
    """
    if dtype is DType.bool:
        if not isinstance(value, bool):
            raise problem(op, f"the number {value!r} meets a tensor of bool; convert the tensor with `.cast(...)`")
        return value
    if dtype.is_integral():
        if isinstance(value, float):
            raise problem(
                op, f"the float {value!r} meets a tensor of {dtype!r}; convert the tensor with `.cast(DType.float32)`"
            )
        signed = dtype.is_signed_integral()
        bits = dtype.size_in_bits - signed
        if not (-(1 << bits) if signed else 0) <= value < 1 << bits:
            raise problem(op, f"the number {value!r} is out of the range of {dtype!r}")
        return int(value)
    if not dtype.is_float():
        raise problem(op, f"the scalar {value!r} meets a tensor of {dtype!r}, which takes no scalars")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    limits = finfo(dtype)
    if not limits.min <= number <= limits.max and (isinstance(value, int) or math.isfinite(number)):
        raise problem(
            op,
            f"the number {value!r} is out of the range of {dtype!r}, {limits.min} to {limits.max}; "
            "write float('inf') if that is meant",
        )
    return number
