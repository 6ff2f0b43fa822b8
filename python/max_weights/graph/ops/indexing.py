"""Parts of a tensor, by position.

A slice of a symbolic dimension is taken to lie inside it: `x[1:]` of `[n]` has `n - 1` elements, `x[:3]` has 3. What
that needs (`n >= 1`, `n >= 3`) is kept with the operation, to be checked when the graph is run.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import max_weights.graph.infer as infer
from max_weights.dim import Dim, StaticDim, to_dim
from max_weights.graph.call_site import problem, user_place
from max_weights.graph.operators import is_array
from max_weights.graph.ops.operands import like, operand, record, require_one_device
from max_weights.graph.value import TensorValue
from max_weights.shape import Shape, listed

if TYPE_CHECKING:
    from max_weights.graph.value import TensorValueLike

_OP = "slice_tensor"

# One entry of a normalised index: an int, start and stop and step (none for the end of the dimension), or a new axis.
_Slice: TypeAlias = tuple[int | Dim | None, int | Dim | None, int]
_Entry: TypeAlias = int | _Slice | None
# What is assumed: the first of each pair is at least the second.
_Needs: TypeAlias = list[tuple[Dim, Dim]]


def slice_tensor(x: TensorValueLike, indices: Any) -> TensorValue:
    """`x[indices]`, by NumPy's rules for basic indexing, and one tensor of indices.

    Args:
        x: Any tensor.
        indices: One entry, or a tuple of them: an int; a slice, whose bounds may be `Dim`; `(slice, size)`, where the
            size of the result is stated, because it cannot be worked out; `...`; `None` for a new axis of size 1; and
            at most one tensor or array of integers, beside slices only, whose axes come in the place of the axis.

    Raises:
        IndexError: an int out of range, or more entries than axes.
        GraphError: a ValueError; the size of a slice cannot be known.
    """
    value = operand(_OP, x)
    shape = value.shape
    entries = _expanded(indices, shape)
    tensors = [entry for entry in entries if isinstance(entry, TensorValue) or is_array(entry)]
    if tensors:
        return _by_tensor(value, entries, tensors)
    index: list[_Entry] = []
    sizes: list[Dim] = []
    needs: _Needs = []
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
            needs += more
        else:
            number = _int(entry)
            _require_inside(number, dim, axis, shape)
            if not isinstance(dim, StaticDim):
                needs.append((dim, to_dim(number + 1 if number >= 0 else -number)))
            index.append(number)
        axis += 1
    return record(_OP, [value], like(value, sizes), index=tuple(index), at_least=tuple(needs))


def gather(input: TensorValueLike, indices: TensorValueLike, axis: int) -> TensorValue:
    """The slices at the given positions of an axis.

    Args:
        input: `[..., n, ...]`, the n being at `axis`.
        indices: Integers of any shape, -n to n - 1. Their axes come in the place of `axis`.
        axis: The axis.
    """
    value, positions = operand("gather", input), operand("gather", indices)
    if not positions.dtype.is_integral():
        raise problem("gather", f"the indices are integers, found {positions.type}")
    require_one_device("gather", [value, positions])
    shape = value.shape
    axis = infer.axis_of("gather", axis, len(shape), shape)
    return record(
        "gather", [value, positions], like(value, shape[:axis] + positions.shape + shape[axis + 1 :]), axis=axis
    )


def _expanded(indices: Any, shape: Shape) -> list[Any]:
    """The entries, one per axis and new axis, with `...` written out."""
    entries = list(indices) if isinstance(indices, tuple) else [indices]
    ellipses = [i for i, entry in enumerate(entries) if entry is Ellipsis]
    if len(ellipses) > 1:
        _out_of_range("an index has one `...` at most")
    used = sum(entry is not None and entry is not Ellipsis for entry in entries)
    if used > len(shape):
        _out_of_range(f"{used} indices for the {len(shape)} axes of the shape {listed(shape)}")
    rest = [slice(None)] * (len(shape) - used)
    where = ellipses[0] if ellipses else len(entries)
    return entries[:where] + rest + entries[where + 1 :]


def _by_tensor(value: TensorValue, entries: list[Any], tensors: list[Any]) -> TensorValue:
    if len(tensors) > 1 or not all(
        entry is None or isinstance(entry, slice | tuple) or entry is tensors[0] for entry in entries
    ):
        raise problem(_OP, "one tensor of indices at a time, and only slices beside it; index in two steps")
    place = next(i for i, entry in enumerate(entries) if entry is tensors[0])
    positions = operand(_OP, tensors[0])
    if not positions.dtype.is_integral():
        raise problem(_OP, f"a tensor of indices holds integers, found {positions.type}; ops.where chooses by bool")
    others = (*entries[:place], slice(None), *entries[place + 1 :])
    if any(entry != slice(None) for entry in others):
        value = slice_tensor(value, others)
    return gather(value, positions, place)


def _sliced(entry: slice | tuple[Any, ...], dim: Dim, shape: Shape) -> tuple[_Slice, Dim, _Needs]:
    """The bounds, the size of the result, and what is assumed of dimensions that are not known."""
    stated: Dim | None = None
    if isinstance(entry, tuple):
        if len(entry) != 2 or not isinstance(entry[0], slice):
            raise TypeError(f"{_OP}: an entry in parentheses is (slice, size), not {entry!r}")
        whole: slice = entry[0]
        stated = to_dim(entry[1])
    else:
        whole = entry
    start, stop = _bound(whole.start), _bound(whole.stop)
    step = 1 if whole.step is None else _int(whole.step)
    if step == 0:
        raise problem(_OP, "the step of a slice is not 0")
    bounds = (start, stop, step)
    if isinstance(dim, StaticDim) and not isinstance(start, Dim) and not isinstance(stop, Dim):
        size = to_dim(len(range(*slice(start, stop, step).indices(dim.dim))))
        if stated is not None and isinstance(stated, StaticDim) and stated != size:
            raise problem(_OP, f"the slice of {dim} in the shape {listed(shape)} has {size} elements, not {stated}")
        return bounds, size if stated is None else stated, []
    if stated is not None:
        return bounds, stated, []
    if step < 0:
        if start is None and stop is None:
            return bounds, (dim + (-step - 1)) // -step, []
        raise problem(
            _OP, f"the size of a backward slice of {dim} is not known; state it: `x[(slice(...), size), ...]`"
        )
    size, needs = _distance(start, stop, dim, shape)
    return bounds, (size + (step - 1)) // step if step > 1 else size, needs


def _distance(start: int | Dim | None, stop: int | Dim | None, dim: Dim, shape: Shape) -> tuple[Dim, _Needs]:
    """How far apart two bounds are, where a symbol is among them and the dimension, and what that assumes."""
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
        raise problem(
            _OP,
            f"the size of {dim} in the shape {listed(shape)}, sliced from {start} to {stop}, is not known, as only "
            f"{start} counts from the back; state it: `x[(slice(...), size), ...]`",
        )
    begin, end = to_dim(first), to_dim(stop)
    pairs = [(dim, end), (end, begin)]
    needs = [
        (large, small)
        for large, small in pairs
        if large != small
        and not infer.is_size(small, 0)
        and not (isinstance(large, StaticDim) and isinstance(small, StaticDim))
    ]
    return _difference(end, begin), needs


def _difference(left: Dim, right: Dim) -> Dim:
    """`left - right`, but 0 where that is negative for certain."""
    if isinstance(left, StaticDim) and isinstance(right, StaticDim):
        return to_dim(max(left.dim - right.dim, 0))
    return left - right


def _bound(bound: Any) -> int | Dim | None:
    if bound is None or (isinstance(bound, Dim) and not isinstance(bound, StaticDim)):
        return bound
    if isinstance(bound, str):
        return to_dim(bound)
    return _int(bound)


def _int(entry: Any) -> int:
    if isinstance(entry, bool) or not hasattr(entry, "__index__"):
        raise TypeError(
            f"{_OP}: an index is an int, a slice, `...`, None or a tensor of integers, not {entry!r} "
            f"of type {type(entry).__name__}"
        )
    return operator.index(entry)


def _require_inside(number: int, dim: Dim, axis: int, shape: Shape) -> None:
    if isinstance(dim, StaticDim) and not -dim.dim <= number < dim.dim:
        _out_of_range(f"the index {number} is out of range on axis {axis} of the shape {listed(shape)}")


def _out_of_range(cause: str) -> NoReturn:
    raise IndexError(f"{_OP}: {cause} (at {user_place()})")
