"""Division that rounds toward minus infinity, and its remainder, as in Python and NumPy.

ONNX Runtime divides integers by the processor's instruction, which ends the process if the divisor is 0, or is -1 for
the smallest number. So divisors that may be either are replaced: with 0, quotient and remainder are 0, as in NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from max_weights._dtype import DType
from max_weights.graph._lowering.dtypes import computed_as

if TYPE_CHECKING:
    import onnx_ir as ir

    from max_weights.graph._lowering.writer import Writer

__all__ = ["choose", "quotient", "remainder"]


def choose(writer: Writer, condition: ir.Value, left: ir.Value, right: ir.Value, dtype: DType) -> ir.Value:
    """Write the elements of `left` where the condition is true, else those of `right`."""
    wide = computed_as("Where", dtype)
    result = writer.add("Where", [condition, writer.cast(left, dtype, wide), writer.cast(right, dtype, wide)])
    return writer.cast(result, wide, dtype)


def quotient(writer: Writer, left: ir.Value, right: ir.Value, dtype: DType, *, safe: bool) -> ir.Value:
    """Write `left // right`; `safe` if it is known that no divisor is 0 or -1."""
    if dtype.is_float():
        return _of_floats(writer, left, right, dtype)
    divisor = right if safe else _safe(writer, right, dtype)
    result = writer.compute("Div", [left, divisor], dtype)
    zero = writer.constant(0, dtype)
    if dtype.is_signed_integral():
        rest = writer.compute("Mod", [left, divisor], dtype)
        down = writer.add("And", [_not_zero(writer, rest, dtype), _signs_differ(writer, left, divisor, dtype)])
        result = choose(writer, down, writer.compute("Sub", [result, writer.constant(1, dtype)], dtype), result, dtype)
        if not safe:
            negated = writer.compute("Neg", [left], dtype)
            result = choose(writer, _equal(writer, right, -1, dtype), negated, result, dtype)
    return result if safe else choose(writer, _equal(writer, right, 0, dtype), zero, result, dtype)


def remainder(writer: Writer, left: ir.Value, right: ir.Value, dtype: DType, *, safe: bool) -> ir.Value:
    """Write `left % right`, with the sign of `right`; the arguments are those of `quotient`."""
    if not dtype.is_float():
        return writer.compute("Mod", [left, right if safe else _safe(writer, right, dtype)], dtype)
    rest = writer.compute("Mod", [left, right], dtype, fmod=1)
    shifted = writer.compute("Add", [rest, right], dtype)
    return choose(writer, _wrong_sign(writer, rest, right, dtype), shifted, rest, dtype)


def _of_floats(writer: Writer, left: ir.Value, right: ir.Value, dtype: DType) -> ir.Value:
    """Divide without the remainder, which is whole except for rounding: 1 // 0.1 is 9, although 1 / 0.1 is 10."""
    rest = writer.compute("Mod", [left, right], dtype, fmod=1)
    whole = writer.compute("Div", [writer.compute("Sub", [left, rest], dtype), right], dtype)
    less = writer.compute("Sub", [whole, writer.constant(1, dtype)], dtype)
    whole = choose(writer, _wrong_sign(writer, rest, right, dtype), less, whole, dtype)
    result = writer.compute("Floor", [whole], dtype)
    above = writer.compute("Sub", [whole, result], dtype)
    above = writer.compute("Greater", [above, writer.constant(0.5, dtype)], dtype, result_dtype=DType.bool)
    more = writer.compute("Add", [result, writer.constant(1, dtype)], dtype)
    result = choose(writer, above, more, result, dtype)
    return choose(writer, _equal(writer, right, 0, dtype), writer.compute("Div", [left, right], dtype), result, dtype)


def _safe(writer: Writer, divisor: ir.Value, dtype: DType) -> ir.Value:
    bad = _equal(writer, divisor, 0, dtype)
    if dtype.is_signed_integral():
        bad = writer.add("Or", [bad, _equal(writer, divisor, -1, dtype)])
    return choose(writer, bad, writer.constant(1, dtype), divisor, dtype)


def _equal(writer: Writer, name: ir.Value, number: int, dtype: DType) -> ir.Value:
    return writer.compute("Equal", [name, writer.constant(number, dtype)], dtype, result_dtype=DType.bool)


def _not_zero(writer: Writer, name: ir.Value, dtype: DType) -> ir.Value:
    return writer.add("Not", [_equal(writer, name, 0, dtype)])


def _signs_differ(writer: Writer, left: ir.Value, right: ir.Value, dtype: DType) -> ir.Value:
    zero = writer.constant(0, dtype)
    return writer.add(
        "Xor", [writer.compute("Less", [name, zero], dtype, result_dtype=DType.bool) for name in (left, right)]
    )


def _wrong_sign(writer: Writer, rest: ir.Value, right: ir.Value, dtype: DType) -> ir.Value:
    return writer.add("And", [_not_zero(writer, rest, dtype), _signs_differ(writer, rest, right, dtype)])
