"""Operations: the dtype and device of results, constants, and error messages."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from max_weights.driver import Buffer
from max_weights.dtype import DType
from max_weights.graph import DeviceRef, Dim, Graph, GraphError, TensorType, TensorValue, Weight, ops
from refusals import refuses

CPU, GPU = DeviceRef.CPU(), DeviceRef.GPU(0)
NUMBERS = [dtype for dtype in DType if dtype.is_integral() or dtype.is_float()]
UNARY_FLOAT = (
    *("sqrt", "rsqrt", "exp", "log", "sin", "cos", "tanh", "erf"),
    *("floor", "sigmoid", "silu", "gelu", "softmax", "logsoftmax"),
)


def given(*types: tuple[str, list[int | str]] | TensorType) -> Graph:
    """A graph with inputs of these dtypes and shapes."""
    return Graph("g", input_types=[t if isinstance(t, TensorType) else TensorType(*t, CPU) for t in types])


def holds(wide: DType, narrow: DType) -> bool:
    """Whether the other dtype represents every value of one dtype, tried with samples."""
    if narrow.is_integral():
        ends = np.iinfo(narrow.to_numpy())
        values: list[Any] = [int(ends.min), int(ends.max), int(ends.max) - 1]
        if wide.is_integral():
            return bool(min(values) >= np.iinfo(wide.to_numpy()).min and max(values) <= np.iinfo(wide.to_numpy()).max)
    elif wide.is_integral():
        return False
    elif narrow.size_in_bits <= 16:
        bits = np.arange(2**narrow.size_in_bits, dtype="uint16" if narrow.size_in_bits == 16 else "uint8")
        with np.errstate(invalid="ignore"):
            values = [float(value) for value in bits.view(narrow.to_numpy()) if np.isfinite(float(value))]
    else:
        info = np.finfo(narrow.to_numpy())
        values = [float(info.max), float(info.tiny), float(1 + info.eps)]
    with np.errstate(over="ignore"):
        kept = [float(np.array(value, np.float64).astype(wide.to_numpy())) for value in values]
    return all(
        np.isfinite(after) and int(after) == before if isinstance(before, int) else after == before
        for before, after in zip(values, kept, strict=True)
    )


@pytest.mark.parametrize("left", NUMBERS, ids=str)
def test_the_dtype_that_holds_the_other_wins(left: DType) -> None:
    for right in NUMBERS:
        small = [dtype for dtype in (left, right) if dtype.is_float() and dtype.size_in_bits < 16]
        wider = [wide for wide, narrow in ((left, right), (right, left)) if wide not in small and holds(wide, narrow)]
        with given((left.name, [2]), (right.name, [2])) as graph:
            x, y = graph.inputs
            if left is right:
                assert (x * y).dtype is left
            elif wider:
                assert (x * y).dtype is (y - x).dtype is ops.where(x == y, x, y).dtype is wider[0]
                assert (x < y).dtype is DType.bool
            else:
                with pytest.raises(ValueError, match=f"mul: {left!r} and {right!r} are different dtypes, and neither"):
                    _ = x * y
            for join in (ops.concat, ops.stack) if left is not right else ():
                with pytest.raises(ValueError, match=f"{left!r} and {right!r} are different dtypes; convert one"):
                    join([x, y])


@pytest.mark.parametrize("dtype", [dtype for dtype in NUMBERS if dtype is not DType.float8_e8m0fnu], ids=str)
def test_bool_becomes_a_number_beside_numbers(dtype: DType) -> None:
    with given((dtype.name, [2]), ("bool", [2])) as graph:
        x, flag = graph.inputs
        assert (x * flag).dtype is (flag + x).dtype is dtype
        assert (x < flag).dtype is DType.bool


def test_quotients_of_any_two_integers_are_float64() -> None:
    integers = [dtype for dtype in NUMBERS if dtype.is_integral()]
    for left in integers:
        for right in integers:
            with given((left.name, [2]), (right.name, [2])) as graph:
                assert (graph.inputs[0] / graph.inputs[1]).dtype is DType.float64


def test_promotion_is_a_cast_in_the_graph() -> None:
    with given(("float32", [2]), ("bfloat16", [2])) as graph:
        _ = graph.inputs[0] + graph.inputs[1]
        (cast,) = [node for node in graph.nodes if node.op == "cast"]
    assert cast.inputs[0] is graph.inputs[1]
    assert cast.attributes["dtype"] is DType.float32


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "int8", "uint64"])
@pytest.mark.parametrize("scalar", [2, np.int64(2), np.uint8(2), np.array(2), True])
def test_a_scalar_takes_the_dtype_of_the_tensor(dtype: str, scalar: Any) -> None:
    with given((dtype, ["n"])) as graph:
        x = graph.inputs[0]
        for result in (x + scalar, scalar + x, x * scalar, scalar - x):
            assert result.type == x.type


@pytest.mark.parametrize(
    "scalar", [0.1, np.float64(0.1), np.float32(0.1), ml_dtypes.bfloat16(0.5), float("inf"), float("nan")]
)
def test_a_float_scalar_takes_the_dtype_of_the_tensor(scalar: Any) -> None:
    with given(("bfloat16", ["n"])) as graph:
        assert (graph.inputs[0] / scalar).dtype is (scalar / graph.inputs[0]).dtype is DType.bfloat16


@pytest.mark.parametrize(
    ("dtype", "scalar"),
    [
        ("int32", 2.5),
        ("int32", 2.0),
        ("int8", 128),
        ("int8", -129),
        ("uint8", -1),
        ("uint8", 256),
        ("float16", 65520.0 * 2),
        ("float32", 10**400),
        ("bool", 1),
        ("complex64", 1.0),
    ],
)
def test_a_scalar_that_the_dtype_does_not_have_is_refused(dtype: str, scalar: Any) -> None:
    with given((dtype, [2])) as graph, refuses(ValueError, "graph.invalid"):
        ops.equal(graph.inputs[0], scalar)


@pytest.mark.parametrize("scalar", [np.str_("a"), np.complex64(1), np.datetime64("2020-01-01"), np.array("a")])
def test_a_numpy_scalar_that_is_no_number_is_refused(scalar: Any) -> None:
    with given(("float32", [2])) as graph, refuses(TypeError):
        ops.add(graph.inputs[0], scalar)


def test_the_ends_of_a_range_are_allowed() -> None:
    with given(("int8", [2]), ("uint64", [2]), ("float16", [2])) as graph:
        small, large, half = graph.inputs
        _ = small + 127, small + -128, large + (2**64 - 1), half + 65504.0
        with refuses(ValueError, "graph.invalid"):
            _ = large + 2**64


def test_two_devices_are_refused_and_named() -> None:
    with given(("float32", [2]), TensorType("float32", [2], GPU)) as graph:
        x, y = graph.inputs
        with refuses(ValueError, "graph.invalid"):
            _ = x + y
        moved = ops.transfer_to(x, GPU)
        assert (moved + y).device == GPU
        assert (y + 1.0).device == (y + np.ones(2, np.float32)).device == GPU
        assert ops.transfer_to(y, "gpu:0") is y
        assert y.to("cpu").device == CPU


@pytest.mark.parametrize("name", UNARY_FLOAT)
def test_functions_of_floats_keep_the_type_and_refuse_the_rest(name: str) -> None:
    with given(("float16", ["n", 3]), ("int32", [3])) as graph:
        half, whole = graph.inputs
        assert getattr(ops, name)(half).type == half.type
        with refuses(ValueError, "graph.invalid"):
            getattr(ops, name)(whole)


def test_numbers_are_not_truth_values() -> None:
    with given(("bool", [2]), ("int32", [2]), ("uint8", [2])) as graph:
        flag, number, unsigned = graph.inputs
        for compute in (lambda: flag - flag, lambda: -flag, lambda: ops.sum(flag), lambda: flag / flag):
            with refuses(ValueError, "graph.invalid"):
                compute()
        for compute in (lambda: number & number, lambda: ~number, lambda: ops.where(number, number, number)):
            with refuses(ValueError, "graph.invalid"):
                compute()
        with refuses(ValueError, "graph.invalid"):
            _ = -unsigned
        assert (flag & flag).dtype is (flag | True).dtype is (flag ^ flag).dtype is (~flag).dtype is DType.bool
        assert (flag == flag).dtype is (number != 3).dtype is (number >= number).dtype is DType.bool
        assert ops.where(flag, number, 0).type == number.type
        assert ops.where(flag, 0, number).type == number.type


def test_sums_and_products_of_bool_are_logical_as_in_numpy() -> None:
    with given(("bool", ["n", 2]), ("bool", [2])) as graph:
        x, y = graph.inputs
        for result, op in (
            (x + y, "logical_or"),
            (x * y, "logical_and"),
            (ops.max(x, y), "logical_or"),
            (ops.min(x, y), "logical_and"),
            (x + True, "logical_or"),
        ):
            assert (result.dtype, result.shape, result.node.op) == (DType.bool, ["n", 2], op)
        assert (x < y).dtype is ops.max(x).dtype is ops.min(x, axis=0).dtype is DType.bool
        assert ops.argmax(x).type == ops.argmin(x).type == TensorType("int64", ["n", 1], CPU)


def test_quotients_of_integers_are_float64_and_their_means_are_integers() -> None:
    with given(("int32", [2]), ("int32", [2]), ("float16", [2])) as graph:
        x, y, half = graph.inputs
        assert (x / y).dtype is (x / 2).dtype is DType.float64
        assert ops.mean(x).dtype is (x // y).dtype is (x % 3).dtype is (x**2).dtype is DType.int32
        assert ops.mean(half).dtype is (half / 2).dtype is DType.float16
        assert ops.argmax(half).dtype is ops.argmin(x).dtype is DType.int64


def test_max_of_one_tensor_reduces_and_of_two_compares() -> None:
    with given(("float32", ["n", 3]), ("float32", [3])) as graph:
        x, y = graph.inputs
        assert ops.max(x).shape == ["n", 1]
        assert ops.min(x, axis=0).shape == ops.reduction.min(x, 0).shape == [1, 3]
        assert ops.elementwise.max(x, y).shape == ops.elementwise.min(x, 0.0).shape == ["n", 3]
        assert ops.max(x, y).shape == ops.min(x, 0.0).shape == ["n", 3]
        with refuses(ValueError, "graph.invalid"):
            ops.max(x, y, axis=0)
        with refuses(ValueError, "graph.invalid"):
            ops.max(ops.constant(np.zeros(0, np.float32)))


def test_what_has_to_have_elements_is_refused_where_it_is_recorded() -> None:
    with given(("float32", [2, 0]), ("float32", [0]), ("float32", [1, 4, 4, 0])) as graph:
        x, row, image = graph.inputs
        for record in (lambda: ops.layer_norm(x, row, row, 1e-5), lambda: ops.rms_norm(x, row, 1e-5)):
            with refuses(ValueError, "graph.invalid"):
                record()
        for pool in (ops.avg_pool2d, ops.max_pool2d):
            with refuses(ValueError, "graph.invalid"):
                pool(image, (2, 2))


def test_norms_take_a_row_as_long_as_the_last_axis() -> None:
    with given(("float32", ["b", 8]), ("float32", [8]), ("float32", [4]), ("bfloat16", [8])) as graph:
        x, row, short, half = graph.inputs
        assert ops.layer_norm(x, row, row, 1e-5).type == ops.rms_norm(x, row, 1e-6).type == x.type
        assert ops.rms_norm(x, half, 1e-6, weight_offset=1.0, multiply_before_cast=True).type == x.type
        with refuses(ValueError, "graph.invalid"):
            ops.layer_norm(x, row, short, 1e-5)
        with refuses(ValueError, "graph.invalid"):
            ops.rms_norm(x, short, 1e-5)
        with refuses(ValueError, "graph.invalid"):
            ops.rms_norm(x, row, 0.0)
        with refuses(ValueError, "graph.invalid"):
            ops.rms_norm(x, x, 1e-5)


class TestConstant:
    @pytest.mark.parametrize(
        ("value", "dtype", "shape"),
        [
            (True, DType.bool, []),
            (3, DType.int64, []),
            (0.5, DType.float32, []),
            (np.float16(0.5), DType.float16, []),
            (np.float64(0.5), DType.float64, []),
            ([[1, 2], [3, 4]], DType.int64, [2, 2]),
            ([0.5, 1.5], DType.float32, [2]),
            ((), DType.float32, [0]),
            (np.ones((2, 3), ml_dtypes.bfloat16), DType.bfloat16, [2, 3]),
            (np.ones((2, 3), ">i4"), DType.int32, [2, 3]),
        ],
    )
    def test_the_dtype_is_that_of_the_value(self, value: Any, dtype: DType, shape: list[int]) -> None:
        with Graph("g"):
            constant = ops.constant(value)
            assert constant.type == TensorType(dtype, shape, CPU)
            data = constant.node.attributes["value"]
            assert np.array_equal(np.asarray(data, np.float64), np.asarray(value, np.float64))

    def test_a_dtype_and_a_device_can_be_asked_for(self) -> None:
        with Graph("g"):
            assert ops.constant([1, 2], "float16", GPU).type == TensorType("float16", [2], GPU)
            assert ops.constant(1, DType.bfloat16, "gpu:1").type == TensorType("bfloat16", [], "gpu:1")
            assert ops.constant(np.arange(3.0), DType.int8).dtype is DType.int8

    @pytest.mark.parametrize(
        ("value", "dtype"), [([0.5], "int32"), ([300], "int8"), ([-1], "uint8"), ([1e6], "float16"), ([2], "bool")]
    )
    def test_values_are_not_changed_beyond_rounding(self, value: Any, dtype: str) -> None:
        with Graph("g"), refuses(ValueError, "graph.invalid"):
            ops.constant(value, dtype)

    def test_the_elements_are_copied(self) -> None:
        array = np.zeros(3, np.float32)
        with Graph("g"):
            constant = ops.constant(array)
        array[:] = 1
        kept = constant.node.attributes["value"]
        assert not kept.any()
        assert not kept.flags.writeable

    def test_buffers_and_other_tensors_are_taken(self) -> None:
        import torch

        with Graph("g"):
            assert ops.constant(Buffer.from_numpy(np.ones((2, 3), np.int16))).type == TensorType("int16", [2, 3], CPU)
            assert ops.constant(torch.ones(2, dtype=torch.bfloat16)).type == TensorType("bfloat16", [2], CPU)

    @pytest.mark.parametrize("value", ["text", None, object(), np.array(["a"]), np.array([object()])])
    def test_what_is_no_number_is_refused(self, value: Any) -> None:
        with Graph("g"), refuses((TypeError, ValueError)):
            ops.constant(value)


class TestRange:
    def test_dtype_and_device(self) -> None:
        with Graph("g"):
            assert ops.range(0, 10, dtype="int32", device=GPU).type == TensorType("int32", [10], GPU)
            assert ops.range(0, 1, 0.25).type == TensorType("float32", [4], CPU)
            assert ops.range(0, Dim("n")).type == TensorType("int64", ["n"], CPU)
            assert ops.range(Dim("a"), Dim("b")).shape == [Dim("b") - Dim("a")]

    def test_the_size_is_stated_where_it_is_not_known(self) -> None:
        with given(("int64", [])) as graph:
            stop = graph.inputs[0]
            assert ops.range(0, stop, out_dim="n").type == TensorType("int64", ["n"], CPU)
            with refuses(ValueError, "graph.invalid"):
                ops.range(0, stop)
            with refuses(ValueError, "graph.invalid"):
                ops.range(0, 10, out_dim=9)
            with refuses(ValueError, "graph.invalid"):
                ops.range(0, 10, 0)


REFUSED: dict[str, tuple[Callable[[TensorValue, TensorValue], Any], str]] = {
    "add": (operator.add, r"add: the shapes \[n, 5\] and \[4, 3\] do not broadcast: on axis -1, 5 is not 3"),
    "matmul": (operator.matmul, r"matmul: the shapes \[n, 5\] and \[4, 3\] do not multiply: .* 5 is not 4"),
    "concat": (lambda x, y: ops.concat([x, y]), r"concat: the shapes \[n, 5\] and \[4, 3\] do not fit"),
    "stack": (lambda x, y: ops.stack([x, y]), r"stack: the shapes \[n, 5\] and \[4, 3\] do not fit"),
    "reshape": (lambda x, _: x.reshape([3, 4]), r"reshape: the shapes \[n, 5\] and \[3, 4\] hold 5\*n and 12 elements"),
    "reshape to -1": (
        lambda x, _: x.reshape([-1, 7]),
        r"reshape: the shapes \[n, 5\] and \[-1, 7\]: 5\*n elements may not divide by 7",
    ),
    "broadcast_to": (
        lambda _, y: y.broadcast_to([2, 4, 5]),
        r"broadcast_to: the shape \[4, 3\] does not broadcast to \[2, 4, 5\]: on axis -1, 3 is not 5",
    ),
    "rebind": (
        lambda x, _: x.rebind(["m", 4]),
        r"rebind: the shapes \[n, 5\] and \[m, 4\] differ: on axis 1, 5 is not 4",
    ),
    "split": (
        lambda x, _: ops.split(x, [2, 2], 1),
        r"split: the sizes \[2, 2\] sum to 4, but .* \[n, 5\] has 5",
    ),
    "squeeze": (lambda x, _: ops.squeeze(x, 0), r"squeeze: the shape \[n, 5\] has size n on axis 0, not 1"),
    "permute": (
        lambda x, _: x.permute([0, 0]),
        r"permute: \[0, 0\] does not name each axis of .* \[n, 5\] once",
    ),
    "tile": (lambda x, _: ops.tile(x, [2]), r"tile: the shape \[n, 5\] needs 2 repeats, found \[2\]"),
    "outer": (ops.outer, r"outer: takes two tensors of one axis, found \[n, 5\] and \[4, 3\]"),
    "gather": (
        lambda x, y: ops.gather(x, y, 0),
        r"gather: the indices must be integers, found TensorType\(dtype=float32",
    ),
    "axis": (lambda x, _: ops.sum(x, 2), r"sum: the shape \[n, 5\] has no axis 2 \(axes: -2 to 1\)"),
    "index by float": (lambda x, y: x[y], "slice_tensor: a tensor of indices must hold integers"),
    "nothing": (lambda _x, _y: ops.concat([]), "concat: takes at least one tensor"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_names_the_operation_both_shapes_and_the_users_line(case: str) -> None:
    compute, message = REFUSED[case]
    with given(("float32", ["n", 5]), ("float32", [4, 3])) as graph:
        before = len(graph.nodes)
        with refuses(GraphError) as caught:
            compute(*graph.inputs)
        assert len(graph.nodes) == before
    file, _, line = str(caught.value.location).rpartition(":")
    assert file == __file__
    assert str(caught.value).endswith(f"(at {file}:{line})")
    assert caught.value.op == message.partition(":")[0]


def test_the_line_of_a_refusal_is_that_of_the_innermost_user_code() -> None:
    def layer(x: TensorValue, w: Weight) -> TensorValue:
        return x @ w.T

    with given(("float32", ["n", 5])) as graph, refuses(ValueError, "graph.invalid") as caught:
        layer(graph.inputs[0], Weight("w", "float32", [3, 4], CPU))
    assert f"{__file__}:{layer.__code__.co_firstlineno + 1})" in str(caught.value)
    assert sys._getframe().f_code.co_filename == __file__


@pytest.mark.parametrize(
    ("left", "right", "compute"),
    [
        (["n", 5], ["m", 5], operator.add),
        (["n"], [3], operator.add),
        ([3], ["n"], operator.add),
        (["a", "n"], ["m", "b"], operator.matmul),
    ],
)
def test_the_message_for_symbols_says_which_rebind_helps(left: Any, right: Any, compute: Callable[..., Any]) -> None:
    with given(("float32", left), ("float32", right)) as graph:
        x, y = graph.inputs
        with refuses(ValueError, "graph.invalid") as caught:
            compute(x, y)
        names = {"'n'": "n", "'b'": "b"}
        written = str(caught.value).split(".rebind([")[1].split("])")[0].split(", ")
        target = [names.get(part, part) if "'" in part else int(part) for part in written]
        if "on the first" in str(caught.value):
            compute(x.rebind(target), y)
        else:
            compute(x, y.rebind(target))


def test_equal_symbols_and_ones_broadcast() -> None:
    with given(("float32", ["n", 1]), ("float32", ["n", "m"]), ("float32", [1])) as graph:
        x, y, one = graph.inputs
        assert (x + y).shape == (y + one).shape == ["n", "m"]
        assert ((x[1:] + y[1:]) * one).shape == [Dim("n") - 1, "m"]


def test_gelu_knows_its_approximations() -> None:
    with given(("float32", [2])) as graph:
        assert ops.gelu(graph.inputs[0], "tanh").node.attributes == {"approximate": "tanh"}
        with refuses(ValueError, "graph.invalid"):
            ops.gelu(graph.inputs[0], approximate="erf")


def test_a_cast_to_the_same_dtype_is_the_value_itself() -> None:
    with given(("float32", [2])) as graph:
        x = graph.inputs[0]
        assert x.cast("float32") is x
        assert ops.cast(x, DType.int8).type == TensorType("int8", [2], CPU)


def test_printing_is_recorded_and_gives_nothing() -> None:
    with given(("float32", [2])) as graph:
        ops.print(graph.inputs[0], "x")
        graph.inputs[0].print()
        ops.print("a text")
    assert [node.attributes["label"] for node in graph.nodes if node.op == "print"] == ["x", "debug_tensor", "a text"]


@pytest.mark.parametrize("value", ["text", None, [1.0], object()])
def test_what_is_no_tensor_is_a_type_error(value: Any) -> None:
    with given(("float32", [2])) as graph:
        for compute in (
            lambda: ops.add(graph.inputs[0], value),
            lambda: ops.exp(value),
            lambda: ops.matmul(value, value),
        ):
            with refuses(TypeError):
                compute()
        with pytest.raises(TypeError):
            _ = graph.inputs[0] + value
    with given(), refuses(TypeError):
        ops.add(1, 2)
