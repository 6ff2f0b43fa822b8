"""Operations by positions and along an axis, run: equal to NumPy and torch for each dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from graphs import EVERY, FLOATS, INTEGERS, STEP, Array, close, counted, run
from max_weights.dtype import DType
from max_weights.graph import GraphError, ops
from refusals import refuses

NUMBERS = (*INTEGERS, *FLOATS)


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_gather_nd(dtype: DType) -> None:
    x = counted(2, 3, 4, dtype=dtype)
    for places in (
        np.array([[1, 2], [0, -1]]),
        np.array([[[1, 2, 3]], [[0, 0, 0]]], np.int32),
        np.array([[1]], np.uint8),
    ):
        requested = x[tuple(np.moveaxis(places.astype(np.int64), -1, 0))]
        close(run(ops.gather_nd, x, places), requested)
        close(run(ops.gather_nd, x, places, shapes=[("a", "b", "c")]), requested)
    batched = np.array([[[2], [0]], [[1], [1]]])
    close(run(lambda x, i: ops.gather_nd(x, i, 1), x, batched), np.stack([x[0][[2, 0]], x[1][[1, 1]]]))


SCATTERS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Any]] = {
    "scatter": (ops.scatter, ops.scatter_nd, None),
    "scatter_add": (ops.scatter_add, ops.scatter_nd_add, np.add),
    "scatter_mul": (ops.scatter_mul, ops.scatter_nd_mul, np.multiply),
    "scatter_max": (ops.scatter_max, ops.scatter_nd_max, np.maximum),
    "scatter_min": (ops.scatter_min, ops.scatter_nd_min, np.minimum),
}


def written(x: Array, places: Any, updates: Array, function: Any) -> Array:
    made = x.copy() if x.dtype.kind in "biu" or x.dtype.itemsize > 2 else x.astype(np.float32)
    if function is None:
        made[places] = updates.astype(made.dtype)
    else:
        function.at(made, places, updates.astype(made.dtype))
    return made.astype(x.dtype)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("op", SCATTERS)
def test_scatter(op: str, dtype: DType) -> None:
    ours, ours_nd, function = SCATTERS[op]
    x = counted(4, 3, dtype=dtype)
    if dtype in (DType.uint64, DType.uint32):
        x[0] = np.iinfo(x.dtype).max - 3
    updates = counted(2, 3, dtype=dtype)[::-1].copy()
    for kind in (np.int32, np.int64):
        places = np.array([[0, 1, -1], [2, 1, 0] if function else [2, 0, 1]], kind)
        requested = written(x, (places, np.arange(3)[None]), updates, function)
        close(run(lambda x, u, i: ours(x, u, i, 0), x, updates, places), requested)
        close(run(lambda x, u, i: ours(x, u, i, 0), x, updates, places, shapes=[("n", "m")]), requested)
    rows = np.array([[3], [-4]])
    close(run(ours_nd, x, updates, rows), written(x, rows[:, 0], updates, function))
    if function:
        rows = np.array([[1], [1]])
        close(run(ours_nd, x, updates, rows), written(x, rows[:, 0], updates, function))


def test_scatter_of_bool() -> None:
    x, places = np.array([True, False, True]), np.array([1, 2])
    close(run(ops.scatter, x, np.array([True, False]), places), np.array([True, True, False]))
    close(run(ops.scatter_nd, x, np.array([True, False]), places[:, None]), np.array([True, True, False]))


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_nonzero_and_masks(dtype: DType) -> None:
    x = (counted(3, 4, dtype=DType.int32) % 3).astype(dtype.to_numpy())
    requested = np.argwhere(x.astype(np.float32) != 0)
    close(run(lambda x: ops.nonzero(x, "k"), x, shapes=[("n", "m")]), requested)
    close(run(lambda x: ops.nonzero(x, len(requested)), x), requested)
    close(run(lambda x: ops.nonzero(x * 0 if dtype is not DType.bool else x ^ x, "k"), x), requested[:0])
    mask = x.astype(np.float32) != 0
    values = counted(int(mask.sum()), dtype=dtype)
    expected = x.copy()
    expected[mask] = values
    close(run(lambda x, m, v: ops.masked_scatter(x, m, v, "k"), x, mask, values), expected)


def test_the_smallest_numbers_are_not_zero() -> None:
    numbers = np.array([5e-324, 0, -0.0, 1e-300, np.nan])
    close(run(lambda x: ops.nonzero(x, "count"), numbers), np.argwhere(numbers))


def test_another_number_than_stated_is_an_error() -> None:
    with pytest.raises(GraphError, match=r"nonzero of graph 'g' \(at .*test_lowering_positions.py:\d+\)"):
        run(lambda x: ops.nonzero(x, 2), counted(2, 2))
    with pytest.raises(GraphError, match=r"slice_tensor of graph 'g' \(at .*test_lowering_positions.py:\d+\)"):
        run(lambda x: x[(slice(-3, 4), 2), ...], counted(4), shapes=[("n",)])
    boxes, scores = np.array([[[0, 0, 1, 1]]], np.float32), np.array([[[0.9]]], np.float32)
    with pytest.raises(GraphError, match=r"non_maximum_suppression of graph 'g' \(at .*test_lowering_positions.py:\d+"):
        run(lambda b, s: ops.non_maximum_suppression(b, s, 5, 0.5, 0.0, 4), boxes, scores)
    with pytest.raises(GraphError, match=r"broadcast_to of graph 'g' \(at .*test_lowering_positions.py:\d+"):
        run(lambda x, sizes: ops.broadcast_to(x, sizes, [3, 2]), counted(1, 2), np.array([4, 2]))


@pytest.mark.parametrize("op", [ops.top_k, ops.bottom_k])
@pytest.mark.parametrize("dtype", [*NUMBERS, DType.bool], ids=str)
def test_top_k(op: Callable[..., Any], dtype: DType) -> None:
    """Equal elements keep their order, as in a stable sort."""
    x = np.array([[5, 1, 5, 3, 0, 3], [2, 2, 2, 7, 7, 1]]).astype(dtype.to_numpy())
    if dtype.is_integral():
        x[0, 0] = np.iinfo(x.dtype).max
        x[1, 5] = np.iinfo(x.dtype).min
    for axis in (-1, 0):
        for k in range(x.shape[axis] + 1):
            keys = x.astype(object)  # Python compares any number exactly
            order = np.empty(x.shape, np.int64)
            for row in np.ndindex(*np.delete(x.shape, axis)):
                place = (*row, slice(None)) if axis == -1 else (slice(None), *row)
                count = range(x.shape[axis])
                order[place] = sorted(count, key=lambda i, r=keys[place]: r[i], reverse=op is ops.top_k)
                if op is ops.top_k:  # reversed, but stable
                    order[place] = sorted(count, key=lambda i, r=keys[place]: -int(r[i]))
            requested = np.take(order, range(k), axis)
            values, places = run(lambda x, k=k, axis=axis: op(x, k, axis), x, shapes=[("n", "m")])
            close(places, requested)
            close(values, np.take_along_axis(x, requested, axis))


def test_argsort() -> None:
    x = np.array([5, 1, 5, 3, 1], np.float32)
    for given in (x, x[:0], x[:1]):
        first, last = run(lambda x: (ops.argsort(x), ops.argsort(x, False)), given, shapes=[("n",)])
        close(first, np.argsort(given, stable=True))
        close(last, np.argsort(-given, stable=True))


def test_top_k_of_more_than_there_are() -> None:
    with refuses(GraphError, "graph.invalid"):
        run(lambda x: ops.top_k(x, 3), counted(2), shapes=[("n",)])


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_pad(dtype: DType) -> None:
    x = counted(3, 4, dtype=dtype)
    for shapes in ((), [("n", "m")]):
        found = run(
            lambda x: (
                ops.pad(x, [0, 1, 2, 0], value=0 if dtype is not DType.bool else False),
                ops.pad(x, [0, 1, 2, 0], value=ops.constant(1, x.dtype) if dtype is not DType.bool else True),
                ops.pad(x, [2, 1, 0, 3], "reflect"),
                ops.pad(x, [2, 1, 0, 9], "edge"),
            ),
            x,
            shapes=shapes,
        )
        one, pairs = np.ones((), x.dtype), ((0, 1), (2, 0))
        close(found[0], np.pad(x, pairs))
        close(found[1], np.pad(x, pairs, constant_values=one))
        close(found[2], np.pad(x, ((2, 1), (0, 3)), "reflect"))
        close(found[3], np.pad(x, ((2, 1), (0, 9)), "edge"))


@pytest.mark.parametrize(("mode", "least"), [("reflect", 3), ("edge", 1)])
def test_what_pads_from_the_tensor_itself_needs_elements(mode: str, least: int) -> None:
    close(run(lambda x: ops.pad(x, [2, 1], mode), counted(least), shapes=["n"]), np.pad(counted(least), (2, 1), mode))
    with refuses(GraphError, "graph.invalid"):
        run(lambda x: ops.pad(x, [2, 1], mode), counted(least - 1), shapes=["n"])


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_sums_and_products_along_an_axis(dtype: DType) -> None:
    x = (counted(3, 4, dtype=DType.int32) % 4 + 1).astype(dtype.to_numpy())
    single = x if dtype.is_integral() or dtype is DType.float64 else x.astype(np.float32)
    for axis in (0, -1):
        requested = np.cumsum(single, axis, dtype=single.dtype)
        backward = np.flip(np.cumsum(np.flip(single, axis), axis, dtype=single.dtype), axis)
        found = run(
            lambda x, a=axis: (
                ops.cumsum(x, a),
                ops.cumsum(x, a, exclusive=True),
                ops.cumsum(x, a, reverse=True),
                ops.prod(x, a),
            ),
            x,
            shapes=[("n", "m")],
        )
        product = np.prod(single, axis, keepdims=True, dtype=single.dtype)
        for result, expected in zip(found, (requested, requested - single, backward, product), strict=True):
            close(result, expected.astype(x.dtype), STEP.get(dtype, 0))


def test_long_sums_are_as_exact_as_in_torch() -> None:
    x = np.full(1024, 1.1, np.float32)
    np.testing.assert_allclose(run(lambda x: ops.cumsum(x, 0), x), torch.cumsum(torch.from_numpy(x), 0), rtol=1e-6)


def test_slices_between_tensors() -> None:
    x = counted(6, 3)
    for start, stop in ((1, 4), (0, 6), (-3, 6), (2, 2)):
        found = run(lambda x, a, b: x[(slice(a, b), "k"), :], x, np.array(start), np.array([stop]), shapes=[("n", 3)])
        close(found, x[start:stop])
    close(run(lambda x, a: x[(slice(None, a, -2), "k"), :], x, np.array(1)), x[:1:-2])
    close(run(lambda x, i: x[i, 1:], x, np.array(2)), x[2, 1:])


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_compositions(dtype: DType) -> None:
    x = counted(4, 4, dtype=dtype)
    close(run(lambda x: ops.band_part(x, 1, 0), x, shapes=[("n", "m")]), np.tril(np.triu(x, -1), 0))
    close(run(lambda x: ops.band_part(x, None, 0, True), x), np.triu(x, 1))
    close(run(lambda x: ops.repeat_interleave(x, 3, 1), x, shapes=[("n", "m")]), np.repeat(x, 3, 1))
    for axis in (None, 0, 1):
        close(run(lambda x, a=axis: ops.repeat_interleave(x, 0, a), x), np.repeat(x, 0, axis))
    counts = np.array([1, 0, 2, 3])
    close(run(lambda x, r: ops.repeat_interleave(x, r, 0, "k"), x, counts), np.repeat(x, counts, 0))
    for found, requested in zip(run(lambda x: ops.chunk(x, 2, 1), x), np.split(x, 2, 1), strict=True):
        close(found, requested)


def test_complex_numbers_and_windows() -> None:
    x, y = counted(3, 8), counted(3, 8)[::-1].copy()
    found = run(lambda x, y: ops.complex.mul(*(ops.as_interleaved_complex(v) for v in (x, y))), x, y)
    close(found.view(np.complex64)[..., 0], x.view(np.complex64) * y.view(np.complex64))
    close(run(lambda: ops.hann_window(16, "cpu")), torch.hann_window(16).numpy(), 1e-6)


def test_questions() -> None:
    for dtype in FLOATS:
        x = np.array([1, np.nan, np.inf, -np.inf]).astype(dtype.to_numpy())
        nan, infinite = run(lambda x: (ops.is_nan(x), ops.is_inf(x)), x)
        assert nan.tolist() == [False, True, False, False]
        assert infinite.tolist() == [False, False, True, True]
