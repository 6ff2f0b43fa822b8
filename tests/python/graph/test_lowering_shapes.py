"""Each operation that moves, joins, reduces, multiplies or makes tensors, run by NumPy's rules, with symbolic sizes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from graphs import CPU, EVERY, FLOATS, INTEGERS, STEP, Array, close, counted, run
from max_weights._dim import Dim
from max_weights.dtype import DType
from max_weights.engine import InferenceSession
from max_weights.graph import Graph, GraphError, TensorType, TensorValue, onnx, ops
from refusals import refuses

SYMBOLS = [("n", "m")]

MOVES: dict[str, tuple[Callable[[Any], Any], Callable[[Array], Any]]] = {
    "reshape": (lambda x: ops.reshape(x, [-1, 2]), lambda x: x.reshape(-1, 2)),
    "flatten": (lambda x: ops.flatten(x), lambda x: x.reshape(-1)),
    "transpose": (lambda x: ops.transpose(x, 0, -1), lambda x: x.T),
    "permute": (lambda x: ops.permute(x[None], [-1, 0, 1]), lambda x: x[None].transpose(2, 0, 1)),
    "squeeze": (lambda x: ops.squeeze(ops.unsqueeze(x, -1), 2), lambda x: x),
    "unsqueeze": (lambda x: ops.unsqueeze(x, 1), lambda x: x[:, None]),
    "tile": (lambda x: ops.tile(x, [2, 3]), lambda x: np.tile(x, (2, 3))),
    "broadcast_to": (lambda x: ops.broadcast_to(x, [2, *x.shape]), lambda x: np.stack([x, x])),
    "concat": (lambda x: ops.concat([x, x, x], -1), lambda x: np.concatenate([x, x, x], -1)),
    "stack": (lambda x: ops.stack([x, x], -1), lambda x: np.stack([x, x], -1)),
    "gather": (
        lambda x: ops.gather(x, np.array([[0, -1], [1, 1]], np.int32), -1),
        lambda x: x[:, [[0, -1], [1, 1]]],
    ),
    "rebind": (lambda x: ops.rebind(x, ["a", "b"]), lambda x: x),
    "transfer_to": (lambda x: ops.transfer_to(x, CPU), lambda x: x),
    "cast": (lambda x: ops.cast(x, x.dtype), lambda x: x),
    "x[1]": (lambda x: x[1], lambda x: x[1]),
    "x[-2]": (lambda x: x[-2], lambda x: x[-2]),
    "x[:, -1]": (lambda x: x[:, -1], lambda x: x[:, -1]),
    "x[1:]": (lambda x: x[1:], lambda x: x[1:]),
    "x[:-1, 1:]": (lambda x: x[:-1, 1:], lambda x: x[:-1, 1:]),
    "x[-2:]": (lambda x: x[-2:], lambda x: x[-2:]),
    "x[::2]": (lambda x: x[::2], lambda x: x[::2]),
    "x[::-1, ::-2]": (lambda x: x[::-1, ::-2], lambda x: x[::-1, ::-2]),
    "x[None, ..., 0]": (lambda x: x[None, ..., 0], lambda x: x[None, ..., 0]),
    "x[0:0]": (lambda x: x[0:0], lambda x: x[0:0]),
    "x[tensor]": (lambda x: x[np.array([1, 0, 1])], lambda x: x[[1, 0, 1]]),
    "where": (lambda x: ops.where(x == x[0], x, x[::-1]), lambda x: np.where(x == x[0], x, x[::-1])),
}


@pytest.mark.parametrize("dtype", EVERY, ids=str)
@pytest.mark.parametrize("move", MOVES)
def test_moves(move: str, dtype: DType) -> None:
    """Every dtype, with sizes that are known and with symbols."""
    ours, theirs = MOVES[move]
    x = counted(3, 4, dtype=dtype)
    close(run(ours, x), theirs(x))
    if move not in ("reshape",):  # that an unknown number is divisible by 2 has to be stated
        close(run(ours, x, shapes=SYMBOLS), theirs(x))


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_split(dtype: DType) -> None:
    x = counted(5, 4, dtype=dtype)
    for sizes, axis in (([1, 3, 0, 1], 0), ([1, 3], -1), ([5], 0)):
        found = run(lambda x, s=sizes, a=axis: ops.split(x, s, a), x)
        requested = np.split(x, np.cumsum(sizes)[:-1], axis)
        for result, part in zip([found] if len(sizes) == 1 else found, requested, strict=True):
            close(result, part)


def test_split_by_symbols() -> None:
    x, y, z = counted(5, 2), counted(2), counted(3)

    def function(joined: Any, first: Any, second: Any) -> list[Any]:
        return ops.split(joined, [first.shape[0], second.shape[0]])

    first, second = run(function, x, y, z, shapes=[(Dim("a") + "b", 2), ("a",), ("b",)])
    close(first, x[:2])
    close(second, x[2:])


@pytest.mark.parametrize("empty", [(0, 4), (3, 0), (0, 0)])
@pytest.mark.parametrize("move", [move for move in MOVES if "[" not in move and move not in ("gather", "where")])
def test_moves_of_no_elements(move: str, empty: tuple[int, int]) -> None:
    ours, theirs = MOVES[move]
    x = counted(*empty)
    if move != "reshape":
        close(run(ours, x, shapes=SYMBOLS), theirs(x))
    if move != "gather":
        close(run(ours, x), theirs(x))


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_broadcasting_to_no_elements(dtype: DType) -> None:
    x = counted(3, 1, dtype=dtype)
    for shape in ((3, 0), (0, 3, 1), (2, 3, 0)):
        close(run(lambda x, s=shape: ops.broadcast_to(x, s), x), np.broadcast_to(x, shape))
    close(run(lambda x: ops.broadcast_to(x, [x.shape[0], 0]), x, shapes=[("n", 1)]), np.broadcast_to(x, (3, 0)))


def test_scalars() -> None:
    x = np.array(3.0, np.float32)
    found = run(
        lambda x: (x + 1, x * x, ops.reshape(x, [1]), ops.stack([x, x]), x[None], ops.broadcast_to(x, [2, 2]), x > 2), x
    )
    requested = (x + 1, x * x, x.reshape(1), np.stack([x, x]), x[None], np.broadcast_to(x, (2, 2)), np.asarray(x > 2))
    for result, expected in zip(found, requested, strict=True):
        close(result, np.asarray(expected))


REDUCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sum": (lambda x, axis: ops.sum(x, axis), lambda x, axis: x.sum(axis, keepdims=True, dtype=x.dtype)),
    "mean": (lambda x, axis: ops.mean(x, axis), lambda x, axis: x.mean(axis, keepdims=True)),
    "max": (lambda x, axis: ops.max(x, axis=axis), lambda x, axis: x.max(axis, keepdims=True)),
    "min": (lambda x, axis: ops.min(x, axis=axis), lambda x, axis: x.min(axis, keepdims=True)),
    "argmax": (lambda x, axis: ops.argmax(x, axis), lambda x, axis: x.argmax(axis, keepdims=True)),
    "argmin": (lambda x, axis: ops.argmin(x, axis), lambda x, axis: x.argmin(axis, keepdims=True)),
}


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions(op: str, dtype: DType) -> None:
    ours, theirs = REDUCTIONS[op]
    random = np.random.default_rng(0)
    if dtype.is_integral():
        limits = np.iinfo(dtype.to_numpy())
        x = random.integers(limits.min, limits.max, (3, 4, 5), dtype=dtype.to_numpy(), endpoint=True)
        x[0, 0, :3], x[0, 0, 3:] = limits.max, limits.min
        if op == "mean" and dtype.size_in_bits == 64:
            x //= 8  # the sum of 64 bits may wrap
    else:
        x = random.standard_normal((3, 4, 5)).astype(dtype.to_numpy())
    single = x if dtype.is_integral() or dtype is DType.float64 else x.astype(np.float32)
    for axis in (0, 1, -1):
        for shapes in ((), [("n", "m", "k")]):
            found = run(lambda x, axis=axis: ours(x, axis), x, shapes=shapes)
            if op == "mean" and dtype.is_integral():
                close(found.astype(np.float64), np.trunc(theirs(single.astype(np.float64), axis)), 1e-12)
                continue
            requested = theirs(single, axis)
            exact = dtype.is_integral() or op not in ("sum", "mean")
            close(
                found,
                requested if requested.dtype == np.int64 else requested.astype(x.dtype),
                0 if exact else STEP[dtype],
            )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions_with_nan_and_infinities(op: str, dtype: DType) -> None:
    """A row with NaN gives NaN, and its position is the first NaN's, as in NumPy."""
    ours, theirs = REDUCTIONS[op]
    nan, infinite = np.nan, np.inf
    rows = [[1, nan, nan, 3], [nan, 2, 1, 0], [3, 2, 1, nan], [-infinite, infinite, 0, infinite]]
    x = np.array([*rows, [-infinite] * 4, [infinite] * 4, [2, 5, 5, 1]]).astype(dtype.to_numpy())
    for axis in (-1, 0):
        with np.errstate(invalid="ignore"):
            requested = theirs(x.astype(np.float64), axis)
        close(run(lambda x, axis=axis: ours(x, axis), x), requested if "arg" in op else requested.astype(x.dtype))


def test_reductions_of_no_elements() -> None:
    x = counted(3, 0)
    close(run(lambda x: ops.sum(x), x, shapes=SYMBOLS), np.zeros((3, 1), np.float32))
    close(run(lambda x: ops.mean(x), x, shapes=SYMBOLS), np.full((3, 1), np.nan, np.float32))
    for op, (ours, _) in REDUCTIONS.items():
        close(run(lambda x, ours=ours: ours(x, -1), x.T, shapes=SYMBOLS)[:0], run(lambda x, o=ours: o(x, -1), x.T))
        if op not in ("sum", "mean"):
            for dtype in (DType.float32, DType.int32, DType.uint8):
                with refuses(GraphError, "graph.invalid"):
                    run(lambda x, ours=ours: ours(x, -1), counted(3, 0, dtype=dtype), shapes=SYMBOLS)


def test_norms_of_no_elements_are_refused_before_the_run() -> None:
    x, row = counted(3, 0), counted(0)
    for norm in (
        lambda x, row: ops.layer_norm(x, row, row, 1e-5),
        lambda x, row: ops.rms_norm(x, row, 1e-5),
    ):
        with refuses(GraphError, "graph.invalid"):
            run(norm, x, row, shapes=[("n", "d"), ("d",)])
        assert run(norm, counted(0, 3), counted(3), shapes=[("n", "d"), ("d",)]).shape == (0, 3)


def test_means_of_large_unsigned_integers() -> None:
    x = np.array([[2**63, 0], [2**64 - 2, 1]], np.uint64)
    close(run(lambda x: ops.mean(x), x), np.array([[2**62], [2**63 - 1]], np.uint64))


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
def test_products(dtype: DType) -> None:
    """Matrices, vectors and batches of both; transposed too, which is another operator."""
    shapes = [
        ((3, 4), (4, 5)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((4,), (4,)),
        ((2, 3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)),
    ]
    for left, right in [*shapes, ((2, 1, 3, 4), (5, 4, 2)), ((3, 0), (0, 5)), ((0, 4), (4, 2)), ((2, 3, 0), (0, 2))]:
        x, y = counted(*left, dtype=dtype), counted(*right, dtype=dtype)
        wide = np.float32 if dtype in (DType.float16, DType.bfloat16) else x.dtype
        requested = np.asarray(np.matmul(x.astype(wide), y.astype(wide))).astype(x.dtype)
        close(run(ops.matmul, x, y), requested, STEP.get(dtype, 0))
        if len(right) > 1:
            turned = np.ascontiguousarray(np.swapaxes(y, -1, -2))
            close(run(lambda x, y: x @ y.T, x, turned), requested, STEP.get(dtype, 0))
            if len(right) == 2:
                unknown = [[*[f"d{axis}" for axis in range(len(left) - 1)], left[-1]], None]
                close(run(lambda x, y: x @ y.T, x, turned, shapes=unknown), requested, STEP.get(dtype, 0))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("rows", [(2, 3), (3,), (), (0,)])
@pytest.mark.parametrize("inner", [4, 0])
def test_products_with_a_bias(dtype: DType, rows: tuple[int, ...], inner: int) -> None:
    """The transposition is part of the product, unless it is rounded before the sum or used elsewhere."""
    x, y, bias = counted(*rows, inner, dtype=dtype), counted(5, inner, dtype=dtype), counted(5, dtype=dtype)
    product = (x.astype(np.float64) @ y.T.astype(np.float64)).astype(x.dtype)
    symbols: list[Any] = [[*"abc"[: len(rows)], inner]]
    for shapes in ([], symbols):
        found = run(lambda x, y, b: (x @ y.T + b, b + x @ y.T, (x @ y.T) - b), x, y, bias, shapes=shapes)
        for made, requested in zip(found, (product + bias, bias + product, product - bias), strict=True):
            close(made, requested, STEP[dtype])

    def twice(x: TensorValue, y: TensorValue, b: TensorValue) -> tuple[TensorValue, ...]:
        product = x @ y.T
        return product + b, product, product + product

    for made, requested in zip(run(twice, x, y, bias), (product + bias, product, product + product), strict=True):
        close(made, requested, STEP[dtype])


def test_a_bias_is_a_part_of_its_product() -> None:
    def counts(*shapes: tuple[Any, ...], dtype: str = "float32") -> tuple[int, int]:
        types = [TensorType(dtype, shape, CPU) for shape in shapes]
        model = onnx.to_model(Graph("g", lambda x, y, b: x @ y.T + b, types))
        found = [node.op_type for node in model.graph.node]
        return found.count("Gemm"), found.count("Add")

    assert counts(("a", "b", 4), (5, 4), (5,)) == (1, 0)
    assert counts(("a", "b", 4), ("n", 4), ("n",)) == (1, 0)
    assert counts((2, 4), (5, 4), (5,), dtype="float16") == (1, 1)
    for other in ((1,), (2, 5), (3, 1, 5), ()):
        assert counts((2, 4), (5, 4), other) == (1, 1)


def test_reshapes_that_keep_symbols_in_their_places() -> None:
    x = counted(2, 3, 4)
    for batch in (x, x[:0], x[:, :0]):
        found = run(
            lambda x: (x.reshape(["a", "b", 2, 2]), x.reshape(["b", "a", 4]), x.reshape(["a", 1, "b", 4])),
            batch,
            shapes=[("a", "b", 4)],
        )
        shape = batch.shape
        close(found[0], batch.reshape(*shape[:2], 2, 2))
        close(found[1], batch.reshape(shape[1], shape[0], 4))
        close(found[2], batch.reshape(shape[0], 1, shape[1], 4))


def test_products_with_symbols_inside() -> None:
    x, y = counted(2, 3, 4), counted(5, 4)
    for inner in ("k", Dim("k") * 2, Dim("h") // 2):
        shapes: list[Any] = [("b", "s", "k"), ("o", "k")]
        if inner != "k":
            x, y = counted(2, 3, 4), counted(5, 4)
            shapes = [("b", "s", inner), ("o", inner)]
        close(run(lambda x, y: x @ y.T, x, y, shapes=shapes), x @ y.T, 1e-6)


def test_a_product_with_a_matrix_of_another_dtype() -> None:
    """The matrix is converted, but not transposed."""
    x, y = counted(3, 4), counted(5, 4, dtype=DType.bfloat16)
    close(run(lambda x, y: x @ y.T, x, y), x @ y.T.astype(np.float32), 1e-6)
    graph = Graph(
        "g", lambda x, y: x @ y.T, [TensorType("float32", x.shape, CPU), TensorType("bfloat16", y.shape, CPU)]
    )
    from max_weights.graph._lowering.model import lower

    assert {node.op_type for node in lower(graph, {}, initializers=False).model.graph} == {
        *("Cast", "Gemm", "Identity")
    }


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
def test_outer(dtype: DType) -> None:
    x, y = counted(3, dtype=dtype), counted(4, dtype=dtype)
    close(run(ops.outer, x, y), np.outer(x.astype(np.float64), y.astype(np.float64)).astype(x.dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_normalization(dtype: DType) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((2, 3, 8)).astype(dtype.to_numpy())
    gamma, beta = (random.standard_normal(8).astype(dtype.to_numpy()) for _ in range(2))
    wide = torch.float64 if dtype is DType.float64 else torch.float32

    def as_torch(array: Array) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.float64)).to(wide)

    def back(tensor: torch.Tensor) -> Array:
        made: Array = tensor.numpy().astype(x.dtype)
        return made

    # ONNX has epsilon in float32.
    tolerance = max(STEP[dtype], 1e-8)
    requested = torch.nn.functional.layer_norm(as_torch(x), (8,), as_torch(gamma), as_torch(beta), 1e-3)
    for shapes in ((), [("n", "m", 8)]):
        close(
            run(lambda x, g, b: ops.layer_norm(x, g, b, 1e-3), x, gamma, beta, shapes=shapes),
            back(requested),
            tolerance,
        )
    scaled = torch.nn.functional.rms_norm(as_torch(x), (8,), as_torch(gamma) + 1, 1e-3)
    found = run(lambda x, g: ops.rms_norm(x, g, 1e-3, 1.0, True), x, gamma)
    close(found, back(scaled), tolerance)
    rounded = back(torch.nn.functional.rms_norm(as_torch(x), (8,), None, 1e-3))
    found = run(lambda x, g: ops.rms_norm(x, g, 1e-3), x, gamma)
    close(found, back(as_torch(rounded) * as_torch(gamma)), tolerance * 2)
    wide_gamma = gamma.astype(np.float32)
    assert run(lambda x, g: ops.rms_norm(x, g, 1e-3), x, wide_gamma).dtype == x.dtype


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("op", ["softmax", "logsoftmax"])
def test_softmax_along_an_axis(op: str, axis: int) -> None:
    x = np.random.default_rng(0).standard_normal((3, 4, 5), np.float32)
    theirs = torch.softmax if op == "softmax" else torch.log_softmax
    for shapes in ((), [("n", "m", "k")]):
        close(
            run(lambda x: getattr(ops, op)(x, axis), x, shapes=shapes), theirs(torch.from_numpy(x), axis).numpy(), 1e-6
        )


def test_softmax_of_masked_rows() -> None:
    x = np.array([[0, -np.inf, 1], [-np.inf, -np.inf, -np.inf]], np.float32)
    close(run(lambda x: ops.softmax(x), x), torch.softmax(torch.from_numpy(x), -1).numpy(), 1e-6)


@pytest.mark.parametrize("dtype", [*EVERY, DType.float8_e4m3fn, DType.float8_e5m2], ids=str)
def test_constants(dtype: DType) -> None:
    value = counted(2, 3, dtype=dtype)
    close(run(lambda x: (ops.constant(value), x)[0], value), value)
    assert run(lambda: ops.constant(1, dtype) if dtype is not DType.bool else ops.constant(True)).tolist() == 1
    large = counted(5, 30, dtype=DType.int32)
    close(run(lambda: ops.constant(large)), large)


def test_a_constant_has_the_dtype_of_the_other_operand() -> None:
    graph = Graph("g", lambda x: (x * 0.3).cast("float32"), [TensorType("float32", [2], CPU)])
    narrow = Graph("g", lambda x: (x.cast("bfloat16") * 0.3).cast("float32"), [TensorType("float32", [2], CPU)])
    x = np.ones(2, np.float32)
    found = [InferenceSession().load(g).execute(x)[0].to_numpy() for g in (graph, narrow)]
    close(found[0], np.full(2, 0.3, np.float32))
    close(found[1], np.full(2, ml_dtypes.bfloat16(0.3), ml_dtypes.bfloat16).astype(np.float32))


FORMULAS = (
    "n",
    "n + 1",
    "n * m",
    "n // 2",
    "n // m",
    "n * m * 2 + n // 3 + 5",
    "(n + m) // 2 * 2 - m",
    "(n + 7) // 4 // 2",
)


@pytest.mark.parametrize("formula", FORMULAS)
def test_dimensions_as_values(formula: str) -> None:
    """Python computes the same formula from the sizes."""
    function = eval(f"lambda n, m: {formula}")
    for n, m in ((5, 2), (1, 1), (8, 3), (0, 4)):
        scalar, row, scaled = run(
            lambda x: (
                TensorValue(function(*x.shape)),
                TensorValue(ops.reshape(x, [x.shape[0] * x.shape[1]]).shape),
                x * function(*x.shape),
            ),
            counted(n, m),
            shapes=SYMBOLS,
        )
        close(scalar, np.array(function(n, m)))
        close(row, np.array([n * m]))
        close(scaled, counted(n, m) * np.float32(function(n, m)))


def test_a_floor_division_of_less_than_nothing_rounds_down() -> None:
    for n in range(8):
        found = run(lambda x: TensorValue((x.shape[0] - 5) // 2 + 10), counted(n), shapes=[("n",)])
        assert found == (n - 5) // 2 + 10


def test_shapes_from_formulas() -> None:
    for n in (0, 1, 4):
        x = counted(n, 6)
        found = run(
            lambda x: (
                ops.reshape(x, [x.shape[0] * 2, 3]),
                ops.reshape(x, [x.shape[0], 2, -1]),
                ops.broadcast_to(x, [x.shape[0], x.shape[0], 6]),
                ops.concat([x, x]),
                ops.tile(x, [2, 2]),
                x[: x.shape[0] // 2],
                x[x.shape[0] // 2 :, 1:-1],
                ops.range(0, x.shape[0], 1),
            ),
            x,
            shapes=[("n", 6)],
        )
        requested = (
            *(x.reshape(-1, 3), x.reshape(n, 2, 3), np.broadcast_to(x, (n, n, 6)), np.concatenate([x, x])),
            *(np.tile(x, (2, 2)), x[: n // 2], x[n // 2 :, 1:-1], np.arange(n)),
        )
        for result, expected in zip(found, requested, strict=True):
            close(result, expected)


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
def test_ranges(dtype: DType) -> None:
    for start, stop, step in ((0, 5, 1), (2, 11, 3), (5, 0, -2), (5, 0, 2), (0, 0, 1)):
        if step > 0 or not dtype.is_unsigned_integral():
            close(
                run(lambda a=(start, stop, step): ops.range(*a, dtype=dtype)),
                np.arange(start, stop, step).astype(dtype.to_numpy()),
            )


def test_ranges_of_fractions_have_the_size_that_the_graph_says() -> None:
    """In float32, three steps of 0.1 are less than 0.3, and Range would make a fourth."""
    close(run(lambda: ops.range(0, 0.3, 0.1)), np.arange(0, 0.3, 0.1, np.float32)[:3], 1e-7)
    close(run(lambda: ops.range(0, 1, 0.1)), np.arange(0, 1, 0.1).astype(np.float32), 1e-7)
    close(run(lambda: ops.range(1.0, -1.0, -0.25)), np.arange(1, -1, -0.25, np.float32))


def test_a_range_to_a_tensor_has_the_size_that_is_stated() -> None:
    x, stop = counted(4), np.array(4)
    close(run(lambda x, stop: ops.range(0, stop, 1, x.shape[0]), x, stop, shapes=[("n",)]), np.arange(4))
    close(run(lambda stop: ops.range(0, stop, 1, "k"), np.array(3)), np.arange(3))
    with pytest.raises(GraphError, match=r"range of graph 'g' \(at .*test_lowering_shapes.py:"):
        run(lambda x, stop: ops.range(0, stop, 1, x.shape[0]), x, np.array(3), shapes=[("n",)])


def test_positions_out_of_range_name_the_line() -> None:
    x = counted(3, 4)
    for dtype in (np.int32, np.int64, np.uint8):
        with pytest.raises(
            GraphError, match=r"gather of graph 'g' \(at .*test_lowering_shapes.py:\d+\): .*out of"
        ) as e:
            run(lambda x, i: ops.gather(x, i, 0), x, np.array([0, 3], dtype))
        assert e.value.op == "gather"
        assert re.search(r"test_lowering_shapes.py:\d+$", e.value.location)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_positions_of_every_dtype(dtype: DType) -> None:
    x, places = counted(5, 2), np.array([[0, 4], [2, 2]]).astype(dtype.to_numpy())
    close(run(lambda x, i: ops.gather(x, i, 0), x, places), x[places.astype(int)])
