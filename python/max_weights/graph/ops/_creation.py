"""Create tensors from numbers."""

from __future__ import annotations

import builtins
import math
from typing import Any

from max_weights._devices import DeviceRef
from max_weights._dim import Dim, DimLike, StaticDim, to_dim
from max_weights._dtype import DType, DTypeLike
from max_weights._shape import Shape, ShapeLike
from max_weights.graph._stack import graph_error
from max_weights.graph._type import TensorType
from max_weights.graph._value import TensorValue, TensorValueLike
from max_weights.graph.ops._operands import CPU, array, converted, is_array, is_scalar, operand, record, scalar


def constant(value: Any, dtype: DTypeLike | None = None, device: DeviceRef | str | None = None) -> TensorValue:
    """Create a tensor that is part of the graph. Its elements are copied, so use a `Weight` for a large one.

    Args:
        value: A number, nested lists of numbers, a NumPy array, or any object in host memory that supports DLPack. An
            array may lose precision but not range, and integers must not change.
        dtype: By default that of an array; bool, int64 and float32 for Python's bool, int and float.
        device: By default the CPU.
    """
    place = CPU if device is None else DeviceRef.from_device(device)
    target = None if dtype is None else DType(dtype)
    if is_scalar(value):
        return scalar("constant", value, _dtype_of(value) if target is None else target, place)
    if is_array(value):
        return array("constant", value, target, place)
    import numpy as np

    if isinstance(value, list | tuple):
        elements = np.asarray(value)
        if target is None and elements.dtype == np.float64:
            target = DType.float32
        return array("constant", elements, target, place)
    if hasattr(value, "__dlpack__"):
        from max_weights._buffer import to_numpy
        from max_weights._core import Buffer

        return array("constant", to_numpy(Buffer.from_dlpack(value)), target, place)
    raise TypeError(f"constant: {type(value).__name__} is neither a number nor an array")


def range(
    start: TensorValueLike,
    stop: TensorValueLike,
    step: TensorValueLike = 1,
    out_dim: DimLike | None = None,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceRef | str | None = None,
) -> TensorValue:
    """Create the numbers from `start` up to but not including `stop`, `step` apart.

    Args:
        start: A number, a `Dim`, or a scalar tensor.
        stop: A number, a `Dim`, or a scalar tensor.
        step: A number, a `Dim`, or a scalar tensor; not 0.
        out_dim: The number of elements; needed if it cannot be computed, because a tensor, or a float together with a
            symbol, is among the arguments.
        dtype: By default int64, or float32 if one of the three is a float.
        device: By default the CPU.
    """
    bounds = (start, stop, step)
    place = CPU if device is None else DeviceRef.from_device(device)
    tensors = [value for value in bounds if isinstance(value, TensorValue)]
    if dtype is not None:
        kind = DType(dtype)
    elif tensors:
        kind = tensors[0].dtype
    else:
        kind = DType.float32 if any(isinstance(value, float) for value in bounds) else DType.int64
    if kind is DType.bool:
        raise graph_error("range", "bool cannot be used for a range")
    size = None if tensors else _count(start, stop, step)
    if out_dim is not None:
        stated = to_dim(out_dim)
        if isinstance(size, StaticDim) and isinstance(stated, StaticDim) and size != stated:
            raise graph_error("range", f"from {start} to {stop} by {step} there are {size} numbers, not {stated}")
        size = stated
    if size is None:
        raise graph_error("range", "the number of elements is unknown; give it as out_dim")
    ends = []
    for value in bounds:
        if is_scalar(value):
            ends.append(scalar("range", value, kind, CPU))
        else:
            end = operand("range", value)
            if end.rank or not end.device.is_cpu():
                raise graph_error("range", f"start, stop and step must be scalars on the CPU, found {end.type}")
            ends.append(converted(end, kind))
    return record("range", ends, TensorType(kind, [size], place))


def shape_to_tensor(shape: ShapeLike) -> TensorValue:
    """Return the sizes of a shape as int64 on the CPU, `[rank]`: known at once, or computed at each run."""
    return operand("shape_to_tensor", Shape(shape))


def hann_window(
    window_length: int, device: DeviceRef | str, periodic: bool = True, dtype: DTypeLike = DType.float32
) -> TensorValue:
    """Create a Hann window, `0.5 - 0.5 * cos(2 * pi * i / n)`, as `[window_length]`.

    Args:
        window_length: The number of elements; 0 gives none, 1 gives `[1]`.
        device: The device of the window.
        periodic: Whether n is `window_length`, so that windows can follow one another, or one less, so that the window
            ends as it begins.
        dtype: A float dtype.
    """
    if isinstance(window_length, bool) or not isinstance(window_length, builtins.int):
        raise TypeError(f"hann_window: the length must be an int, not {window_length!r}")
    if window_length < 0:
        raise graph_error("hann_window", f"the length must not be negative, found {window_length}")
    kind = DType(dtype)
    if not kind.is_float():
        raise graph_error("hann_window", f"a window must be of floats, not {kind!r}")
    period = window_length if periodic else window_length - 1
    numbers = [0.5 - 0.5 * math.cos(2.0 * math.pi * i / period) for i in builtins.range(window_length if period else 0)]
    return constant(numbers if window_length != 1 else [1.0], kind, device)


def _dtype_of(value: Any) -> DType:
    if isinstance(value, bool):
        return DType.bool
    if type(value) is builtins.int:
        return DType.int64
    return DType.float32 if type(value) is builtins.float else DType.from_numpy(value.dtype)


def _count(start: Any, stop: Any, step: Any) -> Dim | None:
    """Return the number of elements; `None` if it cannot be computed."""
    numbers = [value.dim if isinstance(value, StaticDim) else value for value in (start, stop, step)]
    numbers = [value.item() if is_scalar(value) and hasattr(value, "item") else value for value in numbers]
    first, last, step = numbers
    if step == 0:
        raise graph_error("range", "the step must not be 0")
    if all(isinstance(value, builtins.int) for value in numbers):
        return to_dim(len(builtins.range(first, last, step)))
    if all(isinstance(value, builtins.int | builtins.float) for value in numbers):
        return to_dim(max(math.ceil((last - first) / step), 0))
    if isinstance(step, builtins.int) and step > 0 and all(isinstance(v, builtins.int | Dim) for v in (first, last)):
        if isinstance(first, builtins.int) and first < 0:
            distance = to_dim(last) + -first
        elif isinstance(last, builtins.int) and last < 0:
            return None
        else:
            distance = to_dim(last) - first
        return (distance + (step - 1)) // step
    return None
