"""Operations that choose elements by position or size, pad and repeat: their shapes are NumPy's; and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from max_weights.dtype import DType
from max_weights.graph import DeviceRef, Dim, Graph, GraphError, Shape, TensorType, TensorValue, ops
from refusals import refuses

CPU = DeviceRef.CPU()
N = Dim("n")


def given(*types: tuple[str, list[Any]]) -> Graph:
    return Graph("g", input_types=[TensorType(dtype, shape, CPU) for dtype, shape in types])


def one(compute: Callable[..., Any], *types: tuple[str, list[Any]]) -> Any:
    """The result of a function of tensors of these types."""
    with given(*types) as graph:
        return compute(*graph.inputs)


FLOATS, PLACES = ("float32", ["n", 6, 4]), ("int64", ["k", 2])


@pytest.mark.parametrize(
    ("compute", "dtype", "shape"),
    [
        (lambda x: ops.top_k(x, 3)[0], "float32", ["n", 6, 3]),
        (lambda x: ops.top_k(x, 3, axis=0)[1], "int64", [3, 6, 4]),
        (lambda x: ops.bottom_k(x, 0, axis=1)[0], "float32", ["n", 0, 4]),
        (lambda x: ops.top_k(x, Dim("m"), 0)[1], "int64", ["m", 6, 4]),
        (lambda x: ops.top_k(x > 0, 2)[0], "bool", ["n", 6, 2]),
        (lambda x: ops.argsort(x[:, 0, 0]), "int64", ["n"]),
        (lambda x: ops.cumsum(x, axis=-2), "float32", ["n", 6, 4]),
        (lambda x: ops.nonzero(x, "found"), "int64", ["found", 3]),
        (lambda x: ops.nonzero(x != 0, 7), "int64", [7, 3]),
        (lambda x: ops.pad(x, [0, 0, 1, 2, 0, 3]), "float32", ["n", 9, 7]),
        (lambda x: ops.pad(x, [1, 2, 0, 0, 0, 0], mode="edge"), "float32", [N + 3, 6, 4]),
        (lambda x: ops.pad(x, [0, 0, 5, 5, 0, 0], mode="reflect"), "float32", ["n", 16, 4]),
        (lambda x: ops.pad(x > 0, [0] * 5 + [1], value=True), "bool", ["n", 6, 5]),
        (lambda x: ops.pad(x, [0] * 5 + [1], value=x[0, 0, 0]), "float32", ["n", 6, 5]),
        (lambda x: ops.chunk(x, 3, axis=1)[2], "float32", ["n", 2, 4]),
        (lambda x: ops.chunk(x.reshape([-1, 3]), 4)[0], "float32", [N * 2, 3]),
        (lambda x: ops.repeat_interleave(x, 3, axis=1), "float32", ["n", 18, 4]),
        (lambda x: ops.repeat_interleave(x, 2), "float32", [N * 48]),
        (lambda x: ops.repeat_interleave(x, 2, axis=0), "float32", [N * 2, 6, 4]),
        (lambda x: ops.band_part(x, 1, 0), "float32", ["n", 6, 4]),
        (lambda x: ops.band_part(x.transpose(0, 2) > 0, None, 3, exclude=True), "bool", [4, 6, "n"]),
        (lambda x: ops.as_interleaved_complex(x), "float32", ["n", 6, 2, 2]),
        (lambda x: ops.complex.mul(x[..., :2], x[..., 2:]), "float32", ["n", 6, 2]),
        (lambda x: ops.shape_to_tensor(x.shape), "int64", [3]),
        (lambda x: ops.prod(x), "float32", ["n", 6, 1]),
        (lambda x: x.var(1), "float32", ["n", 1, 4]),
        (lambda x: x.stdev(), "float32", ["n", 6, 1]),
        (lambda x: x.max(0), "float32", [1, 6, 4]),
        (lambda x: x.min(), "float32", ["n", 6, 1]),
        (lambda x: x.mean(1), "float32", ["n", 1, 4]),
        (lambda x: x.argmax(), "int64", ["n", 6, 1]),
        (lambda x: divmod(x, 3)[1], "float32", ["n", 6, 4]),
        (lambda x: divmod(1, x)[0], "float32", ["n", 6, 4]),
        (lambda x: round(x), "float32", ["n", 6, 4]),
        (lambda x: ops.is_nan(x), "bool", ["n", 6, 4]),
        (lambda x: ops.is_inf(x), "bool", ["n", 6, 4]),
    ],
)
def test_results_of_one_tensor(compute: Callable[[TensorValue], TensorValue], dtype: str, shape: list[Any]) -> None:
    assert one(compute, FLOATS).type == TensorType(dtype, shape, CPU)


@pytest.mark.parametrize("name", ["ceil", "round", "trunc", "atanh", "acos", "log1p"])
def test_functions_of_floats_keep_the_type(name: str) -> None:
    with given(("float16", ["n", 3]), ("int32", [3])) as graph:
        half, whole = graph.inputs
        assert getattr(ops, name)(half).type == half.type
        with refuses(ValueError, "graph.invalid"):
            getattr(ops, name)(whole)


def test_names_of_max_and_of_python_mean_one_function() -> None:
    assert ops.floor_div is ops.floordiv
    assert ops.negate is ops.neg


@pytest.mark.parametrize("batch", [0, 1, 2])
@pytest.mark.parametrize("depth", [1, 2])
def test_gather_nd_gives_the_shape_of_numpy(batch: int, depth: int) -> None:
    shape, where = [2, 3, 4, 5], [*[2, 3][:batch], 7, 6, depth]
    array, indices = np.zeros(shape[batch:]), np.zeros(where[batch:], np.int64)
    taken = array[tuple(np.moveaxis(indices, -1, 0))]
    expected = [*shape[:batch], *taken.shape]
    result = one(lambda x, i: ops.gather_nd(x, i, batch), ("float32", shape), ("int64", where))
    assert result.shape == expected
    assert result.node.attributes == {"batch_dims": batch}


SCATTERS = ("scatter", "scatter_add", "scatter_max", "scatter_min", "scatter_mul")


@pytest.mark.parametrize("name", SCATTERS)
def test_scatter_keeps_the_type_and_says_how(name: str) -> None:
    types = FLOATS, ("float32", ["k", 6, 4]), ("int32", ["k", 6, 4]), ("uint8", ["k", 6, 4])
    with given(*types) as graph:
        x, updates, indices, small = graph.inputs
        result = getattr(ops, name)(x, updates, indices, axis=0)
        assert result.type == x.type
        assert result.node.inputs == (x, indices, updates)
        how = name.partition("_")[2] or "none"
        assert dict(result.node.attributes) == {"axis": 0, "reduction": how}
        assert getattr(ops, name)(x, updates, small, 0).node.inputs[1].dtype is DType.int64
        whole = getattr(ops, name.replace("scatter", "scatter_nd"))(x, updates, indices[:, 0, :1])
        assert whole.type == x.type
        assert dict(whole.node.attributes) == {"reduction": how}


def test_masked_scatter_writes_where_the_mask_is_true() -> None:
    types = FLOATS, ("bool", [6, 1]), ("float32", ["m"])
    with given(*types) as graph:
        x, mask, updates = graph.inputs
        assert ops.masked_scatter(x, mask, updates, "m").type == x.type
        assert ops.masked_scatter(x, mask, updates, "other").type == x.type
        with refuses(ValueError, "graph.invalid"):
            ops.masked_scatter(x, x, updates, "m")


def test_repeats_may_be_a_tensor_whose_result_has_a_stated_size() -> None:
    types = FLOATS, ("int32", [6]), ("int64", []), ("int64", [1])
    with given(*types) as graph:
        x, each, scalar, single = graph.inputs
        for repeats in (each, scalar, single):
            assert ops.repeat_interleave(x, repeats, 1, out_dim="m").shape == ["n", "m", 4]
        with refuses(ValueError, "graph.invalid"):
            ops.repeat_interleave(x, each, 1)


@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 8])
def test_a_hann_window_is_that_of_torch(length: int, periodic: bool) -> None:
    import torch

    with Graph("g"):
        window = ops.hann_window(length, CPU, periodic)
        assert window.type == TensorType("float32", [length], CPU)
        expected = torch.hann_window(length, periodic=periodic).numpy()
        assert np.allclose(window.node.attributes["value"], expected, atol=1e-7)
        assert ops.hann_window(4, CPU, dtype=DType.bfloat16).dtype is DType.bfloat16


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "top_k": (lambda x, _: ops.top_k(x, 5), r"top_k: 5 elements are asked for, but the shape \[n, 6, 4\] has 4"),
    "argsort": (lambda x, _: ops.argsort(x), "argsort: takes a tensor of one axis"),
    "cumsum": (lambda x, _: ops.cumsum(x > 0), "cumsum: needs numbers"),
    "chunk": (lambda x, _: ops.chunk(x, 4, 1), r"chunk: the shape \[n, 6, 4\] has 6 on axis 1, not a multiple of 4"),
    "chunk of a symbol": (lambda x, _: ops.chunk(x, 2), r"chunk: .* has n on axis 0, not a multiple of 2"),
    "no chunks": (lambda x, _: ops.chunk(x, 0), "chunk: the number of pieces must be positive, not 0"),
    "gather_nd": (lambda x, _: ops.gather_nd(x, x), "gather_nd: the indices must be integers"),
    "gather_nd depth": (
        lambda x, i: ops.gather_nd(x, i, 2),
        r"gather_nd: batch_dims is 2; the indices \[k, 2\] allow 0 to 1",
    ),
    "gather_nd batch": (
        lambda x, i: ops.gather_nd(x, i, 1),
        r"\[n, 6, 4\] and \[k, 2\] do not have their first 1 axes",
    ),
    "scatter dtype": (lambda x, i: ops.scatter(x, i, i), "scatter: float32 and int64 are different dtypes"),
    "scatter ranks": (lambda _, i: ops.scatter(i, i[0], i[0]), r"scatter: .* have different ranks"),
    "scatter sizes": (
        lambda _, i: ops.scatter(i[:1, :1], i[:1], i[:1], 0),
        r"scatter: the updates \[1, 2\] are longer than \[1, 1\] on axis 1: 2",
    ),
    "scatter_nd": (
        lambda x, i: ops.scatter_nd(x, x[0], i),
        r"scatter_nd: the shapes \[k, 4\] and \[6, 4\] do not fit: on axis 0, k and 6 may differ",
    ),
    "scatter_nd depth": (
        lambda _, i: ops.scatter_nd(i[:, 0], i[:, 0], i),
        r"an index of 2 numbers is for more axes than the shape \[k\] has: 1",
    ),
    "nonzero": (lambda x, _: ops.nonzero(x[0, 0, 0], "m"), "nonzero: a scalar has no positions"),
    "pad mode": (
        lambda x, _: ops.pad(x, [0] * 6, "wrap"),
        "pad: the mode must be 'constant', 'reflect' or 'edge', not 'wrap'",
    ),
    "pad count": (lambda x, _: ops.pad(x, [0]), r"pad: the shape \[n, 6, 4\] needs 6 numbers, found \[0\]"),
    "pad negative": (lambda x, _: ops.pad(x, [-1] * 6), "pad: the numbers must not be negative"),
    "pad reflect": (lambda x, _: ops.pad(x, [0, 0, 6, 0, 0, 0], "reflect"), "too few elements on axis 1 to reflect 6"),
    "pad value": (lambda x, i: ops.pad(x, [1] * 6, value=i[0, 0]), "pad: the value is a scalar of float32, found"),
    "repeat": (
        lambda x, _: ops.repeat_interleave(x, -1),
        "the number of repeats must be 0 or more, not -1",
    ),
    "band_part": (
        lambda x, _: ops.band_part(x, 6),
        r"band_part: num_lower is 6; .* has 6 diagonals: give fewer",
    ),
    "band_part below": (lambda x, _: ops.band_part(x, 0, -2), r"band_part: num_upper is -2; .* or -1 for all"),
    "band_part rank": (lambda x, _: ops.band_part(x[0, 0]), r"band_part: takes matrices, \[..., m, n\], found \[4\]"),
    "group_norm": (
        lambda x, _: ops.group_norm(x, x[0, :, 0], x[0, :, 0], 4, 1e-5),
        r"group_norm: the 6 channels of \[n, 6, 4\] are not split into 4 equal groups",
    ),
    "group_norm shapes": (
        lambda x, _: ops.group_norm(x, x[0, 0], x[0, 0], 2, 1e-5),
        r"group_norm: takes \[batch, channels, ...\], \[channels\] and \[channels\], found \[n, 6, 4\], \[4\], \[4\]",
    ),
    "broadcast_to": (lambda x, i: ops.broadcast_to(x, i[0]), "broadcast_to: the shape is a tensor, .* as out_dims"),
    "broadcast_to rank": (
        lambda x, i: ops.broadcast_to(x, i[0], [1, 2, 3]),
        r"broadcast_to: a shape of \[1, 2, 3\] is 3 integers on the CPU, found",
    ),
    "broadcast_to axes": (
        lambda x, i: ops.broadcast_to(x, i[0], [1, 2]),
        r"broadcast_to: the shape \[n, 6, 4\] has more axes than \[1, 2\]",
    ),
    "complex": (lambda x, _: ops.as_interleaved_complex(x[..., 0:3]), "is not known to be even"),
    "complex.mul": (lambda x, _: ops.complex.mul(x, x), "complex.mul: the last axis holds the real and"),
    "hann": (lambda *_: ops.hann_window(-1, CPU), "hann_window: the length must not be negative, found -1"),
    "hann dtype": (lambda *_: ops.hann_window(4, CPU, dtype=DType.int8), "a window must be of floats, not int8"),
}


IMAGES = ("float32", ["b", "h", 8, "c"]), ("float32", ["b", "k", 8])


@pytest.mark.parametrize(
    ("compute", "shape"),
    [
        (lambda x, _: ops.max_pool2d(x, (2, 2), stride=2), ["b", Dim("h") // 2, 4, "c"]),
        (lambda x, _: ops.avg_pool2d(x, (2, 3), (2, 1), ceil_mode=True), ["b", (Dim("h") + 1) // 2, 6, "c"]),
        (lambda x, _: ops.avg_pool2d(x, (3, 3), padding=1, count_boundary=False), ["b", "h", 8, "c"]),
        (lambda x, _: ops.max_pool2d(x, (1, 3), dilation=(1, 2), padding=(0, 1)), ["b", "h", 6, "c"]),
        (lambda _, y: ops.fold(y.rebind(["b", 12, "l"]), (5, 5), (2, 3)), ["b", 2, 5, 5]),
        (lambda _, y: ops.fold(y.rebind(["b", 6 * Dim("c"), "l"]), ("h", "w"), (2, 3)), ["b", "c", "h", "w"]),
        (lambda _, y: ops.fold(y.rebind(["b", "r", "l"]), (5, 5), (2, 3)), ["b", Dim("r") // 6, 5, 5]),
        (lambda x, _: ops.resize(x, ["b", "h", 16, "w"]), ["b", "h", 16, "w"]),
        (lambda _, y: ops.resize_linear(y, ["b", "k", 16], 3), ["b", "k", 16]),
        (
            lambda x, y: ops.non_maximum_suppression(x[:, 0, :, :4].rebind(["b", 8, 4]), y, 5, 0.5, x[0, 0, 0, 0]),
            ["num_selected", 3],
        ),
    ],
)
def test_results_of_images(compute: Callable[..., TensorValue], shape: list[Any]) -> None:
    assert one(compute, *IMAGES).shape == shape


IMAGES_REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "rank": (lambda _, y: ops.max_pool2d(y, (2, 2)), r"max_pool2d: takes an image \[batch, height, width, channels\]"),
    "window": (
        lambda x, _: ops.max_pool2d(x, (1, 5), dilation=2),
        r"max_pool2d: a window of 9 is larger than 8, padding included, in an image \[h, 8\]",
    ),
    "stride": (
        lambda x, _: ops.avg_pool2d(x, (2, 2), 0),
        "avg_pool2d: stride must be one number or two, each at least 1, found 0",
    ),
    "sizes": (
        lambda x, _: ops.avg_pool2d(x, (2, 2, 2)),
        r"avg_pool2d: kernel_size must be one number or two, .*\(2, 2, 2\)",
    ),  # type: ignore[arg-type]
    "integers": (lambda x, _: ops.max_pool2d(x.cast("int8"), (2, 2)), "max_pool2d: needs a float"),
    "fold rows": (
        lambda _, y: ops.fold(y.rebind(["b", 7, 8]), (5, 5), (2, 3)),
        r"the 7 rows of \[b, 7, 8\] are not a multiple",
    ),
    "fold windows": (
        lambda _, y: ops.fold(y.rebind(["b", 6, 8]), (5, 5), (2, 3)),
        r"\[5, 5\] has 12 windows, .* has 8",
    ),
    "fold rank": (lambda x, _: ops.fold(x, (5, 5), (2, 3)), r"fold: takes \[batch, channels \* window, windows\]"),
    "size": (lambda x, _: ops.resize(x, [1, 2]), r"found \[1, 2\] for \[b, h, 8, c\]"),
    "image": (lambda _, y: ops.resize(y, [1, 2, 3]), r"resize: takes an image \[batch, channels, height, width\]"),
    "resize integers": (
        lambda x, _: ops.resize_nearest(x.cast("int32"), [1] * 4),
        r"resize_nearest: needs a float, found TensorType\(dtype=int32",
    ),
    "cubic": (lambda _, y: ops.resize_bicubic(y, [1, 2, 3]), "resize_bicubic: takes an image"),
    "mode": (lambda x, _: ops.resize_linear(x, [1] * 4, 4), "coordinate_transform_mode is 0 to 3, not 4"),
    "rounding": (lambda x, _: ops.resize_nearest(x, [1] * 4, 0, -1), "round_mode is 0 to 3, not -1"),
    "boxes": (lambda x, y: ops.non_maximum_suppression(x, y, 1, 0.5, 0.5), r"takes \[batch, boxes, 4\] and"),
    "limit": (
        lambda x, y: ops.non_maximum_suppression(x[:, 0, :, :4].rebind(["b", 8, 4]), y, 1, y, 0.5),
        "iou_threshold is a number or a scalar of float32, found",
    ),
}


@pytest.mark.parametrize("case", IMAGES_REFUSED)
def test_a_refusal_of_images_says_why_and_where(case: str) -> None:
    compute, message = IMAGES_REFUSED[case]
    with pytest.raises(GraphError, match=message) as caught:
        one(compute, *IMAGES)
    assert f"(at {__file__}:" in str(caught.value)


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_says_why_and_where(case: str) -> None:
    compute, message = REFUSED[case]
    with pytest.raises(GraphError, match=message) as caught:
        one(compute, FLOATS, PLACES)
    assert f"(at {__file__}:" in str(caught.value)


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: ops.top_k(x, 1, 3),
        lambda x: ops.cumsum(x, 3),
        lambda x: ops.chunk(x, 1, 3),
        lambda x: ops.scatter(x, x, x.cast(DType.int64), -4),
        lambda x: ops.repeat_interleave(x, 1, 3),
        lambda x: ops.prod(x, 3),
        lambda x: x.mean(-4),
        lambda x: ops.concat([x, x], 3),
        lambda x: x.transpose(0, 3),
        lambda x: ops.softmax(x, 3),
    ],
)
def test_an_axis_that_is_not_there_is_an_index_error_and_a_value_error(compute: Callable[[Any], Any]) -> None:
    for kind in (IndexError, ValueError):
        with refuses(kind, "graph.index"):
            one(compute, FLOATS)


@pytest.mark.parametrize(
    "name",
    [
        "allgather",
        "allreduce",
        "buffer_create",
        "custom",
        "while_loop",
        "random",
    ],
)
def test_an_operation_of_max_that_is_not_here_says_what_to_do_instead(name: str) -> None:
    with refuses(AttributeError):
        getattr(ops, name)
    with refuses(AttributeError):
        ops.no_such_operation  # noqa: B018


def test_what_is_assumed_of_a_symbol_is_kept() -> None:
    assert one(lambda x: ops.top_k(x, 3, 0)[0], FLOATS).node.attributes["minimums"] == ((N, Dim(3)),)
    assert one(lambda x: ops.top_k(x, 3)[0], FLOATS).node.attributes["minimums"] == ()
    assert one(lambda x: ops.argsort(x[:, 0, 0]), FLOATS).node.attributes["minimums"] == ()
    assert one(lambda x: x, FLOATS).shape == Shape(["n", 6, 4])
