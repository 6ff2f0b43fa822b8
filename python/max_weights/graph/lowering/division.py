"""Division that rounds toward minus infinity, and its remainder, as in Python and NumPy.

ONNX Runtime divides integers by the processor's instruction, which ends the process if the divisor is 0, or is -1 for
the smallest number. So divisors that may be either are replaced: with 0, quotient and remainder are 0, as in NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from max_weights.dtype import DType
from max_weights.graph.lowering.dtypes import computed_as

if TYPE_CHECKING:
    from max_weights.graph.lowering.scope import Scope

__all__ = ["choose", "quotient", "remainder"]


def choose(scope: Scope, condition: str, left: str, right: str, dtype: DType) -> str:
    """Write the elements of `left` where the condition is true, else those of `right`."""
    wide = computed_as("Where", dtype)
    made = scope.add("Where", [condition, scope.cast(left, dtype, wide), scope.cast(right, dtype, wide)])
    return scope.cast(made, wide, dtype)


def quotient(scope: Scope, left: str, right: str, dtype: DType, *, safe: bool) -> str:
    """Write `left // right`.

    Args:
        scope: The scope to write to.
        left: Numbers.
        right: Numbers of the same dtype.
        dtype: Integers, float32 or float64.
        safe: Whether it is known that no divisor is 0 or -1.
    """
    if dtype.is_float():
        return _of_floats(scope, left, right, dtype)
    divisor = right if safe else _safe(scope, right, dtype)
    made = scope.compute("Div", [left, divisor], dtype)
    zero = scope.constant(0, dtype)
    if dtype.is_signed_integral():
        rest = scope.compute("Mod", [left, divisor], dtype)
        down = scope.add("And", [_not_zero(scope, rest, dtype), _signs_differ(scope, left, divisor, dtype)])
        made = choose(scope, down, scope.compute("Sub", [made, scope.constant(1, dtype)], dtype), made, dtype)
        if not safe:
            negated = scope.compute("Neg", [left], dtype)
            made = choose(scope, _equal(scope, right, -1, dtype), negated, made, dtype)
    return made if safe else choose(scope, _equal(scope, right, 0, dtype), zero, made, dtype)


def remainder(scope: Scope, left: str, right: str, dtype: DType, *, safe: bool) -> str:
    """Write `left % right`, with the sign of `right`; the arguments are those of `quotient`."""
    if not dtype.is_float():
        return scope.compute("Mod", [left, right if safe else _safe(scope, right, dtype)], dtype)
    rest = scope.compute("Mod", [left, right], dtype, fmod=1)
    moved = scope.compute("Add", [rest, right], dtype)
    return choose(scope, _wrong_sign(scope, rest, right, dtype), moved, rest, dtype)


def _of_floats(scope: Scope, left: str, right: str, dtype: DType) -> str:
    """Divide without the remainder, which is whole except for rounding: 1 // 0.1 is 9, although 1 / 0.1 is 10."""
    rest = scope.compute("Mod", [left, right], dtype, fmod=1)
    whole = scope.compute("Div", [scope.compute("Sub", [left, rest], dtype), right], dtype)
    less = scope.compute("Sub", [whole, scope.constant(1, dtype)], dtype)
    whole = choose(scope, _wrong_sign(scope, rest, right, dtype), less, whole, dtype)
    made = scope.compute("Floor", [whole], dtype)
    above = scope.compute("Sub", [whole, made], dtype)
    above = scope.compute("Greater", [above, scope.constant(0.5, dtype)], dtype, made=DType.bool)
    more = scope.compute("Add", [made, scope.constant(1, dtype)], dtype)
    made = choose(scope, above, more, made, dtype)
    return choose(scope, _equal(scope, right, 0, dtype), scope.compute("Div", [left, right], dtype), made, dtype)


def _safe(scope: Scope, divisor: str, dtype: DType) -> str:
    bad = _equal(scope, divisor, 0, dtype)
    if dtype.is_signed_integral():
        bad = scope.add("Or", [bad, _equal(scope, divisor, -1, dtype)])
    return choose(scope, bad, scope.constant(1, dtype), divisor, dtype)


def _equal(scope: Scope, name: str, number: int, dtype: DType) -> str:
    return scope.compute("Equal", [name, scope.constant(number, dtype)], dtype, made=DType.bool)


def _not_zero(scope: Scope, name: str, dtype: DType) -> str:
    return scope.add("Not", [_equal(scope, name, 0, dtype)])


def _signs_differ(scope: Scope, left: str, right: str, dtype: DType) -> str:
    zero = scope.constant(0, dtype)
    return scope.add("Xor", [scope.compute("Less", [name, zero], dtype, made=DType.bool) for name in (left, right)])


def _wrong_sign(scope: Scope, rest: str, right: str, dtype: DType) -> str:
    return scope.add("And", [_not_zero(scope, rest, dtype), _signs_differ(scope, rest, right, dtype)])
