"""Python's operators on tensors: each records the corresponding operation of `ops`.

If the right side is not a tensor, the result is NotImplemented, so that Python asks that object, and otherwise raises
the error.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from max_weights.dim import Dim
from max_weights.shape import Shape

if TYPE_CHECKING:
    from max_weights.graph.value import TensorValue, TensorValueLike

__all__ = ["Operators", "is_array", "is_operand", "is_scalar"]


def is_scalar(value: object) -> bool:
    """Whether a value is a number without a dtype: Python's, NumPy's scalars, and arrays without axes."""
    if isinstance(value, bool | int | float):
        return True
    numpy = _numpy()
    return numpy is not None and (
        isinstance(value, numpy.generic) or (isinstance(value, numpy.ndarray) and value.ndim == 0)
    )


def is_array(value: object) -> bool:
    """Whether a value is a NumPy array of one axis or more."""
    numpy = _numpy()
    return numpy is not None and isinstance(value, numpy.ndarray) and value.ndim > 0


def is_operand(value: object) -> bool:
    """Whether an operator accepts a value beside a tensor."""
    return isinstance(value, Operators | Dim | Shape) or is_scalar(value) or is_array(value)


def _numpy() -> Any:
    return sys.modules.get("numpy")  # if there is an array, NumPy has been imported


def _record(op: str, left: object, right: object) -> TensorValue:
    fits = is_operand(left) and is_operand(right)
    result: TensorValue = getattr(_ops(), op)(left, right) if fits else NotImplemented
    return result


def _ops() -> ModuleType:
    import max_weights.graph.ops

    return max_weights.graph.ops


class Operators:
    """The operators of a tensor."""

    __slots__ = ()

    __array_ufunc__ = None  # so that NumPy leaves `array @ value` to __rmatmul__

    def __add__(self, other: TensorValueLike) -> TensorValue:
        return _record("add", self, other)

    def __radd__(self, other: TensorValueLike) -> TensorValue:
        return _record("add", other, self)

    def __sub__(self, other: TensorValueLike) -> TensorValue:
        return _record("sub", self, other)

    def __rsub__(self, other: TensorValueLike) -> TensorValue:
        return _record("sub", other, self)

    def __mul__(self, other: TensorValueLike) -> TensorValue:
        return _record("mul", self, other)

    def __rmul__(self, other: TensorValueLike) -> TensorValue:
        return _record("mul", other, self)

    def __truediv__(self, other: TensorValueLike) -> TensorValue:
        return _record("div", self, other)

    def __rtruediv__(self, other: TensorValueLike) -> TensorValue:
        return _record("div", other, self)

    def __floordiv__(self, other: TensorValueLike) -> TensorValue:
        return _record("floordiv", self, other)

    def __rfloordiv__(self, other: TensorValueLike) -> TensorValue:
        return _record("floordiv", other, self)

    def __mod__(self, other: TensorValueLike) -> TensorValue:
        return _record("mod", self, other)

    def __rmod__(self, other: TensorValueLike) -> TensorValue:
        return _record("mod", other, self)

    def __divmod__(self, other: TensorValueLike) -> tuple[TensorValue, TensorValue]:
        return (self // other, self % other) if is_operand(other) else NotImplemented

    def __rdivmod__(self, other: TensorValueLike) -> tuple[TensorValue, TensorValue]:
        return (other // self, other % self) if is_operand(other) else NotImplemented

    def __pow__(self, other: TensorValueLike) -> TensorValue:
        return _record("pow", self, other)

    def __rpow__(self, other: TensorValueLike) -> TensorValue:
        return _record("pow", other, self)

    def __matmul__(self, other: TensorValueLike) -> TensorValue:
        return _record("matmul", self, other)

    def __rmatmul__(self, other: TensorValueLike) -> TensorValue:
        return _record("matmul", other, self)

    def __and__(self, other: TensorValueLike) -> TensorValue:
        return _record("logical_and", self, other)

    def __rand__(self, other: TensorValueLike) -> TensorValue:
        return _record("logical_and", other, self)

    def __or__(self, other: TensorValueLike) -> TensorValue:
        return _record("logical_or", self, other)

    def __ror__(self, other: TensorValueLike) -> TensorValue:
        return _record("logical_or", other, self)

    def __xor__(self, other: TensorValueLike) -> TensorValue:
        return _record("logical_xor", self, other)

    def __rxor__(self, other: TensorValueLike) -> TensorValue:
        return _record("logical_xor", other, self)

    def __lt__(self, other: TensorValueLike) -> TensorValue:
        return _record("less", self, other)

    def __le__(self, other: TensorValueLike) -> TensorValue:
        return _record("less_equal", self, other)

    def __gt__(self, other: TensorValueLike) -> TensorValue:
        return _record("greater", self, other)

    def __ge__(self, other: TensorValueLike) -> TensorValue:
        return _record("greater_equal", self, other)

    def __eq__(self, other: object) -> Any:
        return _record("equal", self, other)

    def __ne__(self, other: object) -> Any:
        return _record("not_equal", self, other)

    __hash__ = object.__hash__

    def __neg__(self) -> TensorValue:
        return cast("TensorValue", _ops().neg(self))

    def __abs__(self) -> TensorValue:
        return cast("TensorValue", _ops().abs(self))

    def __round__(self) -> TensorValue:
        return cast("TensorValue", _ops().round(self))

    def __invert__(self) -> TensorValue:
        return cast("TensorValue", _ops().logical_not(self))
