"""The computed shapes of operations equal NumPy's, also with symbols instead of sizes.

A shape of real sizes is drawn, and some sizes become symbols everywhere (4 becomes `d4`). The computed shape, with the
sizes substituted back, is compared with NumPy's result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from max_weights.dtype import DType
from max_weights.graph import Dim, Graph, Shape, TensorType, TensorValue, ops

SIZES = {f"d{size}": size for size in range(2, 13)}
SYMBOLS = st.sets(st.integers(2, 12))
SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
PAIRS = st.one_of(
    st.tuples(SHAPES, SHAPES),
    npst.mutually_broadcastable_shapes(num_shapes=2, min_dims=0, max_dims=4, max_side=5).map(lambda s: s.input_shapes),
)


def named(shape: Sequence[int], symbols: set[int]) -> list[int | str]:
    return [f"d{size}" if size in symbols else size for size in shape]


def put_back(dim: Dim) -> int:
    return int(eval(str(dim), {"__builtins__": {}}, SIZES))


def sizes(shape: Shape) -> tuple[int, ...]:
    return tuple(put_back(dim) for dim in shape)


def build(
    shapes: Sequence[Sequence[int]], symbols: set[int], compute: Callable[..., Any], dtype: DType = DType.float32
) -> Any:
    types = [TensorType(dtype, named(shape, symbols), "cpu") for shape in shapes]
    with Graph("shapes", input_types=types) as graph:
        return compute(*graph.inputs)


def same_as_numpy(
    shapes: Sequence[Sequence[int]],
    symbols: set[int],
    ours: Callable[..., TensorValue],
    theirs: Callable[..., Any],
    dtype: DType = DType.float32,
) -> None:
    """Both give one shape, or both refuse."""
    arrays = [np.zeros(shape, dtype.to_numpy()) for shape in shapes]
    try:
        expected = theirs(*arrays)
    except (ValueError, IndexError):
        with pytest.raises((ValueError, IndexError)):
            build(shapes, symbols, ours, dtype)
        return
    assert sizes(build(shapes, symbols, ours, dtype).shape) == expected.shape


@given(PAIRS, SYMBOLS, st.sampled_from([("add", np.add), ("mul", np.multiply), ("less", np.less), ("max", np.maximum)]))
def test_broadcasting(shapes: Any, symbols: set[int], pair: Any) -> None:
    name, theirs = pair
    same_as_numpy(shapes, symbols, getattr(ops, name), theirs)


@given(st.tuples(SHAPES, SHAPES, SHAPES), SYMBOLS)
def test_where(shapes: Any, symbols: set[int]) -> None:
    same_as_numpy(shapes, symbols, lambda c, x, y: ops.where(c != 0, x, y), lambda c, x, y: np.where(c != 0, x, y))


@given(SHAPES, SHAPES, SYMBOLS)
def test_broadcast_to(shape: Any, target: Any, symbols: set[int]) -> None:
    same_as_numpy(
        [shape],
        symbols,
        lambda x: x.broadcast_to(named(target, symbols)),
        lambda x: np.broadcast_to(x, target),
    )


@given(PAIRS, SYMBOLS)
def test_matmul(shapes: Any, symbols: set[int]) -> None:
    same_as_numpy(shapes, symbols, lambda x, y: x @ y, np.matmul)


@given(st.data(), st.lists(st.integers(0, 4), max_size=2), SYMBOLS)
def test_matmul_of_matrices_that_fit(data: st.DataObject, batch: list[int], symbols: set[int]) -> None:
    a, k, b = (data.draw(st.integers(0, 5)) for _ in range(3))
    left = data.draw(st.sampled_from([[*batch, a, k], [a, k], [k], [1, a, k]]))
    right = data.draw(st.sampled_from([[*batch, k, b], [k, b], [k]]))
    result = build([left, right], symbols, lambda x, y: x @ y)
    assert sizes(result.shape) == (np.zeros(left) @ np.zeros(right)).shape


@given(st.integers(0, 5), st.integers(0, 5), SYMBOLS)
def test_outer(a: int, b: int, symbols: set[int]) -> None:
    same_as_numpy([(a,), (b,)], symbols, ops.outer, np.outer)


@given(
    SHAPES.filter(len), st.integers(-5, 5), SYMBOLS, st.sampled_from(["sum", "mean", "max", "min", "argmax", "argmin"])
)
def test_reductions_keep_their_axis(shape: Any, axis: int, symbols: set[int], name: str) -> None:
    def theirs(x: Any) -> Any:
        with np.errstate(all="ignore"):
            if name == "mean":  # NumPy warns about the mean of an empty array
                return np.sum(x, axis=axis, keepdims=True)
            return getattr(np, name)(x, axis=axis, keepdims=True)

    if name in ("argmax", "argmin") and 0 in shape:
        return  # NumPy checks the whole size there
    if name in ("max", "min") and 0 in shape and -len(shape) <= axis < len(shape) and shape[axis]:
        return
    same_as_numpy([shape], symbols, lambda x: getattr(ops, name)(x, axis=axis), theirs)


@given(SHAPES.filter(len), st.integers(-5, 5), SYMBOLS, st.sampled_from(["softmax", "logsoftmax"]))
def test_softmax_keeps_the_shape(shape: Any, axis: int, symbols: set[int], name: str) -> None:
    same_as_numpy([shape], symbols, lambda x: getattr(ops, name)(x, axis), lambda x: x + np.sum(x, axis, keepdims=True))


@given(st.data(), SHAPES, st.integers(-5, 5), SYMBOLS)
def test_concat(data: st.DataObject, shape: Any, axis: int, symbols: set[int]) -> None:
    others = []
    for _ in range(data.draw(st.integers(0, 2))):
        other = list(shape)
        if other:
            other[data.draw(st.sampled_from([axis % len(other), 0]))] = data.draw(st.integers(0, 5))
        others.append(other)
    same_as_numpy([shape, *others], symbols, lambda *xs: ops.concat(xs, axis), lambda *xs: np.concatenate(xs, axis))


@given(st.lists(SHAPES, min_size=1, max_size=3), SHAPES, st.booleans(), st.integers(-5, 5), SYMBOLS)
def test_stack(shapes: Any, shape: Any, alike: bool, axis: int, symbols: set[int]) -> None:
    if alike:
        shapes = [shape] * len(shapes)
    same_as_numpy(shapes, symbols, lambda *xs: ops.stack(xs, axis), lambda *xs: np.stack(xs, axis))


@given(st.data(), SHAPES.filter(len), SYMBOLS)
def test_split(data: st.DataObject, shape: Any, symbols: set[int]) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    pieces = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    full = [*shape]
    full[axis] = sum(pieces)
    # Symbolic sizes sum to a polynomial, so only the sliced axis stays static.
    symbols = symbols - {full[axis]}
    parts = build([full], symbols, lambda x: ops.split(x, pieces, axis))
    expected = np.split(np.zeros(full), np.cumsum(pieces)[:-1], axis)
    assert [sizes(part.shape) for part in parts] == [part.shape for part in expected]


@given(st.data(), SHAPES, SYMBOLS)
def test_indexing(data: st.DataObject, shape: Any, symbols: set[int]) -> None:
    index = data.draw(npst.basic_indices(shape, allow_newaxis=True, max_dims=8))
    try:
        result = build([shape], symbols, lambda x: x[index])
    except ValueError:
        assert symbols & set(shape) or 0 in np.zeros(shape)[index].shape  # it ends before it begins
        return
    needs = result.node.attributes["minimums"]
    assert symbols & set(shape) or not needs
    if all(put_back(large) >= put_back(small) for large, small in needs):
        assert sizes(result.shape) == np.zeros(shape)[index].shape


@given(st.integers(0, 12), st.integers(-14, 14) | st.none(), st.integers(-14, 14) | st.none(), st.integers(1, 4))
def test_slices_of_a_symbol_are_right_where_their_needs_hold(
    size: int, start: int | None, stop: int | None, step: int
) -> None:
    with Graph("slice", input_types=[TensorType("float32", ["n"], "cpu")]) as graph:
        try:
            result = graph.inputs[0][start:stop:step]
        except ValueError:
            assert start is not None
            assert stop is not None
            assert start < 0 <= stop or stop < start
            return
    values = {"n": size}
    holds = all(eval(f"({large}) >= ({small})", {}, values) for large, small in result.node.attributes["minimums"])
    first, last, _ = slice(start, stop).indices(size)
    inside = all(bound is None or -size <= bound <= size for bound in (start, stop))
    assert holds or not inside or first > last
    if holds:
        assert eval(str(result.shape[0]), {}, values) == len(range(size)[start:stop:step])


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_symbolic_bounds(size: int, first: int, last: int) -> None:
    first, last = sorted((min(first, size), min(last, size)))
    values = {"n": size, "a": first, "b": last}
    a, b = Dim("a"), Dim("b")
    with Graph("slice", input_types=[TensorType("float32", ["n", size], "cpu")]) as graph:
        x = graph.inputs[0]
        for result, expected in ((x[a:b], range(size)[first:last]), (x[a:], range(size)[first:]), (x[:b], range(last))):
            assert eval(str(result.shape[0]), {}, values) == len(expected)
        assert eval(str(x[:, a:b].shape[1]), {}, values) == last - first
        assert eval(str(x[:, a:].shape[1]), {}, values) == size - first


@given(st.data(), SHAPES.filter(len), SHAPES, SYMBOLS)
def test_gather_and_an_index_tensor(data: st.DataObject, shape: Any, positions: Any, symbols: set[int]) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    types = [TensorType("float32", named(shape, symbols), "cpu"), TensorType("int64", named(positions, symbols), "cpu")]
    with Graph("gather", input_types=types) as graph:
        x, indices = graph.inputs
        results = [ops.gather(x, indices, axis), x[(slice(None),) * axis + (indices,)]]
    full = [max(size, 1) for size in shape]
    expected = list(np.take(np.zeros(full), np.zeros(positions, np.int64), axis).shape)
    for at, size in enumerate(shape):  # nothing can be taken from a size of 0, but the shape is the same
        if at != axis:
            expected[at if at < axis else at + len(positions) - 1] = size
    assert [sizes(result.shape) for result in results] == [tuple(expected)] * 2


@given(st.data(), SHAPES, SYMBOLS)
def test_reshape(data: st.DataObject, shape: Any, symbols: set[int]) -> None:
    count = math.prod(shape)
    target: list[int] = []
    left = count
    while left > 1 and len(target) < 4:
        factor = data.draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0]))
        target.append(factor)
        left //= factor
    target.append(left)
    static = build([shape], set(), lambda x: x.reshape(target))
    assert sizes(static.shape) == np.zeros(shape).reshape(target).shape
    if count:
        at = data.draw(st.integers(0, len(target) - 1))
        unknown = [*target[:at], -1, *target[at + 1 :]]
        assert sizes(build([shape], set(), lambda x: x.reshape(unknown)).shape) == tuple(target)
    # With symbols: the sizes in another order, some of them joined.
    order = data.draw(st.permutations(shape))
    cut = data.draw(st.integers(0, len(order)))
    joined = [*order[:cut], -1]
    if 0 not in order[:cut]:
        result = build([shape], symbols, lambda x: x.reshape([*named(order[:cut], symbols), -1]))
        assert sizes(result.shape) == np.zeros(shape).reshape(joined).shape
    assert sizes(build([shape], symbols, lambda x: x.reshape(named(order, symbols))).shape) == tuple(order)


@given(SHAPES, st.lists(st.integers(0, 12), max_size=4))
def test_reshape_to_another_size_is_refused_as_numpy_does(shape: Any, target: list[int]) -> None:
    same_as_numpy([shape], set(), lambda x: x.reshape(target), lambda x: x.reshape(target))
    same_as_numpy([shape], set(), lambda x: x.reshape([-1, *target]), lambda x: x.reshape([-1, *target]))


@given(st.data(), SHAPES, SYMBOLS)
def test_orders_of_axes(data: st.DataObject, shape: Any, symbols: set[int]) -> None:
    axes = st.integers(-5, 5)
    first, second = data.draw(axes), data.draw(axes)
    same_as_numpy([shape], symbols, lambda x: x.transpose(first, second), lambda x: np.swapaxes(x, first, second))
    order = data.draw(st.permutations(range(len(shape))))
    same_as_numpy([shape], symbols, lambda x: x.permute(order), lambda x: np.transpose(x, order))
    if shape:  # NumPy lets a scalar have an axis here
        same_as_numpy([shape], symbols, lambda x: ops.squeeze(x, first), lambda x: np.squeeze(x, first))
    same_as_numpy([shape], symbols, lambda x: ops.unsqueeze(x, first), lambda x: np.expand_dims(x, first))
    if len(shape) >= 2:
        same_as_numpy([shape], symbols, lambda x: x.T, lambda x: np.swapaxes(x, -1, -2))


@given(st.data(), SHAPES, SYMBOLS)
def test_flatten_and_tile(data: st.DataObject, shape: Any, symbols: set[int]) -> None:
    rank = max(len(shape), 1)
    start = data.draw(st.integers(0, rank - 1))
    end = data.draw(st.integers(start, rank - 1))
    result = build([shape], symbols, lambda x: x.flatten(start, end - rank))
    full = shape or (1,)
    assert sizes(result.shape) == (*full[:start], math.prod(full[start : end + 1]), *full[end + 1 :])
    repeats = data.draw(st.lists(st.integers(0, 3), min_size=len(shape), max_size=len(shape)))
    same_as_numpy([shape], symbols, lambda x: ops.tile(x, repeats), lambda x: np.tile(x, repeats))


@given(st.integers(-9, 9), st.integers(-9, 9), st.integers(-4, 4).filter(bool))
def test_range_of_ints(start: int, stop: int, step: int) -> None:
    with Graph("range"):
        result = ops.range(start, stop, step)
        assert sizes(result.shape) == np.arange(start, stop, step).shape
        assert result.dtype is DType.int64
        halves = ops.range(start / 2, stop / 2, step / 2)
        assert sizes(halves.shape) == np.arange(start / 2, stop / 2, step / 2).shape
        assert halves.dtype is DType.float32
        if step > 0 and start >= 0:
            symbolic = ops.range(start, Dim("n"), step)
            assert eval(str(symbolic.shape[0]), {}, {"n": start + 7}) == len(range(start, start + 7, step))
