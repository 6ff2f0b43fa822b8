"""The indices that safetensors accepts for arrays: integers, slices and `...`, none of which exceeds the array."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from max_weights.safetensors._errors import safetensor_error

if TYPE_CHECKING:
    from types import EllipsisType

__all__ = ["array_index"]


def array_index(index: object, shape: list[int]) -> tuple[int | slice | EllipsisType, ...]:
    """Return the index for NumPy; negative steps, and bounds that count from the end, are allowed, and are clipped."""
    if isinstance(index, list):
        if index:
            raise safetensor_error("Non empty lists are not implemented")
        index = slice(0, 0)
    entries = index if isinstance(index, tuple) else (index,)
    dots = [at for at, item in enumerate(entries) if item is Ellipsis]
    if len(dots) > 1:
        raise safetensor_error("Only one ellipsis (...) is allowed in slice index")
    for at in dots:
        entries = (*entries[:at], *[slice(None)] * (len(shape) - len(entries) + 1), *entries[at + 1 :])
    items = [_item(item, at, shape[at] if at < len(shape) else 0) for at, item in enumerate(entries)]
    wrong = _reaches_beyond(items, shape)
    if wrong is not None:
        text = ", ".join(map(_notation, items))
        raise safetensor_error(f"Error during slicing [{text}] with shape {shape}: {wrong}")
    return (*items, ...)


def _item(item: Any, at: int, size: int) -> int | slice:
    """Return one index, if it is of a supported kind."""
    if isinstance(item, slice):
        if item.step == 0:
            raise safetensor_error("Slice step must be a positive integer, got 0")
        return item
    try:
        number = operator.index(item)
    except TypeError:
        text = f"Unsupported slice index at position {at}: expected slice, int, or ellipsis"
        raise safetensor_error(text) from None
    if number < -size:
        raise safetensor_error(f"Invalid index {number} for dimension {at} of size {size}")
    return number + size if number < 0 else number


def _reaches_beyond(items: list[int | slice], shape: list[int]) -> str | None:
    """Return what is wrong with an index that is out of range."""
    if len(items) > len(shape):
        return "more slicing indexes than dimensions in tensor"
    for at, (item, size) in reversed(list(enumerate(zip(items, shape, strict=False)))):
        position = _first_beyond(item, size)
        if position is not None:
            return f"index {position} out of bounds for tensor dimension #{at} of size {size}"
    return None


def _first_beyond(item: int | slice, size: int) -> int | None:
    """Return what is selected of a dimension of this size. Nothing can be selected of an empty dimension."""
    if not isinstance(item, slice):
        return item if item >= size else None
    start, stop = item.start or 0, size if item.stop is None else item.stop
    if (item.step is not None and item.step < 0) or min(start, stop) < 0:
        return None
    if start >= size > 0 or start > size:
        return int(start)
    return stop - 1 if stop > size else None


def _notation(item: int | slice) -> str:
    """Return an index in Python's notation, without the brackets."""
    if not isinstance(item, slice):
        return str(item)
    bounds = [item.start, item.stop] if item.step in (None, 1) else [item.start, item.stop, item.step]
    return ":".join("" if bound is None else str(bound) for bound in bounds)
