"""Operations on each element, and comparisons. Operands are broadcast by NumPy's rules and converted to one dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import max_weights.graph._infer as infer
from max_weights._dtype import DType, DTypeLike
from max_weights.graph._promote import quotient
from max_weights.graph._stack import graph_error
from max_weights.graph._value import TensorValue, TensorValueLike
from max_weights.graph.ops._operands import (
    converted,
    like,
    named,
    operand,
    operands,
    record,
    require_bool,
    require_float,
    require_number,
    require_one_device,
)


class Unary(Protocol):
    """An operation on each element of one tensor."""

    def __call__(self, x: TensorValueLike) -> TensorValue:
        """Record the operation."""
        ...


class Binary(Protocol):
    """An operation on each pair of elements of two tensors."""

    def __call__(self, lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
        """Record the operation."""
        ...


def _unary(op: str, does: str, require: Callable[[str, TensorValue], None] = require_float) -> Unary:
    """Return the operation of this name, whose result has the type of the operand."""

    def function(x: TensorValueLike) -> TensorValue:
        value = operand(op, x)
        require(op, value)
        return record(op, [value], value.type)

    named(function, op, does)
    return function


def _question(op: str, does: str) -> Unary:
    """Return the operation on floats of this name, whose result is bool."""

    def function(x: TensorValueLike) -> TensorValue:
        value = operand(op, x, require_float)
        return record(op, [value], like(value, dtype=DType.bool))

    named(function, op, does)
    return function


def _arithmetic(name: str, does: str, op: str = "", logical: str | None = None) -> Binary:
    """Return the operation on numbers of this name; `logical` is its form for bool."""

    def function(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
        left, right = operands(op or name, lhs, rhs)
        shape = infer.broadcast(op or name, left.shape, right.shape)
        if left.dtype is DType.bool and logical is not None:
            return record(logical, [left, right], like(left, shape))
        require_number(op or name, left)
        return record(op or name, [left, right], like(left, shape))

    named(function, name, does)
    return function


def _logical(op: str, does: str) -> Binary:
    """Return the operation on bool of this name."""

    def function(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
        left, right = operands(op, lhs, rhs)
        require_bool(op, left)
        return record(op, [left, right], like(left, infer.broadcast(op, left.shape, right.shape)))

    named(function, op, does)
    return function


def _comparison(op: str, does: str, ordered: bool = True) -> Binary:
    """Return the comparison of this name, whose result is bool."""

    def function(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
        left, right = operands(op, lhs, rhs)
        if ordered and left.dtype is DType.bool:  # false is less than true
            left, right = converted(left, DType.int32), converted(right, DType.int32)
        return record(op, [left, right], like(left, infer.broadcast(op, left.shape, right.shape), DType.bool))

    named(function, op, does)
    return function


add = _arithmetic("add", "Compute `lhs + rhs`; for two tensors of bool `lhs | rhs`, as in NumPy.", "", "logical_or")
sub = _arithmetic("sub", "Compute `lhs - rhs`.")
mul = _arithmetic("mul", "Compute `lhs * rhs`; for two tensors of bool `lhs & rhs`, as in NumPy.", "", "logical_and")
max = _arithmetic("max", "Return the larger of each pair of elements. See also `ops.max`.", "maximum", "logical_or")
min = _arithmetic("min", "Return the smaller of each pair of elements. See also `ops.min`.", "minimum", "logical_and")
floordiv = _arithmetic("floordiv", "Compute `lhs // rhs`, rounded toward minus infinity.")
floor_div = floordiv
"""The same as `floordiv`."""
mod = _arithmetic("mod", "Compute `lhs % rhs`, with the sign of `rhs`.")
pow = _arithmetic("pow", "Compute `lhs ** rhs`.")
equal = _comparison("equal", "Compute `lhs == rhs`, element by element.", ordered=False)
not_equal = _comparison("not_equal", "Compute `lhs != rhs`, element by element.", ordered=False)
less = _comparison("less", "Compute `lhs < rhs`, element by element.")
less_equal = _comparison("less_equal", "Compute `lhs <= rhs`, element by element.")
greater = _comparison("greater", "Compute `lhs > rhs`, element by element.")
greater_equal = _comparison("greater_equal", "Compute `lhs >= rhs`, element by element.")
logical_and = _logical("logical_and", "Compute `lhs & rhs`, for bool.")
logical_or = _logical("logical_or", "Compute `lhs | rhs`, for bool.")
logical_xor = _logical("logical_xor", "Compute `lhs ^ rhs`, for bool.")
logical_not = _unary("logical_not", "Compute `~x`, for bool.", require_bool)
abs = _unary("abs", "Compute `abs(x)`.", require_number)
relu = _unary("relu", "Return the larger of `x` and 0.", require_number)
sqrt = _unary("sqrt", "Compute the square root, for floats.")
rsqrt = _unary("rsqrt", "Compute `1 / sqrt(x)`, for floats.")
exp = _unary("exp", "Compute `e ** x`, for floats.")
log = _unary("log", "Compute the natural logarithm, for floats.")
sin = _unary("sin", "Compute the sine of radians, for floats.")
cos = _unary("cos", "Compute the cosine of radians, for floats.")
atanh = _unary("atanh", "Compute the inverse hyperbolic tangent, for floats.")
tanh = _unary("tanh", "Compute the hyperbolic tangent, for floats.")
erf = _unary("erf", "Compute the error function, for floats.")
floor = _unary("floor", "Round down to an integer, for floats.")
ceil = _unary("ceil", "Round up to an integer, for floats.")
round = _unary("round", "Round to the nearest integer, and halves to the even one, for floats.")
sigmoid = _unary("sigmoid", "Compute `1 / (1 + exp(-x))`, for floats.")
silu = _unary("silu", "Compute `x * sigmoid(x)`, for floats.")
is_nan = _question("is_nan", "Return whether each float is NaN, as bool.")
is_inf = _question("is_inf", "Return whether each float is infinite, as bool.")


def div(lhs: TensorValueLike, rhs: TensorValueLike) -> TensorValue:
    """Compute `lhs / rhs`; the quotient of integers, of any two kinds, is float64, as in NumPy."""
    left, right = operands("div", lhs, rhs, common=quotient)
    shape = infer.broadcast("div", left.shape, right.shape)
    require_number("div", left)
    if left.dtype.is_integral():
        left, right = converted(left, DType.float64), converted(right, DType.float64)
    return record("div", [left, right], like(left, shape))


def neg(x: TensorValueLike) -> TensorValue:
    """Compute `-x`; not for unsigned integers."""
    value = operand("neg", x, require_number)
    if value.dtype.is_unsigned_integral():
        raise graph_error("neg", f"{value.dtype!r} has no negative numbers; convert it with `.cast(...)`")
    return record("neg", [value], value.type)


negate = neg
"""The same as `neg`."""


def log1p(x: TensorValueLike) -> TensorValue:
    """Compute `log(1 + x)`, exact for small `x` too, for floats."""
    value = operand("log1p", x, require_float)
    # What rounding takes from 1 + x, the quotient gives back: log(u) / (u - 1) hardly changes near u = 1.
    moved = 1.0 + value
    difference = moved - 1.0
    return where(difference == 0.0, value, log(moved) * where(difference == value, 1.0, value / difference))


def acos(x: TensorValueLike) -> TensorValue:
    """Compute the angle in radians, 0 to pi, whose cosine is `x`, for floats; `x` is limited to -1 to 1."""
    value = operand("acos", x, require_float)
    inside = max(min(value, 1.0), -1.0)
    return record("acos", [inside], inside.type)


def trunc(x: TensorValueLike) -> TensorValue:
    """Round toward 0 to an integer, for floats."""
    value = operand("trunc", x, require_float)
    return where(value < 0.0, ceil(value), floor(value))


def gelu(x: TensorValueLike, approximate: str = "none") -> TensorValue:
    """Compute `x` times the cumulative normal distribution at `x`, for floats.

    Args:
        x: The tensor.
        approximate: `none` for the error function, `tanh` or `quick` (`x * sigmoid(1.702 * x)`) for its approximations.
    """
    if approximate not in ("none", "tanh", "quick"):
        raise graph_error("gelu", f"approximate must be 'none', 'tanh' or 'quick', not {approximate!r}")
    value = operand("gelu", x, require_float)
    return record("gelu", [value], value.type, approximate=approximate)


def cast(x: TensorValueLike, dtype: DTypeLike) -> TensorValue:
    """Convert each element to another dtype; the value itself if it has that dtype."""
    return converted(operand("cast", x), DType(dtype))


def where(condition: TensorValueLike, x: TensorValueLike, y: TensorValueLike) -> TensorValue:
    """Return the elements of `x` where the condition is true, else those of `y`; all three are broadcast together.

    Args:
        condition: A tensor of bool.
        x: A tensor or a number, with a common dtype with `y`.
        y: A tensor or a number.
    """
    chooser = operand("where", condition, require_bool)
    left, right = operands("where", x, y)
    require_one_device("where", [chooser, left, right])
    shape = infer.broadcast("where", infer.broadcast("where", left.shape, right.shape), chooser.shape)
    return record("where", [chooser, left, right], like(left, shape))
