"""Each elementwise operation, run: equal to NumPy if the result is exact, else within a stated tolerance.

bfloat16 and float16 are computed as float32, and each operation rounds its result once. So the results are those of
NumPy on float32, rounded; one step of the narrow dtype is allowed if ONNX Runtime's float32 differs in the last bits.
"""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from children import with_test_folders
from graphs import FLOATS, INTEGERS, STEP, Array, close, recorded, run
from max_weights.dtype import DType
from max_weights.graph import ops
from max_weights.graph._lowering.dtypes import _KERNELS, ONNX_TYPES
from max_weights.graph._lowering.table import LOWERINGS

EXACT = 0.0
FLOAT8 = tuple(dtype for dtype in ONNX_TYPES if dtype.is_float8())


def wide(dtype: DType) -> Any:
    """The dtype in which NumPy computes this one."""
    return np.float32 if dtype.is_float() and dtype is not DType.float64 else dtype.to_numpy()


def numbers(dtype: DType, count: int = 24, seed: int = 0) -> Array:
    """Numbers of both signs whose products fit small integers; for integers also the minimum and maximum."""
    random = np.random.default_rng(seed)
    if dtype.is_float():
        return (random.standard_normal(count) * 3).astype(dtype.to_numpy())
    kind = dtype.to_numpy()
    limits = np.iinfo(kind)
    made = random.integers(max(limits.min, -100), min(limits.max, 100), count).astype(kind)
    made[:2] = limits.min, limits.max
    return made


def by_numpy(function: Callable[..., Any], dtype: DType, *arrays: Array) -> Array:
    """A function of NumPy, rounded once to the dtype."""
    with np.errstate(all="ignore"):
        result = np.asarray(function(*(array.astype(wide(dtype)) for array in arrays)))
    return result if result.dtype == bool else result.astype(dtype.to_numpy())


def erf(x: Array) -> Array:
    return torch.erf(torch.from_numpy(x)).numpy()


def gelu(approximate: str) -> Callable[[Array], Array]:
    def function(x: Array) -> Array:
        return torch.nn.functional.gelu(torch.from_numpy(x), approximate=approximate).numpy()

    return function


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(x: Array) -> Array:
    return torch.softmax(torch.from_numpy(x), -1).numpy()


UNARY: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sqrt": (ops.sqrt, np.sqrt),
    "rsqrt": (ops.rsqrt, lambda x: 1 / np.sqrt(x)),
    "exp": (ops.exp, np.exp),
    "log": (ops.log, np.log),
    "sin": (ops.sin, np.sin),
    "cos": (ops.cos, np.cos),
    "tanh": (ops.tanh, np.tanh),
    "erf": (ops.erf, erf),
    "acos": (ops.acos, lambda x: np.arccos(np.clip(x, -1, 1))),
    "atanh": (ops.atanh, np.arctanh),
    "log1p": (ops.log1p, np.log1p),
    "ceil": (ops.ceil, np.ceil),
    "round": (ops.round, np.round),
    "trunc": (ops.trunc, np.trunc),
    "floor": (ops.floor, np.floor),
    "sigmoid": (ops.sigmoid, sigmoid),
    "silu": (ops.silu, lambda x: x * sigmoid(x)),
    "gelu": (ops.gelu, gelu("none")),
    "gelu tanh": (lambda x: ops.gelu(x, "tanh"), gelu("tanh")),
    "gelu quick": (lambda x: ops.gelu(x, "quick"), lambda x: x * sigmoid(x.dtype.type(1.702) * x)),
    "softmax": (ops.softmax, softmax),
    "logsoftmax": (ops.logsoftmax, lambda x: torch.log_softmax(torch.from_numpy(x), -1).numpy()),
    "neg": (ops.neg, np.negative),
    "abs": (ops.abs, np.abs),
    "relu": (ops.relu, lambda x: np.maximum(x, 0)),
}
BINARY: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (ops.add, np.add),
    "sub": (ops.sub, np.subtract),
    "mul": (ops.mul, np.multiply),
    "floordiv": (ops.floordiv, np.floor_divide),
    "mod": (ops.mod, np.mod),
    "max": (ops.max, np.maximum),
    "min": (ops.min, np.minimum),
    "equal": (ops.equal, np.equal),
    "not_equal": (ops.not_equal, np.not_equal),
    "less": (ops.less, np.less),
    "less_equal": (ops.less_equal, np.less_equal),
    "greater": (ops.greater, np.greater),
    "greater_equal": (ops.greater_equal, np.greater_equal),
    "where": (lambda x, y: ops.where(x > y, x, y), lambda x, y: np.where(x > y, x, y)),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", UNARY)
def test_functions_of_floats(op: str, dtype: DType) -> None:
    x = numbers(dtype)
    if op in ("sqrt", "rsqrt", "log", "log1p"):
        x = np.abs(x)
    if op in ("acos", "atanh"):
        x = (x / 16).astype(x.dtype)
    ours, theirs = UNARY[op]
    single = dtype is DType.float64 and op in ("erf", "gelu", "acos")  # ONNX Runtime has these for float32
    exact = op in ("neg", "abs", "relu", "floor", "ceil", "round", "trunc")
    close(run(ours, x), by_numpy(theirs, dtype, x), EXACT if exact else 2e-6 if single else STEP[dtype])


@pytest.mark.parametrize("op", UNARY)
def test_functions_of_what_is_no_number(op: str) -> None:
    """NaN stays NaN; infinities, zeros and numbers that are out of range are as in NumPy and torch."""
    ours, theirs = UNARY[op]
    for dtype in (DType.float32, DType.float64):
        kind = dtype.to_numpy()
        x = np.array([math.nan, 0.0, 1.0, -1.0, 1e30, -1e30], kind)
        if op in ("sin", "cos"):
            x = x[:4]
        x = x[:, None]  # so that softmax has rows of one
        finite, infinite = x, np.array([[math.inf], [-math.inf]], kind)
        for given in (finite, infinite):
            if op.startswith("gelu") and given is infinite:
                continue  # which torch has as NaN or not, by the size of the tensor
            close(run(ours, given), by_numpy(theirs, dtype, given), 2e-6)


@pytest.mark.parametrize(
    ("op", "dtype"),
    [(op, d) for op in ("neg", "abs", "relu") for d in INTEGERS if op != "neg" or d.is_signed_integral()],
    ids=str,
)
def test_functions_of_integers(op: str, dtype: DType) -> None:
    ours, theirs = UNARY[op]
    x = numbers(dtype)
    close(run(ours, x), by_numpy(theirs, dtype, x))


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
@pytest.mark.parametrize("op", BINARY)
def test_operations_of_two(op: str, dtype: DType) -> None:
    """Exact for every dtype; integers wrap as in NumPy, the smallest divided by -1 included."""
    ours, theirs = BINARY[op]
    x, y = numbers(dtype)[:, None], numbers(dtype, 9, seed=1)
    if dtype.is_integral():
        y[2:4] = 0, 1
        if dtype.is_signed_integral():
            y[4] = -1
    close(run(ours, x, y), by_numpy(theirs, dtype, x, y))


@pytest.mark.parametrize("op", [op for op in BINARY if op != "where"])
def test_operations_of_two_with_nan_and_infinities(op: str) -> None:
    ours, theirs = BINARY[op]
    for dtype in FLOATS:
        x = np.array([math.nan, math.inf, -math.inf, 0, 1, -1], dtype.to_numpy())
        close(run(ours, x[:, None], x), by_numpy(theirs, dtype, x[:, None], x))


def test_floor_division_of_floats_is_that_of_python() -> None:
    """The result of 1 // 0.1 is 9, although 1 / 0.1 rounds to 10."""
    x, y = np.array([1.0, -1.0, 7.5, 1e16, 6.0]), np.array([0.1, 0.1, -2.0, 3.0, 0.1])
    found = run(lambda x, y: (x // y, x % y), x, y)
    close(found[0], np.array([a // b for a, b in zip(x, y, strict=True)]))
    close(found[1], np.array([a % b for a, b in zip(x, y, strict=True)]))


@pytest.mark.parametrize(
    ("dtype", "divisor"),
    [(d, divisor) for d in INTEGERS for divisor in (1, 3, 0, -1, -3) if divisor >= 0 or d.is_signed_integral()],
    ids=str,
)
def test_division_by_a_constant(dtype: DType, divisor: int) -> None:
    x = numbers(dtype)
    quotient, rest = run(lambda x: (x // divisor, x % divisor), x)
    close(quotient, by_numpy(lambda x: x // np.array(divisor, x.dtype), dtype, x))
    close(rest, by_numpy(lambda x: x % np.array(divisor, x.dtype), dtype, x))


def test_integers_divided_by_zero_do_not_end_the_process() -> None:
    """ONNX Runtime's own division would raise a processor exception."""
    program = """
import numpy as np
from graphs import run
for dtype in (np.int32, np.int64):
    x = np.array([7, np.iinfo(dtype).min], dtype)
    y = np.array([0, -1], dtype)
    print([a.tolist() for a in run(lambda x, y: (x // y, x % y), x, y)])
print(run(lambda x: x // x.shape[1], np.ones((3, 0), np.int32), shapes=[("n", "m")]).tolist())
"""
    made = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=with_test_folders())
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines() == [f"[[0, {-(2**31)}], [0, 0]]", f"[[0, {-(2**63)}], [0, 0]]", "[[], [], []]"]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_powers_of_integers(dtype: DType) -> None:
    x = numbers(dtype)
    for exponent in (1, 2, 3, 7):  # constants, which are exact and wrap
        close(run(lambda x, n=exponent: x**n, x), by_numpy(lambda x, n=exponent: x ** x.dtype.type(n), dtype, x))
    x = np.arange(1, 11).astype(dtype.to_numpy())
    y = np.array([0, 1, 2, 3, 5], x.dtype)[:, None]
    close(run(ops.pow, x, y), by_numpy(np.power, dtype, x, y))
    square = np.full((1, 1), 2, x.dtype)  # a constant with axes, which the result has too
    close(run(lambda x: ops.pow(x, square), x), by_numpy(np.power, dtype, x, square))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_quotients_and_powers_of_floats(dtype: DType) -> None:
    x, y = np.abs(numbers(dtype))[:, None], numbers(dtype, 9, seed=1)
    close(run(ops.div, x, y), by_numpy(np.divide, dtype, x, y))
    close(run(ops.pow, x, y), by_numpy(np.power, dtype, x, y), STEP[dtype])
    close(run(lambda x: x**2, y), by_numpy(np.square, dtype, y))


def test_the_quotient_of_integers_is_float64() -> None:
    x = np.array([1, -7, 2**62], np.int64)
    close(run(lambda x: x / 3, x), x / 3)


@pytest.mark.parametrize("made", [*INTEGERS, *FLOATS, *FLOAT8, DType.bool], ids=str)
def test_casts(made: DType) -> None:
    """To a wider dtype and back, as NumPy and ml_dtypes round; a float to an integer is cut off toward zero."""
    for dtype in (*INTEGERS, *FLOATS, DType.bool):
        x = np.array([0, 1, 2, 3, 100]).astype(dtype.to_numpy())
        close(run(lambda x: x.cast(made), x), x.astype(made.to_numpy()))
    for dtype in FLOATS:
        x = np.array([0.3, 1.99, 2.5, 100.7, 0.0]).astype(dtype.to_numpy())
        close(run(lambda x: x.cast(made), x), x.astype(np.float64).astype(x.dtype).astype(made.to_numpy()))


def test_a_float_that_is_too_large_becomes_infinite_or_nan() -> None:
    x = np.array([1e30, -1e30, math.inf, math.nan], np.float32)
    for dtype in (DType.float16, *FLOAT8):
        with np.errstate(over="ignore"):
            close(run(lambda x, d=dtype: x.cast(d), x), x.astype(dtype.to_numpy()))


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_float8_is_computed_as_float32(dtype: DType) -> None:
    x = np.array([[0.5, 1.0, -1.5], [2.0, 0.25, -0.5]], np.float32).astype(dtype.to_numpy())
    single = x.astype(np.float32)

    def function(x: Any) -> Any:
        moved = ops.concat([x, ops.stack([x[0], x[1]])])[::-1, 1:].reshape([8])
        return x + 1, x @ x.T, ops.exp(x), moved, ops.tile(x, [2, 1]), ops.broadcast_to(x, [2, 2, 3]), ops.sum(x)

    requested = (
        *(single + 1, single @ single.T, np.exp(single), np.concatenate([single, single])[::-1, 1:].reshape(8)),
        *(np.tile(single, (2, 1)), np.broadcast_to(single, (2, 2, 3)), single.sum(-1, keepdims=True)),
    )
    for found, result in zip(run(function, x), requested, strict=True):
        close(found, result.astype(x.dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_an_operation_rounds_once(dtype: DType) -> None:
    """`x * sigmoid(x)` in narrow floats would round the logistic function first; so would the other formulas."""
    x = np.linspace(-8, 8, 4001).astype(dtype.to_numpy())
    for op in ("silu", "gelu", "gelu tanh", "gelu quick", "rsqrt"):
        ours, theirs = UNARY[op]
        given = np.abs(x) + x.dtype.type(1) if op == "rsqrt" else x
        found, requested = run(ours, given), by_numpy(theirs, dtype, given)
        if dtype in (DType.float16, DType.bfloat16):  # a few round across a half
            large = np.abs(requested) > 0.05  # near 0, the approximations in float32 differ by more than a step
            assert np.mean(found[large] != requested[large]) < 0.01
            close(found, requested, STEP[dtype])
        else:
            close(found, requested, 2e-6)


def test_logic() -> None:
    x, y = np.array([[True], [False]]), np.array([True, False])
    found = run(lambda x, y: (x & y, x | y, x ^ y, ~x, x == y, x != y, ops.where(x, y, x)), x, y)
    for result, requested in zip(found, (x & y, x | y, x ^ y, ~x, x == y, x != y, np.where(x, y, x)), strict=True):
        close(result, requested)


def test_every_operation_is_lowered() -> None:
    """All names that the functions of `ops` record."""
    import ast
    import inspect
    import pkgutil

    recorded = set()
    for module in pkgutil.iter_modules(ops.__path__):
        source = inspect.getsource(importlib.import_module(f"max_weights.graph.ops.{module.name}"))
        for call in ast.walk(ast.parse(source)):
            if isinstance(call, ast.Call) and call.args and isinstance(call.args[0], ast.Constant):
                name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
                if name in ("record", "_unary", "_question", "_comparison", "_logical", "_reduce"):
                    recorded.add(call.args[0].value)
                if name == "_arithmetic":  # the operation, where it is not the name
                    recorded.add((call.args[2].value if call.args[2:] else "") or call.args[0].value)
    assert len(recorded) > 70
    assert not recorded - set(LOWERINGS)


def test_there_are_the_kernels_that_the_table_says() -> None:
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def

    names = {"float32": "float", "float64": "double"}
    found: dict[str, set[str]] = {}
    for kernel in get_all_opkernel_def():
        first, last = kernel.version_range
        if kernel.provider == "CPUExecutionProvider" and (first <= 23 <= last or kernel.domain):
            constraints = kernel.type_constraints
            kinds = constraints.get("T") or next(iter(constraints.values()), [])
            found.setdefault(kernel.op_name, set()).update(kinds)
    for operator, dtypes in _KERNELS.items():
        for dtype in dtypes:
            name = names.get(dtype.name, dtype.name.replace("_", ""))
            assert f"tensor({name})" in found[operator], (operator, dtype)


def test_what_is_lowered_is_recorded_with_its_line() -> None:
    graph = recorded(lambda x: x + 1, np.ones(2, np.float32))
    assert all(node.location.startswith(__file__) for node in graph.nodes[1:])
