"""The indices that safetensors takes for arrays: integers, slices and `...`, none of which reaches beyond the array."""

from __future__ import annotations

import operator
from typing import Any

from max_weights.safetensors.errors import safetensor_error

__all__ = ["array_index"]


def array_index(index: Any, shape: list[int]) -> tuple[Any, ...]:
    """The index for NumPy. Slices may have negative steps and bounds that count from the end, too; those are clipped.

    Raises:
        SafetensorError: an index that safetensors refuses, in its words.
    """
    if isinstance(index, list):
        if index:
            raise safetensor_error("Non empty lists are not implemented")
        return (slice(0, 0),)
    items = index if isinstance(index, tuple) else (index,)
    dots = sum(item is Ellipsis for item in items)
    if dots > 1:
        raise safetensor_error("Only one ellipsis (...) is allowed in slice index")
    if len(items) - dots > len(shape):
        raise _refused(items, shape, "more slicing indexes than dimensions in tensor")
    checked: list[Any] = []
    dimension = 0
    for item in items:
        if item is Ellipsis:
            checked.append(item)
            dimension += len(shape) - (len(items) - 1)
            continue
        checked.append(_checked(item, items, shape, dimension))
        dimension += 1
    return tuple(checked)


def _checked(item: Any, items: tuple[Any, ...], shape: list[int], dimension: int) -> Any:
    """One index of the array's dimension of this number."""
    size = shape[dimension]
    if isinstance(item, slice):
        if item.step == 0:
            raise safetensor_error("Slice step must be a positive integer, got 0")
        start, stop = item.start or 0, size if item.stop is None else item.stop
        if (item.step is None or item.step > 0) and min(start, stop) >= 0:
            if start >= size > 0:
                raise _out_of_bounds(items, shape, dimension, start)
            if stop > size:
                raise _out_of_bounds(items, shape, dimension, stop - 1)
        return item
    try:
        number = operator.index(item)
    except TypeError:
        text = f"Unsupported slice index at position {dimension}: expected slice, int, or ellipsis"
        raise safetensor_error(text) from None
    if number < -size:
        raise safetensor_error(f"Invalid index {number} for dimension {dimension} of size {size}")
    if number >= size:
        raise _out_of_bounds(items, shape, dimension, number)
    return number


def _out_of_bounds(items: tuple[Any, ...], shape: list[int], dimension: int, asked: int) -> Exception:
    what = f"index {asked} out of bounds for tensor dimension #{dimension} of size {shape[dimension]}"
    return _refused(items, shape, what)


def _refused(items: tuple[Any, ...], shape: list[int], why: str) -> Exception:
    return safetensor_error(f"Error during slicing [{', '.join(map(_written, items))}] with shape {shape}: {why}")


def _written(item: Any) -> str:
    """An index as it is written between brackets."""
    if not isinstance(item, slice):
        return "..." if item is Ellipsis else repr(item)
    bounds = [item.start, item.stop] if item.step in (None, 1) else [item.start, item.stop, item.step]
    return ":".join("" if bound is None else repr(bound) for bound in bounds)
