"""Conversion of operands to values of the current graph: numbers, arrays, dimensions, values, weights."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import max_weights.graph._infer as infer
from max_weights._devices import DeviceRef
from max_weights._dim import Dim, StaticDim
from max_weights._dtype import DType
from max_weights._shape import Shape, ShapeLike
from max_weights.graph._promote import fit_scalar, promote
from max_weights.graph._stack import current, graph_error
from max_weights.graph._type import TensorType
from max_weights.graph._value import TensorValue, TensorValueLike

if TYPE_CHECKING:
    from types import ModuleType


CPU = DeviceRef.CPU()


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
    """Whether an operator accepts a value together with a tensor."""
    return isinstance(value, TensorValue | Dim | Shape) or is_scalar(value) or is_array(value)


def _numpy() -> ModuleType | None:
    return sys.modules.get("numpy")  # if there is an array, NumPy has been imported


def record(op: str, inputs: Iterable[TensorValue], *types: TensorType, **attributes: object) -> TensorValue:
    """Record an operation in the current graph, and return its first result."""
    return current(op).record(op, inputs, types, attributes).outputs[0]


def like(value: TensorValue, shape: ShapeLike | None = None, dtype: DType | None = None) -> TensorType:
    """Return the type of a value, with the given changes."""
    return TensorType(value.dtype if dtype is None else dtype, value.shape if shape is None else shape, value.device)


def operand(op: str, value: TensorValueLike, require: Callable[[str, TensorValue], None] | None = None) -> TensorValue:
    """Return a value of the current graph, which meets what is required of it."""
    tensor = _operand(op, value)
    if require is not None:
        require(op, tensor)
    return tensor


def along(op: str, x: TensorValueLike, axis: int) -> tuple[TensorValue, Shape, int]:
    """Return a value, its shape, and one of its axes counted from the front."""
    value = operand(op, x)
    shape = value.shape
    return value, shape, infer.axis_of(op, axis, len(shape), shape)


def _operand(op: str, value: TensorValueLike) -> TensorValue:
    if isinstance(value, TensorValue):
        value = value._value()
        return current(op)._own(op, value)
    if isinstance(value, Dim):
        return scalar(op, value, DType.int64, CPU)
    if isinstance(value, Shape):
        kind = TensorType(DType.int64, [len(value)], CPU)
        if value.is_static:
            return record("constant", (), kind, value=tuple(value.static_dims))
        return record("shape", (), kind, dims=tuple(value))
    if is_array(value):
        return array(op, value, None, CPU)
    raise TypeError(
        f"{op}: {type(value).__name__} is not a tensor; make it one with ops.constant(value, dtype, device)"
    )


def scalar(op: str, value: object, dtype: DType, device: DeviceRef) -> TensorValue:
    """Return a constant without axes, or the size of a dimension, as this dtype."""
    kind = TensorType(dtype, [], device)
    if isinstance(value, Dim) and not isinstance(value, StaticDim):
        if not (dtype.is_integral() or dtype.is_float()):
            raise graph_error(
                op, f"the dimension {value} is combined with a tensor of {dtype!r}, which accepts no numbers"
            )
        return record("dim", (), kind, dim=value)
    return record("constant", (), kind, value=fit_scalar(op, _number(op, value), dtype))


def _number(op: str, value: Any) -> bool | int | float:
    """Return the number of a scalar as a Python number."""
    number = value.dim if isinstance(value, StaticDim) else value
    if not isinstance(number, bool | int | float):
        number = number.item()
    if isinstance(number, bool | int | float):
        # NumPy's float64 is a float, but no float should be told from another by its class later.
        return float(number) if isinstance(number, float) else number
    try:
        if DType.from_numpy(value.dtype).is_float():  # items of ml_dtypes are not Python numbers
            return float(number)
    except ValueError:
        pass
    raise TypeError(f"{op}: {number!r} of type {type(value).__name__} is not a number that a tensor accepts")


def array(op: str, value: Any, dtype: DType | None, device: DeviceRef) -> TensorValue:
    """Return a constant with the elements of an array, which are copied."""
    import numpy as np

    if not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))
    try:
        source = DType.from_numpy(value.dtype)
    except ValueError as error:
        raise graph_error(op, str(error)) from None
    target = source if dtype is None else dtype
    data = np.array(value, dtype=value.dtype, copy=True)
    if target is not source:
        with np.errstate(all="ignore"):
            data = value.astype(target.to_numpy())
            exact = bool(np.array_equal(data.astype(value.dtype), value))
            infinite = target.is_float() and source.is_float() and np.isinf(data.astype(np.float64)).any()
        if not target.is_float() and not exact:
            raise graph_error(
                op, f"an array of {source!r} does not fit {target!r} without changing its values; convert it yourself"
            )
        if infinite and not np.isinf(value.astype(np.float64)).any():
            raise graph_error(op, f"an array of {source!r} has values outside the range of {target!r}")
    data.flags.writeable = False
    return record("constant", (), TensorType(target, data.shape, device), value=data)


def operands(
    op: str, *values: TensorValueLike, common: Callable[[str, DType, DType], DType] = promote
) -> list[TensorValue]:
    """Return values of one dtype and one device.

    Numbers and dimensions take both from the tensors, arrays take the device.
    """
    tensors = [
        operand(op, value)
        if isinstance(value, TensorValue) or not (is_scalar(value) or is_array(value) or isinstance(value, Dim))
        else None
        for value in values
    ]
    device = next((value.device for value in tensors if value is not None), CPU)
    tensors = [
        array(op, original, None, device) if value is None and is_array(original) else value
        for original, value in zip(values, tensors, strict=True)
    ]
    present = [value for value in tensors if value is not None]
    if not present and any(isinstance(value, Dim) for value in values):
        present = [operand(op, value) for value in values if isinstance(value, Dim)][:1]
    if not present:
        raise TypeError(f"{op}: none of the operands is a tensor; make one with ops.constant(value, dtype, device)")
    dtype = present[0].dtype
    for value in present[1:]:
        dtype = common(op, dtype, value.dtype)
    require_one_device(op, present)
    return [
        scalar(op, original, dtype, present[0].device) if value is None else converted(value, dtype)
        for original, value in zip(values, tensors, strict=True)
    ]


def require_one_device(op: str, values: Iterable[TensorValue]) -> None:
    """Refuse operands on different devices."""
    first: DeviceRef | None = None
    for value in values:
        device = value.device
        first = first or device
        if device is not first and device != first:
            raise graph_error(
                op,
                f"the operands are on {first} and {device}; move one with `ops.transfer_to(x, device)` "
                f"or `x.to({str(first)!r})`",
            )


def converted(value: TensorValue, dtype: DType) -> TensorValue:
    """Return the value as another dtype; itself if it has that."""
    return value if value.dtype is dtype else record("cast", [value], like(value, dtype=dtype), dtype=dtype)


def require_float(op: str, value: TensorValue) -> None:
    """Refuse anything but floats."""
    if not value.dtype.is_float():
        raise graph_error(op, f"needs a float, found {value.type}; convert it with `.cast(DType.float32)`")


def require_number(op: str, value: TensorValue) -> None:
    """Refuse bool."""
    if value.dtype is DType.bool:
        raise graph_error(op, f"needs numbers, found {value.type}; convert it with `.cast(...)`")


def require_bool(op: str, value: TensorValue) -> None:
    """Refuse anything but bool."""
    if value.dtype is not DType.bool:
        raise graph_error(op, f"needs bool, found {value.type}; compare it, as in `x != 0`")


def named(function: Callable[..., TensorValue], name: str, does: str) -> None:
    """Give one of several similar operations its own name and text."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = does
