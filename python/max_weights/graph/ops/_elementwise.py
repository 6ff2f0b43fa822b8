"""Operations on each element. Operands are broadcast by NumPy's rules and converted to one dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING

import max_weights.graph._infer as infer
from max_weights._dtype import DType, DTypeLike
from max_weights.graph._call_site import graph_error
from max_weights.graph._promote import quotient
from max_weights.graph._value import TensorValue
from max_weights.graph.ops._comparison import where
from max_weights.graph.ops._operands import converted, like, operand, operands, record, require_float, require_number

if TYPE_CHECKING:
    from max_weights.graph._value import TensorValueLike


def arithmetic(op: str, lhs: TensorValueLike, rhs: TensorValueLike, logical: str | None = None) -> TensorValue:
    """Record an operation on two tensors of numbers with a result of their dtype; `logical` is its form for bool."""
    left, right = operands(op, lhs, rhs)
    shape = infer.broadcast(op, left.shape, right.shape)
    if left.dtype is DType.bool and logical is not None:
        return record(logical, [left, right], like(left, shape))
    require_number(op, left)
    return record(op, [left, right], like(left, shape))


def add(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """Compute `lhs + rhs`; for two tensors of bool `lhs | rhs`, as in NumPy."""
    return arithmetic("add", lhs, rhs, "logical_or")


def sub(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """Compute `lhs - rhs`."""
    return arithmetic("sub", lhs, rhs)


def mul(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """Compute `lhs * rhs`; for two tensors of bool `lhs & rhs`, as in NumPy."""
    return arithmetic("mul", lhs, rhs, "logical_and")


def max(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """Return the larger of each pair of elements. See also `ops.max`."""
    return arithmetic("maximum", lhs, rhs, "logical_or")


def min(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """Return the smaller of each pair of elements. See also `ops.min`."""
    return arithmetic("minimum", lhs, rhs, "logical_and")


def div(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """Compute `lhs / rhs`; the quotient of integers, of any two kinds, is float64, as in NumPy."""
    left, right = operands("div", lhs, rhs, common=quotient)
    shape = infer.broadcast("div", left.shape, right.shape)
    require_number("div", left)
    if left.dtype.is_integral():
        left, right = converted(left, DType.float64), converted(right, DType.float64)
    return record("div", [left, right], like(left, shape))


def floordiv(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """Compute `lhs // rhs`, rounded toward minus infinity."""
    return arithmetic("floordiv", lhs, rhs)


floor_div = floordiv
"""The same as `floordiv`."""


def mod(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """Compute `lhs % rhs`, with the sign of `rhs`."""
    return arithmetic("mod", lhs, rhs)


def pow(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """Compute `lhs ** rhs`."""
    return arithmetic("pow", lhs, rhs)


def neg(x: TensorValueLike) -> TensorValue:
    """Compute `-x`; not for unsigned integers."""
    value = operand("neg", x)
    require_number("neg", value)
    if value.dtype.is_unsigned_integral():
        raise graph_error("neg", f"{value.dtype!r} has no negative numbers; convert it with `.cast(...)`")
    return record("neg", [value], value.type)


negate = neg
"""The same as `neg`."""


def abs(x: TensorValueLike) -> TensorValue:
    """Compute `abs(x)`."""
    return _number("abs", x)


def relu(x: TensorValueLike) -> TensorValue:
    """Return the larger of `x` and 0."""
    return _number("relu", x)


def sqrt(x: TensorValueLike) -> TensorValue:
    """Compute the square root, for floats."""
    return _float("sqrt", x)


def rsqrt(x: TensorValueLike) -> TensorValue:
    """Compute `1 / sqrt(x)`, for floats."""
    return _float("rsqrt", x)


def exp(x: TensorValueLike) -> TensorValue:
    """Compute `e ** x`, for floats."""
    return _float("exp", x)


def log(x: TensorValueLike) -> TensorValue:
    """Compute the natural logarithm, for floats."""
    return _float("log", x)


def log1p(x: TensorValueLike) -> TensorValue:
    """Compute `log(1 + x)`, exact for small `x` too, for floats."""
    value = operand("log1p", x)
    require_float("log1p", value)
    # What rounding takes from 1 + x, the quotient gives back: log(u) / (u - 1) hardly changes near u = 1.
    moved = 1.0 + value
    difference = moved - 1.0
    return where(difference == 0.0, value, log(moved) * where(difference == value, 1.0, value / difference))


def sin(x: TensorValueLike) -> TensorValue:
    """Compute the sine of radians, for floats."""
    return _float("sin", x)


def cos(x: TensorValueLike) -> TensorValue:
    """Compute the cosine of radians, for floats."""
    return _float("cos", x)


def acos(x: TensorValueLike) -> TensorValue:
    """Compute the angle in radians, 0 to pi, whose cosine is `x`, for floats; `x` is limited to -1 to 1."""
    value = operand("acos", x)
    require_float("acos", value)
    inside = max(min(value, 1.0), -1.0)
    return record("acos", [inside], inside.type)


def atanh(x: TensorValueLike) -> TensorValue:
    """Compute the inverse hyperbolic tangent, for floats."""
    return _float("atanh", x)


def tanh(x: TensorValueLike) -> TensorValue:
    """Compute the hyperbolic tangent, for floats."""
    return _float("tanh", x)


def erf(x: TensorValueLike) -> TensorValue:
    """Compute the error function, for floats."""
    return _float("erf", x)


def floor(x: TensorValueLike) -> TensorValue:
    """Round down to an integer, for floats."""
    return _float("floor", x)


def ceil(x: TensorValueLike) -> TensorValue:
    """Round up to an integer, for floats."""
    return _float("ceil", x)


def round(x: TensorValueLike) -> TensorValue:
    """Round to the nearest integer, and halves to the even one, for floats."""
    return _float("round", x)


def trunc(x: TensorValueLike) -> TensorValue:
    """Round toward 0 to an integer, for floats."""
    value = operand("trunc", x)
    require_float("trunc", value)
    return where(value < 0.0, ceil(value), floor(value))


def is_nan(x: TensorValueLike) -> TensorValue:
    """Return whether each float is NaN, as bool."""
    return _question("is_nan", x)


def is_inf(x: TensorValueLike) -> TensorValue:
    """Return whether each float is infinite, as bool."""
    return _question("is_inf", x)


def sigmoid(x: TensorValueLike) -> TensorValue:
    """Compute `1 / (1 + exp(-x))`, for floats."""
    return _float("sigmoid", x)


def silu(x: TensorValueLike) -> TensorValue:
    """Compute `x * sigmoid(x)`, for floats."""
    return _float("silu", x)


def gelu(x: TensorValueLike, approximate: str = "none") -> TensorValue:
    """Compute `x` times the cumulative normal distribution at `x`, for floats.

    Args:
        x: The tensor.
        approximate: `none` for the error function, `tanh` or `quick` (`x * sigmoid(1.702 * x)`) for its approximations.
    """
    if approximate not in ("none", "tanh", "quick"):
        raise graph_error("gelu", f"approximate must be 'none', 'tanh' or 'quick', not {approximate!r}")
    value = operand("gelu", x)
    require_float("gelu", value)
    return record("gelu", [value], value.type, approximate=approximate)


def cast(x: TensorValueLike, dtype: DTypeLike) -> TensorValue:
    """Convert each element to another dtype; the value itself if it has that dtype."""
    return converted(operand("cast", x), DType(dtype))


def _number(op: str, x: TensorValueLike) -> TensorValue:
    value = operand(op, x)
    require_number(op, value)
    return record(op, [value], value.type)


def _float(op: str, x: TensorValueLike) -> TensorValue:
    value = operand(op, x)
    require_float(op, value)
    return record(op, [value], value.type)


def _question(op: str, x: TensorValueLike) -> TensorValue:
    value = operand(op, x)
    require_float(op, value)
    return record(op, [value], like(value, dtype=DType.bool))
