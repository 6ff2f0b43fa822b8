"""Parts of a tensor, by position.

A slice has to be inside its dimension; otherwise it is refused, as in MAX. For a symbolic dimension this is assumed:
`x[1:]` of `[n]` has `n - 1` elements, `x[:3]` has 3. The conditions (`n >= 1`, `n >= 3`) are stored with the operation,
and checked when the graph is run.
"""

from __future__ import annotations

import operator
from typing import Any, TypeAlias

import max_weights.graph._infer as infer
from max_weights._dim import Dim, StaticDim, to_dim
from max_weights._dtype import DType
from max_weights._shape import Shape, listed
from max_weights.graph._errors import GraphError, GraphIndexError
from max_weights.graph._stack import graph_error
from max_weights.graph._value import TensorValue, TensorValueLike
from max_weights.graph.ops._operands import CPU, converted, is_array, like, operand, record, require_one_device, scalar

_OP = "slice_tensor"

# One entry of a normalised index: an int; start, stop and step (None for the end of the dimension); or a new axis.
_Slice: TypeAlias = tuple[int | Dim | None, int | Dim | None, int]
_Entry: TypeAlias = int | _Slice | None
# The assumptions: the first of each pair is at least the second.
_Minimums: TypeAlias = list[tuple[Dim, Dim]]

_LAST = 2**63 - 1  # the bound of a slice that is open at an end, for code that counts its bounds in int64
_STATE_IT = "give it: `x[(slice(...), size), ...]`"


def slice_tensor(x: TensorValueLike, indices: object) -> TensorValue:
    """Return `x[indices]`, by NumPy's rules for basic indexing, and for tensors of indices.

    Args:
        x: Any tensor.
        indices: One entry, or several as a tuple or list. An int, or a tensor of integers without axes. A slice, whose
            bounds may be `Dim`. A pair `(slice, size)`, which states the size of the result where it cannot be
            computed; its bounds may be tensors, of one integer on the CPU. An ellipsis `...`. None for a new axis of
            size 1. At most one tensor or array of integers with axes, together with slices only: its axes replace the
            indexed axis.

    Raises:
        GraphIndexError: a position outside a known size, or more entries than axes (an IndexError and a ValueError).
        GraphError: the size of a slice cannot be known, or the slice ends before it begins (a ValueError).
    """
    value = operand(_OP, x)
    shape = value.shape
    entries = _expanded(indices, shape)
    if any(_is_tensor(entry) or _has_tensor_bounds(entry) for entry in entries):
        return _by_tensors(value, entries)
    index: list[_Entry] = []
    sizes: list[Dim] = []
    minimums: _Minimums = []
    axis = 0
    for entry in entries:
        if entry is None:
            index.append(None)
            sizes.append(to_dim(1))
            continue
        dim = shape[axis]
        if isinstance(entry, slice | tuple):
            bounds, size, more = _sliced(entry, dim, shape)
            index.append(bounds)
            sizes.append(size)
            minimums += more
        else:
            number = _int(entry)
            if isinstance(dim, StaticDim):
                _require_inside(number, dim.dim, axis, shape)
            else:
                minimums.append((dim, to_dim(number + 1 if number >= 0 else -number)))
            index.append(number)
        axis += 1
    return record(_OP, [value], like(value, sizes), index=tuple(index), minimums=tuple(minimums))


def gather(input: TensorValueLike, indices: TensorValueLike, axis: int) -> TensorValue:
    """Return the slices at the given positions of an axis.

    Args:
        input: `[..., n, ...]`, with n at `axis`.
        indices: Integers of any shape, -n to n - 1. Their axes replace `axis`.
        axis: The axis.
    """
    value, positions = operand("gather", input), operand("gather", indices)
    if not positions.dtype.is_integral():
        raise graph_error("gather", f"the indices must be integers, found {positions.type}")
    require_one_device("gather", [value, positions])
    shape = value.shape
    axis = infer.axis_of("gather", axis, len(shape), shape)
    return record(
        "gather", [value, positions], like(value, shape[:axis] + positions.shape + shape[axis + 1 :]), axis=axis
    )


def _expanded(indices: object, shape: Shape) -> list[Any]:
    """Return the entries, one per axis and new axis, with `...` expanded."""
    entries = list(indices) if isinstance(indices, tuple | list) else [indices]
    ellipses = [i for i, entry in enumerate(entries) if entry is Ellipsis]
    if len(ellipses) > 1:
        raise graph_error(_OP, "an index can have at most one `...`", GraphIndexError)
    used = sum(entry is not None and entry is not Ellipsis for entry in entries)
    if used > len(shape):
        raise graph_error(
            _OP, f"{used} indices for the {len(shape)} axes of the shape {listed(shape)}", GraphIndexError
        )
    rest = [slice(None)] * (len(shape) - used)
    where = ellipses[0] if ellipses else len(entries)
    return entries[:where] + rest + entries[where + 1 :]


def _is_tensor(entry: object) -> bool:
    return isinstance(entry, TensorValue) or is_array(entry)


def _has_tensor_bounds(entry: object) -> bool:
    whole = entry[0] if isinstance(entry, tuple) and entry else entry
    return isinstance(whole, slice) and any(isinstance(bound, TensorValue) for bound in (whole.start, whole.stop))


def _by_tensors(value: TensorValue, entries: list[Any]) -> TensorValue:
    """Index without tensors first, in one operation; then record one for each entry with a tensor, from the back."""
    positions = {place: operand(_OP, entry) for place, entry in enumerate(entries) if _is_tensor(entry)}
    for index in positions.values():
        if not index.dtype.is_integral():
            raise graph_error(
                _OP, f"a tensor of indices must hold integers, found {index.type}; ops.where chooses by bool"
            )
    rows = any(index.rank for index in positions.values())
    one_by_one = [entry is not None and not isinstance(entry, slice | tuple) for entry in entries]
    if rows and sum(one_by_one) > 1:
        raise graph_error(_OP, "only one tensor of indices at a time, and only slices with it; index in two steps")
    moved = positions.keys() | {place for place, entry in enumerate(entries) if _has_tensor_bounds(entry)}
    others = tuple(slice(None) if place in moved else entry for place, entry in enumerate(entries))
    if any(entry != slice(None) for entry in others):
        value = slice_tensor(value, others)
    for place in sorted(moved, reverse=True):
        axis = place - sum(drops_axis and before not in moved for before, drops_axis in enumerate(one_by_one[:place]))
        value = gather(value, positions[place], axis) if place in positions else _between(value, entries[place], axis)
    return value


def _between(value: TensorValue, entry: object, axis: int) -> TensorValue:
    """Slice one axis with bounds that are computed in the graph."""
    if not isinstance(entry, tuple):
        raise graph_error(_OP, f"the size of a slice between tensors is not known; {_STATE_IT}")
    whole, size = _stated(entry)
    step = _step(whole)
    shape = value.shape
    shape[axis] = size
    ends = (0, _LAST) if step > 0 else (_LAST, -_LAST - 1)
    bounds = [
        _position(end if bound is None else bound) for bound, end in zip((whole.start, whole.stop), ends, strict=True)
    ]
    return record("slice_between", [value, *bounds], like(value, shape), axis=axis, step=step)


def _position(bound: object) -> TensorValue:
    """Return a bound of a slice as a scalar of int64."""
    if not isinstance(bound, TensorValue):
        return scalar(_OP, _bound(bound), DType.int64, CPU)
    value = operand(_OP, bound)
    if value.shape not in ([], [1]) or not value.dtype.is_integral() or not value.device.is_cpu():
        raise graph_error(_OP, f"a tensor that bounds a slice must be one integer on the CPU, found {value.type}")
    if value.rank:
        value = record("reshape", [value], like(value, []))
    return converted(value, DType.int64)


def _stated(entry: tuple[Any, ...]) -> tuple[slice, Dim]:
    """Return a slice with the size that is stated for it."""
    if len(entry) != 2 or not isinstance(entry[0], slice):
        raise TypeError(f"{_OP}: an entry in parentheses must be (slice, size), not {entry!r}")
    return entry[0], to_dim(entry[1])


def _step(whole: slice) -> int:
    step = 1 if whole.step is None else _int(whole.step)
    if step == 0:
        raise graph_error(_OP, "the step of a slice must not be 0")
    return step


def _sliced(entry: slice | tuple[object, ...], dim: Dim, shape: Shape) -> tuple[_Slice, Dim, _Minimums]:
    """Return the bounds, the size of the result, and the assumptions about dimensions that are not known."""
    whole, stated = _stated(entry) if isinstance(entry, tuple) else (entry, None)
    start, stop, step = _bound(whole.start), _bound(whole.stop), _step(whole)
    bounds = (start, stop, step)
    if isinstance(dim, StaticDim) and stated is None:
        _require_ordered(start, stop, step, dim.dim, shape)
    if isinstance(dim, StaticDim) and not isinstance(start, Dim) and not isinstance(stop, Dim):
        size = to_dim(len(range(*slice(start, stop, step).indices(dim.dim))))
        if stated is not None and isinstance(stated, StaticDim) and stated != size:
            raise graph_error(_OP, f"the slice of {dim} in the shape {listed(shape)} has {size} elements, not {stated}")
        return bounds, size if stated is None else stated, []
    if stated is not None:
        return bounds, stated, []
    if step < 0:
        if start is None and stop is None:
            return bounds, (dim + (-step - 1)) // -step, []
        raise graph_error(_OP, f"the size of a backward slice of {dim} is not known; {_STATE_IT}")
    size, minimums = _distance(start, stop, dim, shape)
    return bounds, (size + (step - 1)) // step if step > 1 else size, minimums


def size_of_slice(bounds: _Slice, dim: Dim, shape: Shape) -> Dim | None:
    """Return the size of a slice; `None` if it has to be stated."""
    try:
        return _sliced(slice(*bounds), dim, shape)[1]
    except GraphError:
        return None


def _distance(start: int | Dim | None, stop: int | Dim | None, dim: Dim, shape: Shape) -> tuple[Dim, _Minimums]:
    """Return the distance of two bounds that involve a symbol and the dimension, and what that assumes."""
    if isinstance(dim, StaticDim):  # so that a bound that counts from the back counts from the front
        start, stop = (
            bound if isinstance(bound, Dim) else slice(bound, bound).indices(dim.dim)[side]
            for side, bound in enumerate((start, stop))
        )
    first: int | Dim = 0 if start is None else start
    from_front = isinstance(first, Dim) or first >= 0
    if stop is None or (isinstance(stop, int) and stop < 0):
        behind = 0 if stop is None else -stop
        if from_front:
            least = to_dim(first) + behind
            return _difference(dim, least), [] if infer.is_size(least, 0) else [(dim, least)]
        least = to_dim(-first)
        return _difference(least, to_dim(behind)), [(dim, least)]
    if not from_front:
        raise graph_error(
            _OP,
            f"the size of {dim} in the shape {listed(shape)}, sliced from {start} to {stop}, is not known, as only "
            f"{start} counts from the back; {_STATE_IT}",
        )
    begin, end = to_dim(first), to_dim(stop)
    pairs = [(dim, end), (end, begin)]
    minimums = [
        (large, small)
        for large, small in pairs
        if large != small
        and not infer.is_size(small, 0)
        and not (isinstance(large, StaticDim) and isinstance(small, StaticDim))
    ]
    return _difference(end, begin), minimums


def _difference(left: Dim, right: Dim) -> Dim:
    """Return `left - right`, which is not negative."""
    if isinstance(left, StaticDim) and isinstance(right, StaticDim) and left < right:
        raise _empty()
    return left - right


def _require_ordered(start: int | Dim | None, stop: int | Dim | None, step: int, size: int, shape: Shape) -> None:
    """Refuse bounds outside a known size, and a slice that ends before it begins."""
    numbers = [bound for bound in (start, stop) if isinstance(bound, int)]
    for bound in numbers:
        # A backward slice begins at the last element and ends before the first.
        low, high = (-size, size) if step > 0 else (-size - 1, max(size - 1, 0))
        if not low <= bound <= high:
            raise graph_error(
                _OP,
                f"the bound {bound} of a slice is out of range for the size {size} in the shape {listed(shape)}: "
                f"{low} to {high}",
                GraphIndexError,
            )
    first, last = (bound + size if bound < 0 else bound for bound in numbers) if len(numbers) == 2 else (0, 0)
    if (last - first) * step < 0:
        raise _empty()


def _empty() -> GraphError:
    return graph_error(_OP, "the slice ends before it begins; write `x[n:n]` for an empty one")


def _bound(bound: object) -> int | Dim | None:
    if bound is None or (isinstance(bound, Dim) and not isinstance(bound, StaticDim)):
        return bound
    if isinstance(bound, str):
        return to_dim(bound)
    return _int(bound)


def _int(entry: object) -> int:
    if isinstance(entry, bool) or not hasattr(entry, "__index__"):
        raise TypeError(
            f"{_OP}: an index must be an int, a slice, `...`, None or a tensor of integers, not {entry!r} of type "
            f"{type(entry).__name__}"
        )
    return operator.index(entry)


def _require_inside(number: int, size: int, axis: int, shape: Shape) -> None:
    if not -size <= number < size:
        raise graph_error(
            _OP, f"the index {number} is out of range on axis {axis} of the shape {listed(shape)}", GraphIndexError
        )
