"""The results of further operations: equal to NumPy and torch, with known sizes and with symbols."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from max_weights.dtype import DType
from max_weights.engine import InferenceSession
from max_weights.graph import DeviceRef, Graph, GraphError, TensorType, ops
from refusals import refuses

CPU = DeviceRef.CPU()
RANDOM = np.random.default_rng(0)
FLOATS = RANDOM.standard_normal((3, 4, 5)).astype(np.float32)
INTEGERS = RANDOM.integers(-9, 9, (3, 4, 5)).astype(np.int32)
IMAGE = RANDOM.standard_normal((2, 7, 6, 3)).astype(np.float32)


def run(compute: Callable[..., Any], *arrays: Any, symbols: bool = False) -> Any:
    """The results of a function of tensors; with symbols, every size of the first array is one."""
    given = [np.asarray(array) for array in arrays]
    types = [
        TensorType(
            DType.from_numpy(array.dtype),
            [f"d{axis}" for axis in range(array.ndim)] if symbols and number == 0 else array.shape,
            CPU,
        )
        for number, array in enumerate(given)
    ]
    model = InferenceSession().load(Graph("g", compute, types))
    results = [result.to_numpy() for result in model.execute(*given)]
    return results[0] if len(results) == 1 else results


def same(found: Any, expected: Any, tolerance: float = 0.0) -> None:
    expected = np.asarray(expected)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if tolerance:
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(found, expected)


ODD = np.array(
    [-np.inf, -3.5, -2.5, -1.5, -1.0, -0.5, -1e-8, 0.0, 1e-8, 0.5, 1.0, 2.5, 1e30, np.inf, np.nan], np.float32
)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", ["ceil", "round", "trunc", "is_nan", "is_inf", "log1p", "atanh", "acos"])
def test_functions_of_floats(name: str, dtype: Any) -> None:
    theirs = {"round": np.rint, "is_nan": np.isnan, "is_inf": np.isinf, "atanh": np.arctanh}
    with np.errstate(all="ignore"):
        x = ODD.astype(dtype)
        if name == "acos":
            expected = np.arccos(np.clip(x.astype(np.float64), -1, 1))
        else:
            expected = theirs.get(name, getattr(np, name, np.abs))(x.astype(np.float64))
        expected = expected if expected.dtype == bool else expected.astype(dtype)
    found = run(getattr(ops, name), x, symbols=True)
    assert found.dtype == expected.dtype
    exact = name in ("ceil", "round", "trunc", "is_nan", "is_inf")
    step = float(ml_dtypes.finfo(np.float32 if name in ("acos", "atanh") and dtype is np.float64 else dtype).eps)
    tolerance = 0.0 if exact else 2 * step
    np.testing.assert_allclose(
        found.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance / 1e6
    )


@pytest.mark.parametrize("symbols", [False, True])
class TestAgainstNumPy:
    def test_reductions(self, symbols: bool) -> None:
        for x in (FLOATS, INTEGERS):
            for axis in (0, -1):
                same(
                    run(lambda x, a=axis: ops.prod(x, a), x, symbols=symbols),
                    x.prod(axis, x.dtype, keepdims=True),
                    1e-6,
                )
                for exclusive in (False, True):
                    for reverse in (False, True):
                        turned = np.flip(x, axis) if reverse else x
                        sums = np.cumsum(turned, axis, x.dtype) - (turned if exclusive else 0)
                        expected = np.flip(sums, axis) if reverse else sums
                        found = run(
                            lambda x, a=axis, e=exclusive, r=reverse: ops.cumsum(x, a, e, r), x, symbols=symbols
                        )
                        same(found, expected, 1e-5)
        same(run(lambda x: x.var(0), FLOATS, symbols=symbols), FLOATS.var(0, keepdims=True), 1e-6)
        same(run(lambda x: x.stdev(), FLOATS, symbols=symbols), FLOATS.std(-1, keepdims=True), 1e-6)
        same(run(lambda x: x.max(1), FLOATS > 0, symbols=symbols), (FLOATS > 0).any(1, keepdims=True))
        same(run(lambda x: ops.min(x), FLOATS > 0, symbols=symbols), (FLOATS > 0).all(-1, keepdims=True))
        same(run(lambda x: x.argmax(0), FLOATS > 0, symbols=symbols), np.argmax(FLOATS > 0, 0, keepdims=True))

    def test_sorting(self, symbols: bool) -> None:
        for x in (FLOATS, INTEGERS):
            for largest, op in ((True, ops.top_k), (False, ops.bottom_k)):
                values, places = run(lambda x, o=op: o(x, 2, 1), x, symbols=symbols)
                theirs = torch.topk(torch.tensor(x), 2, 1, largest)
                same(values, theirs.values.numpy())
                same(np.take_along_axis(x, places, 1), theirs.values.numpy())
            row = x.reshape(-1)
            same(run(ops.argsort, row, symbols=symbols), np.argsort(row, kind="stable"))
            same(run(lambda x: ops.argsort(x, ascending=False), row, symbols=symbols), np.argsort(-row, kind="stable"))

    def test_positions(self, symbols: bool) -> None:
        places = np.array([[0, 1], [2, -1]], np.int64)
        same(run(ops.gather_nd, FLOATS, places, symbols=symbols), FLOATS[places[:, 0], places[:, 1]])
        batched = np.array([[[1], [3]], [[0], [0]], [[2], [1]]], np.int32)
        found = run(lambda x, i: ops.gather_nd(x.rebind([3, *x.shape[1:]]), i, 1), FLOATS, batched, symbols=symbols)
        same(found, np.take_along_axis(FLOATS, batched.astype(np.int64), 1))
        for x in (FLOATS, FLOATS > 0, INTEGERS):
            same(run(lambda x: ops.nonzero(x, "m"), x, symbols=symbols), np.argwhere(x))

    def test_padding(self, symbols: bool) -> None:
        counts = [0, 1, 2, 0, 3, 4]
        pairs = list(zip(counts[::2], counts[1::2], strict=True))
        for x in (FLOATS, INTEGERS, FLOATS > 0, INTEGERS.astype(np.int8), FLOATS.astype(np.float16)):
            for mode in ("constant", "reflect", "edge"):
                found = run(lambda x, m=mode: ops.pad(x, counts, m), x, symbols=symbols)
                same(found, np.pad(x, pairs, mode))  # type: ignore[call-overload]
        same(
            run(lambda x: ops.pad(x, counts, value=7), INTEGERS, symbols=symbols),
            np.pad(INTEGERS, pairs, constant_values=7),
        )

    def test_repeats_and_pieces(self, symbols: bool) -> None:
        same(run(lambda x: ops.repeat_interleave(x, 3, 1), FLOATS, symbols=symbols), FLOATS.repeat(3, 1))
        same(run(lambda x: ops.repeat_interleave(x, 2), FLOATS, symbols=symbols), FLOATS.repeat(2))
        for repeats in ([2, 0, 1], [2], 3):
            given = np.array(repeats, np.int64)
            size = "d0" if given.size != 3 else 3
            found = run(
                lambda x, r, n=size: ops.repeat_interleave(x.rebind([n, *x.shape[1:]]), r, 0, "m"),
                FLOATS,
                given,
                symbols=symbols,
            )
            same(found, FLOATS.repeat(given, 0))
        for found, expected in zip(run(lambda x: ops.chunk(x, 2, 1), FLOATS), np.split(FLOATS, 2, 1), strict=True):
            same(found, expected)

    def test_bands(self, symbols: bool) -> None:
        rows, columns = np.indices(FLOATS.shape[-2:])
        for x in (FLOATS, FLOATS > 0):
            for lower, upper in ((None, 0), (0, -1), (-1, 1), (1, 2), (None, None)):
                inside = (True if lower in (None, -1) else rows - columns <= lower) & (
                    True if upper in (None, -1) else columns - rows <= upper
                )
                for exclude in (False, True):
                    found = run(
                        lambda x, lo=lower, up=upper, e=exclude: ops.band_part(x, lo, up, e), x, symbols=symbols
                    )
                    same(found, np.where(inside != exclude, x, x.dtype.type(0)))

    def test_slices_between_tensors(self, symbols: bool) -> None:
        for start, stop, step in ((1, 3, 1), (-3, -1, 1), (3, 0, -2)):
            bounds = np.array(start, np.int64), np.array([stop], np.int32)
            found = run(lambda x, a, b, s=step: x[:, (slice(a, b, s), "m"), 2:], FLOATS, *bounds, symbols=symbols)
            same(found, FLOATS[:, start:stop:step, 2:])
        at = np.array(-2, np.int32)
        same(run(lambda x, i: x[(slice(i, None), 2), ..., i], FLOATS, at, symbols=symbols), FLOATS[-2:, :, -2])
        same(
            run(lambda x, i: x[(slice(None, i, -1), "m"),], FLOATS[0, 0], np.array(1), symbols=symbols),
            FLOATS[0, 0, :1:-1],
        )
        same(run(lambda x, i: x[i, 1:, None, i], FLOATS, at, symbols=symbols), FLOATS[-2, 1:, None, -2])

    def test_complex_numbers(self, symbols: bool) -> None:
        x = FLOATS[..., :4].copy()
        pairs = x.reshape(3, 4, 2, 2)
        numbers = pairs[..., 0] + 1j * pairs[..., 1]
        product = numbers * numbers[:1]
        found = run(
            lambda x: ops.complex.mul(
                ops.as_interleaved_complex(x.rebind([x.shape[0], 4, 4])),
                ops.as_interleaved_complex(x.rebind([x.shape[0], 4, 4]))[:1],
            ),
            x,
            symbols=symbols,
        )
        same(found, np.stack([product.real, product.imag], -1), 1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.int64])
@pytest.mark.parametrize("how", ["", "_add", "_max", "_min", "_mul"])
def test_scatters_write_what_torch_writes(how: str, dtype: Any) -> None:
    x = RANDOM.integers(-9, 9, (3, 4)).astype(dtype)
    updates, places = RANDOM.integers(-9, 9, (3, 2)).astype(dtype), np.array([[0, 3], [1, 2], [3, 0]], np.int32)
    reduce = {"_add": "sum", "_max": "amax", "_min": "amin", "_mul": "prod"}.get(how)
    theirs, index = torch.tensor(x), torch.tensor(places).long()
    if reduce is None:
        expected = theirs.scatter(1, index, torch.tensor(updates))
    else:
        expected = theirs.scatter_reduce(1, index, torch.tensor(updates), reduce)
    same(run(getattr(ops, f"scatter{how}"), x, updates, places, symbols=True), expected.numpy())
    whole = np.array([[2, 1], [0, 0]], np.int64)
    written = x.copy()
    combine = {"": lambda _, new: new, "_add": np.add, "_max": np.maximum, "_min": np.minimum, "_mul": np.multiply}[how]
    for place, update in zip(map(tuple, whole), updates[0], strict=True):
        written[place] = combine(written[place], update)
    same(run(getattr(ops, f"scatter_nd{how}"), x, updates[0], whole, symbols=True), written)


def test_a_shape_to_broadcast_to_may_be_a_tensor() -> None:
    row = FLOATS[0, :1]
    found = run(lambda x, s: ops.broadcast_to(x, s, ["a", "b", "c"]), row, np.array([2, 3, 5], np.int32))
    same(found, np.broadcast_to(row, (2, 3, 5)))


def test_masked_scatter_writes_what_torch_writes() -> None:
    mask, updates = FLOATS[:1] > 0, np.arange(60, dtype=np.float32)
    count = 3 * int(mask.sum())
    expected = torch.tensor(FLOATS).masked_scatter(torch.tensor(mask), torch.tensor(updates)).numpy()
    same(run(lambda x, m, u: ops.masked_scatter(x, m, u, "m"), FLOATS, mask, updates[:count]), expected)


POOLS = [
    {"kernel_size": (2, 3), "stride": (2, 1)},
    {"kernel_size": (3, 3), "stride": 2, "padding": 1},
    {"kernel_size": (2, 2), "stride": 2, "ceil_mode": True},
    {"kernel_size": (3, 2), "stride": 2, "padding": (1, 0), "ceil_mode": True},
]


@pytest.mark.parametrize("options", POOLS)
def test_pools_are_those_of_torch(options: dict[str, Any]) -> None:
    planes = torch.tensor(IMAGE).permute(0, 3, 1, 2)
    for symbols in (False, True):
        expected = torch.nn.functional.max_pool2d(planes, **options).permute(0, 2, 3, 1).numpy()
        same(run(lambda x: ops.max_pool2d(x, **options), IMAGE, symbols=symbols), expected)
        inside = torch.nn.functional.avg_pool2d(planes, **options, count_include_pad=False).permute(0, 2, 3, 1).numpy()
        found = run(lambda x: ops.avg_pool2d(x, **options, count_boundary=False), IMAGE, symbols=symbols)
        same(found, inside, 1e-6)
        if not options.get("ceil_mode"):  # there torch divides by the window within the padding, MAX by the window
            everything = torch.nn.functional.avg_pool2d(planes, **options).permute(0, 2, 3, 1).numpy()
            same(run(lambda x: ops.avg_pool2d(x, **options), IMAGE, symbols=symbols), everything, 1e-6)


def test_the_largest_of_a_window_has_the_range_of_float64() -> None:
    x = np.array([1e300, -1e300, 1e-300, 1 + 2**-50]).reshape(1, 2, 2, 1)
    same(run(lambda x: ops.max_pool2d(x, (1, 2)), x), x.max(2, keepdims=True))


@pytest.mark.parametrize("pool", [ops.max_pool2d, ops.avg_pool2d])
def test_a_window_that_is_larger_than_the_image_is_refused_when_the_size_is_known(pool: Callable[..., Any]) -> None:
    graph = Graph("g", lambda x: pool(x, (3, 2)), [TensorType("float32", [1, "h", "w", 1], CPU)])
    model = InferenceSession().load(graph)
    assert model(np.ones((1, 3, 2, 1), np.float32))[0].shape == (1, 1, 1, 1)
    with refuses(GraphError, "graph.invalid"):
        model(np.ones((1, 2, 2, 1), np.float32))


def test_a_mean_over_a_window_beyond_the_image_is_over_the_whole_window_as_in_max() -> None:
    x = np.arange(25, dtype=np.float32).reshape(1, 5, 5, 1)
    found = run(lambda x: ops.avg_pool2d(x, (2, 2), stride=2, ceil_mode=True), x)
    assert found[0, :, :, 0].tolist() == [[3, 5, 3.25], [13, 15, 8.25], [10.25, 11.25, 6]]


@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 5), (2, 6, 3, 4)])
@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_group_norm_is_that_of_torch(shape: tuple[int, ...], groups: int) -> None:
    x, scale, shift = (RANDOM.standard_normal(size).astype(np.float32) for size in (shape, 6, 6))
    expected = torch.nn.functional.group_norm(torch.tensor(x), groups, torch.tensor(scale), torch.tensor(shift), 1e-5)
    same(run(lambda x, g, b: ops.group_norm(x, g, b, groups, 1e-5), x, scale, shift), expected.numpy(), 1e-5)
    found = run(
        lambda g, b, x: ops.group_norm(x.rebind(["n", 6, *x.shape[2:]]), g.rebind([6]), b, groups, 1e-5),
        scale,
        shift,
        x,
        symbols=True,
    )
    same(found, expected.numpy(), 1e-5)


@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"dilation": (1, 2), "stride": (2, 1)}])
def test_fold_is_that_of_torch(options: dict[str, Any]) -> None:
    size, window = (6, 5), (3, 2)
    columns = torch.nn.functional.unfold(
        torch.tensor(RANDOM.standard_normal((2, 3, *size)).astype(np.float32)), window, **options
    )
    expected = torch.nn.functional.fold(columns, size, window, **options).numpy()
    same(run(lambda x: ops.fold(x, size, window, **options), columns.numpy()), expected, 1e-6)
    same(run(lambda x: ops.fold(x, size, window, **options), columns.numpy(), symbols=True), expected, 1e-6)


@pytest.mark.parametrize("size", [(2, 3, 11, 9), (2, 3, 4, 3), (2, 3, 7, 13)])
def test_images_are_resized_as_by_torch(size: tuple[int, ...]) -> None:
    planes = np.ascontiguousarray(IMAGE.transpose(0, 3, 1, 2))
    resized = torch.nn.functional.interpolate
    for symbols in (False, True):
        for found, options in (
            (lambda x: ops.resize(x, size), {"mode": "bilinear"}),
            (lambda x: ops.resize_linear(x, size, 1), {"mode": "bilinear", "align_corners": True}),
            (lambda x: ops.resize_linear(x, size, antialias=True), {"mode": "bilinear", "antialias": True}),
            (lambda x: ops.resize(x, size, ops.InterpolationMode.BICUBIC), {"mode": "bicubic"}),
            (lambda x: ops.resize_nearest(x, size, 2, 2), {"mode": "nearest"}),
            (lambda x: ops.resize_nearest(x, size, 0, 1), {"mode": "nearest-exact"}),
        ):
            expected = resized(torch.tensor(planes), size[2:], **options).numpy()
            same(run(found, planes, symbols=symbols), expected, 1e-5)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16])
def test_images_of_small_integers_are_resized_to_the_nearest(dtype: Any) -> None:
    x = RANDOM.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, (1, 2, 5, 6)).astype(dtype)
    expected = x[:, :, np.arange(10) // 2][..., np.arange(12) // 2]
    same(run(lambda x: ops.resize(x, [1, 2, 10, 12], ops.InterpolationMode.NEAREST), x), expected)


def test_boxes_that_overlap_are_left_out() -> None:
    boxes = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 3, 1, 4]]], np.float32)
    scores = np.array([[[0.9, 0.75, 0.6], [0.1, 0.8, 0.2]]], np.float32)
    found = run(lambda b, s: ops.non_maximum_suppression(b, s, 3, 0.5, 0.15), boxes, scores)
    same(found, np.array([[0, 0, 0], [0, 0, 2], [0, 1, 1], [0, 1, 2]], np.int64))
