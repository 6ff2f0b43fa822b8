"""`TensorValue` and `TensorType`: attributes, operators, indexing."""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import operator
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from conftest import ROOT
from max_weights.dtype import DType
from max_weights.graph import (
    BufferType,
    DeviceRef,
    Dim,
    Graph,
    GraphError,
    Shape,
    TensorType,
    TensorValue,
    Type,
    Value,
    ops,
)
from refusals import refuses

CPU = DeviceRef.CPU()


def tensor(*shape: int | str, dtype: str = "float32") -> TensorType:
    return TensorType(dtype, shape, CPU)


class TestTensorType:
    def test_it_is_compared_by_all_three(self) -> None:
        kind = TensorType("float32", [2, "n"], "gpu:1")
        assert kind == TensorType(DType.float32, Shape([2, Dim("n")]), DeviceRef.GPU(1))
        assert len({kind, TensorType(DType.float32, (2, "n"), "gpu:1")}) == 1
        for other in (
            TensorType("float16", [2, "n"], "gpu:1"),
            TensorType("float32", [2, "m"], "gpu:1"),
            TensorType("float32", [2, "n"], "gpu:0"),
            "TensorType",
        ):
            assert kind != other

    def test_it_never_changes(self) -> None:
        kind = tensor(2, "n")
        kind.shape.append(3)
        assert (kind.shape, kind.rank) == ([2, "n"], 2)
        for change in (lambda: setattr(kind, "dtype", DType.int8), lambda: delattr(kind, "device")):
            with refuses(AttributeError):
                change()

    def test_repr_and_copies(self) -> None:
        kind = tensor(2, "n")
        assert repr(kind) == "TensorType(dtype=float32, shape=[Dim(2), Dim('n')], device=cpu:0)"
        for again in (copy.copy, copy.deepcopy, lambda kind: pickle.loads(pickle.dumps(kind))):
            assert again(kind) == kind
        assert isinstance(kind, Type)
        assert Type[Any] is not None

    def test_it_is_a_dataclass(self) -> None:
        kind = tensor(2, "n")
        assert [field.name for field in dataclasses.fields(kind)] == ["dtype", "shape", "device"]
        assert dataclasses.replace(kind, shape=[3]) == tensor(3)

    def test_it_counts_its_elements_and_casts(self) -> None:
        assert tensor(2, 3).num_elements() == 6
        assert tensor().num_elements() == 1
        with refuses(ValueError):
            tensor(2, "n").num_elements()
        assert tensor(2).cast("int8") == TensorType("int8", [2], CPU)
        assert tensor(2, "n").parameters == ["n"]

    def test_the_type_of_a_buffer_is_another_one(self) -> None:
        kind = tensor(2, "n")
        buffer = kind.as_buffer()
        assert isinstance(buffer, BufferType)
        assert isinstance(buffer, Type)
        assert not isinstance(buffer, TensorType)
        assert buffer != kind
        assert buffer.as_tensor() == kind
        assert (buffer.cast("int8").dtype, buffer.rank) == (DType.int8, 2)
        assert repr(buffer) == "BufferType(dtype=float32, shape=[Dim(2), Dim('n')], device=cpu:0)"
        assert Graph("g", input_types=[buffer]).input_types == [buffer]
        with refuses(TypeError):
            Graph("g", input_types=[3])  # type: ignore[list-item]

    @pytest.mark.parametrize("arguments", [("flaot32", [2], CPU), ("int8", [-1], CPU), ("int8", [2], "tpu")])
    def test_bad_parts_are_value_errors(self, arguments: Any) -> None:
        with refuses(ValueError):
            TensorType(*arguments)


def test_a_value_describes_itself() -> None:
    with Graph("g", input_types=[TensorType("bfloat16", ["n", 4], "gpu:1")]) as graph:
        (x,) = graph.inputs
        assert (x.dtype, x.shape, x.rank, x.device) == (DType.bfloat16, ["n", 4], 2, DeviceRef.GPU(1))
        assert type(x.shape) is Shape
        assert x.type == TensorType("bfloat16", ["n", 4], "gpu:1")
        assert x.tensor is x
        assert isinstance(x, Value)
        assert repr(x) == "TensorValue(dtype=bfloat16, shape=[Dim('n'), Dim(4)], device=gpu:1)"
        assert x.node.op == "input"


def test_a_value_is_made_from_values_dims_and_shapes() -> None:
    with Graph("g", input_types=[tensor("n", 4)]) as graph:
        x = graph.inputs[0]
        assert TensorValue(x) is x
        for dim in (Dim(3), Dim("n"), Dim("n") + 1):
            assert TensorValue(dim).type == tensor(dtype="int64")
        assert TensorValue(Dim(3)).node.attributes["value"] == 3
        assert TensorValue(Dim("n") + 1).node.attributes["dim"] == Dim("n") + 1
        assert TensorValue(x.shape).type == TensorValue(Shape([2, 3])).type == tensor(2, dtype="int64")
        assert TensorValue(x.shape).node.attributes["dims"] == ("n", 4)
        with refuses(TypeError):
            TensorValue(np.zeros(3))  # type: ignore[arg-type]
    with refuses(ValueError, "graph.absent"):
        TensorValue(Dim(3))


ARITHMETIC = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "pow": operator.pow,
}
COMPARISON = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}
MIRRORED = {"less": "greater", "greater": "less", "less_equal": "greater_equal", "greater_equal": "less_equal"}


@pytest.mark.parametrize("op", [*ARITHMETIC, *COMPARISON])
@pytest.mark.parametrize(
    ("other", "shape"),
    [
        (2, ["n", 4]),
        (2.5, ["n", 4]),
        (np.float64(2), ["n", 4]),
        (np.ones(4, np.float32), ["n", 4]),
        (np.ones((3, 1, 4), np.float32), [3, "n", 4]),
    ],
)
def test_operators_take_numbers_and_arrays_on_both_sides(op: str, other: Any, shape: list[int | str]) -> None:
    compute = {**ARITHMETIC, **COMPARISON}[op]
    dtype = DType.bool if op in COMPARISON else DType.float32
    with Graph("g", input_types=[tensor("n", 4)]) as graph:
        x = graph.inputs[0]
        left, right = compute(x, other), compute(other, x)
    assert (left.shape, left.dtype) == (right.shape, right.dtype) == (shape, dtype)
    assert left.node.op == op
    assert left.node.inputs[0] is x
    assert right.node.op == MIRRORED.get(op, op)
    # Python mirrors comparisons; arithmetic keeps its order.
    assert right.node.inputs[0 if op in COMPARISON else 1] is x


def test_operators_of_one_value() -> None:
    with Graph("g", input_types=[tensor("n"), tensor("n", dtype="bool")]) as graph:
        x, flag = graph.inputs
        assert [(-x).node.op, abs(x).node.op, (~flag).node.op] == ["neg", "abs", "logical_not"]
        assert [(flag & flag).node.op, (flag | flag).node.op, (flag ^ flag).node.op] == [
            "logical_and",
            "logical_or",
            "logical_xor",
        ]


def test_products_with_arrays_on_both_sides() -> None:
    with Graph("g", input_types=[tensor("n", 4)]) as graph:
        x = graph.inputs[0]
        assert (x @ np.ones((4, 7), np.float32)).shape == ["n", 7]
        assert (np.ones((5, 4), np.float32) @ x.T).shape == [5, "n"]


@pytest.mark.parametrize("dtype", ["int64", "float32", "bfloat16"])
def test_dims_are_numbers_in_arithmetic(dtype: str) -> None:
    with Graph("g", input_types=[TensorType(dtype, ["n"], "gpu:1")]) as graph:
        x = graph.inputs[0]
        assert (x + Dim("n")).type == (Dim("n") * 2 - x).type == (x * x.shape[0]).type == (x * Dim(3)).type == x.type
        assert (x + Dim(3)).node.inputs[1].node.attributes["value"] == 3
        assert ops.mul(Dim("n"), 2).type == ops.add(Dim("n"), Dim(1)).type == tensor(dtype="int64")
    with Graph("g", input_types=[tensor("n", dtype="bool"), tensor("n", dtype="int8")]) as graph:
        with refuses(ValueError, "graph.invalid"):
            ops.equal(graph.inputs[0], Dim("n"))
        with refuses(ValueError, "graph.invalid"):
            _ = graph.inputs[1] + Dim(300)


@pytest.mark.parametrize(
    "use",
    [bool, iter, len, list, lambda x: 3 in x, lambda x: x if x > 0 else -x],
    ids=["bool", "iter", "len", "list", "in", "if"],
)
def test_what_needs_elements_is_a_type_error_that_explains(use: Callable[[Any], object]) -> None:
    with Graph("g", input_types=[tensor(3)]) as graph, refuses(TypeError):
        use(graph.inputs[0])


def test_values_are_hashed_by_identity() -> None:
    with Graph("g", input_types=[tensor(3), tensor(3)]) as graph:
        x, y = graph.inputs
        assert {x: 1, y: 2}[x] == 1
        assert x in [x, y]


@pytest.mark.parametrize("other", [None, "text", [1.0, 2.0], object()])
def test_comparing_with_what_is_no_tensor_is_python_s_own(other: object) -> None:
    with Graph("g", input_types=[tensor(3)]) as graph:
        assert (graph.inputs[0] == other) is False
        assert (graph.inputs[0] != other) is True
        with pytest.raises(TypeError):
            _ = graph.inputs[0] < other


class TestIndexing:
    def test_static_and_symbolic_sizes(self) -> None:
        n = Dim("n")
        with Graph("g", input_types=[tensor("n", 6, 4)]) as graph:
            x = graph.inputs[0]
            for result, shape in (
                (x[0], [6, 4]),
                (x[-1, 2], [4]),
                (x[1:], [n - 1, 6, 4]),
                (x[:-2], [n - 2, 6, 4]),
                (x[-3:], [3, 6, 4]),
                (x[:3], [3, 6, 4]),
                (x[2:-1], [n - 3, 6, 4]),
                (x[::2], [(n + 1) // 2, 6, 4]),
                (x[::-1], [n, 6, 4]),
                (x[..., None, 1:3], ["n", 6, 1, 2]),
                (x[None], [1, "n", 6, 4]),
                (x[:, ::-2, 3], ["n", 3]),
                (x[:, Dim(2) :, np.int64(1)], ["n", 4]),
                (x[: Dim("m")], ["m", 6, 4]),
                (x[:, "k":], ["n", 6 - Dim("k"), 4]),
                (x[(slice(7, 2, -1), "m"), ...], ["m", 6, 4]),
                (x[:, 6:], ["n", 0, 4]),
                (x[:, -6:-6], ["n", 0, 4]),
                (x[:, 4:-7:-1], ["n", 5, 4]),
                (ops.slice_tensor(x, [slice(0, 2), 1]), [2, 4]),
            ):
                assert result.shape == shape

    def test_what_a_slice_needs_is_kept_with_it(self) -> None:
        n = Dim("n")
        with Graph("g", input_types=[tensor("n", 6)]) as graph:
            x = graph.inputs[0]
            assert x[1:].node.attributes["minimums"] == ((n, Dim(1)),)
            assert x[2:-3].node.attributes["minimums"] == ((n, Dim(5)),)
            assert x[:, 2:-3].node.attributes["minimums"] == ()
            assert x[-2].node.attributes["minimums"] == ((n, Dim(2)),)
            assert x[:, : Dim("m")].node.attributes["minimums"] == ((Dim(6), Dim("m")),)

    def test_a_tensor_of_indices_comes_in_the_place_of_its_axis(self) -> None:
        with Graph("g", input_types=[tensor("n", 6, 4), tensor("k", 2, dtype="int64")]) as graph:
            x, positions = graph.inputs
            assert x[positions].shape == ["k", 2, 6, 4]
            assert x[:, positions].shape == ["n", "k", 2, 4]
            assert x[..., 1:3, positions].shape == ["n", 2, "k", 2]
            assert x[:, np.array([0, 2, 4])].shape == ["n", 3, 4]
            for index in ((positions, positions), (0, positions), (positions, Ellipsis, 0)):
                with refuses(ValueError, "graph.invalid"):
                    _ = x[index]

    def test_a_tensor_without_an_axis_is_an_index_like_an_int(self) -> None:
        with Graph("g", input_types=[tensor("n", 6, 4), tensor(dtype="int32"), tensor()]) as graph:
            x, at, fraction = graph.inputs
            for result, shape in (
                (x[at], [6, 4]),
                (x[at, 0], [4]),
                (x[0, at, 1:3], [2]),
                (x[at, ..., at], [6]),
                (x[None, at, :, at], [1, 6]),
                (x[at, at, at], []),
                (x[at, (slice(0, at), "m")], ["m", 4]),
            ):
                assert result.shape == shape
            gathers = [node for node in graph.nodes if node.op == "gather"]
            assert [node.attributes["axis"] for node in gathers[-2:]] == [0, 0]
            with refuses(ValueError, "graph.invalid"):
                _ = x[fraction]

    def test_tensors_bound_slices_whose_size_is_stated(self) -> None:
        types = [tensor("n", 6), tensor(dtype="int64"), tensor(1, dtype="int32"), tensor(), tensor(2, dtype="int64")]
        with Graph("g", input_types=types) as graph:
            x, start, stop, fraction, several = graph.inputs
            sliced = x[(slice(start, None), 3), ...]
            assert sliced.shape == [3, 6]
            first, last = (value.node for value in sliced.node.inputs[1:])
            assert (sliced.node.op, dict(sliced.node.attributes)) == ("slice_between", {"axis": 0, "step": 1})
            assert (first.op, last.attributes["value"]) == ("input", 2**63 - 1)
            backward = x[0, (slice(None, stop, -2), "m")]
            assert backward.shape == ["m"]
            assert backward.node.attributes["step"] == -2
            assert backward.node.inputs[1].node.attributes["value"] == 2**63 - 1
            assert [value.type for value in backward.node.inputs[1:]] == [tensor(dtype="int64")] * 2
            assert x[(slice(Dim("k"), start), "m"), (slice(1, stop), 2)].shape == ["m", 2]
            with refuses(ValueError, "graph.invalid"):
                _ = x[start:]
            for bound in (fraction, several):
                with refuses(ValueError, "graph.invalid"):
                    _ = x[(slice(bound, None), 3), ...]

    @pytest.mark.parametrize("bounds", [(0, 7), (7, None), (-7, None), (None, -7), (None, 1024), (7, 0, -1)])
    def test_a_slice_out_of_range_is_an_index_error_as_in_max(self, bounds: Any) -> None:
        with Graph("g", input_types=[tensor("n", 6)]) as graph:
            x = graph.inputs[0]
            with refuses(IndexError, "graph.index") as caught:
                _ = x[:, slice(*bounds)]
            assert isinstance(caught.value, GraphError)
            assert x[:, (slice(*bounds), "m")].shape == ["n", "m"], "a stated size takes it as Python does"

    @pytest.mark.parametrize("axis", [0, 1])
    @pytest.mark.parametrize("bounds", [(2, 1), (-1, -2), (3, 0)])
    def test_a_slice_that_ends_before_it_begins_is_refused_as_in_max(self, bounds: Any, axis: int) -> None:
        with Graph("g", input_types=[tensor("n", 4)]) as graph:
            x = graph.inputs[0]
            with refuses(ValueError, "graph.invalid") as caught:
                _ = x[(slice(None),) * axis + (slice(*bounds),)]
            assert isinstance(caught.value, GraphError)
            with refuses(ValueError, "graph.invalid"):
                _ = x[:, slice(*bounds[::-1], -1)]

    @pytest.mark.parametrize("index", [(0, 6), (0, -7), (0, 0, 0, 0), (..., ...), (slice(None),) * 4])
    def test_an_index_out_of_range_is_an_index_error(self, index: Any) -> None:
        with Graph("g", input_types=[tensor("n", 6, 4)]) as graph, pytest.raises(IndexError, match=__file__):
            _ = graph.inputs[0][index]

    def test_a_list_of_ints_is_not_guessed_at(self) -> None:
        with Graph("g", input_types=[tensor("n", 6)]) as graph:
            with refuses(TypeError):
                _ = graph.inputs[0][[0, 1]]
            assert ops.slice_tensor(graph.inputs[0], [0, 1]).shape == []

    @pytest.mark.parametrize("index", [1.5, True, [0, 1], slice(0.5, None), (slice(None), (1, 2, 3)), "x"])
    def test_what_is_no_index_is_a_type_error(self, index: Any) -> None:
        with Graph("g", input_types=[tensor("n", 6, 4)]) as graph, refuses(TypeError):
            _ = graph.inputs[0][index]

    def test_sizes_that_cannot_be_known_ask_to_be_stated(self) -> None:
        with Graph("g", input_types=[tensor("n", 6)]) as graph:
            x = graph.inputs[0]
            for index in (slice(-3, 5), slice(5, None, -1)):
                with refuses(ValueError, "graph.invalid"):
                    _ = x[index]
                assert x[(index, 2), ...].shape == [2, 6]
            with refuses(ValueError, "graph.invalid"):
                _ = x[:, (slice(0, 3), 4)]
            with refuses(ValueError, "graph.invalid"):
                _ = x[::0]


def test_the_methods_are_those_of_ops() -> None:
    with Graph("g", input_types=[tensor("b", "s", 12)]) as graph:
        x = graph.inputs[0]
        heads = x.reshape(["b", "s", 3, -1]).transpose(1, 2)
        assert heads.shape == ["b", 3, "s", 4]
        assert heads.T.shape == ["b", 3, 4, "s"]
        assert heads.permute([3, 0, 1, 2]).shape == [4, "b", 3, "s"]
        assert heads.transpose(1, 2).reshape((-1, 12)).shape == [Dim("b") * Dim("s"), 12]
        assert heads.flatten(1, 2).shape == ["b", 3 * Dim("s"), 4]
        assert x.broadcast_to([5, "b", "s", 12]).shape == [5, "b", "s", 12]
        assert x.cast(DType.float16).dtype is DType.float16
        assert x.rebind(["rows", 7, 12]).shape == ["rows", 7, 12]
        assert ops.squeeze(ops.unsqueeze(x, 1), 1).type == x.type


class TestDocument002:
    """The examples of the document on Weight; its second line of imports lacks DeviceRef, which is added."""

    def test_dtype(self) -> None:
        matrix = np.array([[1, 2], [3, 4]], dtype=np.float32)

        # Create a Graph context to work with tensors
        with Graph("dtype_demo"):
            # Create a constant tensor from the matrix
            tensor = ops.constant(matrix, dtype=DType.float32, device=DeviceRef.CPU())

            # Access tensor data type
            assert f"Data type: {tensor.dtype}" == "Data type: DType.float32"

    def test_shape(self) -> None:
        # Create a 2x2 matrix
        matrix = np.array([[1, 2], [3, 4]], dtype=np.float32)

        # Create a Graph context to work with tensors
        with Graph("shape_demo"):
            # Create a constant tensor from the matrix
            tensor = ops.constant(matrix, dtype=DType.float32, device=DeviceRef.CPU())

            # Access tensor shape
            assert f"Shape: {tensor.shape}" == "Shape: [Dim(2), Dim(2)]"


def declared() -> dict[str, ast.FunctionDef | None]:
    """The methods and operators that the class declares and another file binds; operators have no definition."""
    tree = ast.parse((ROOT / "python/max_weights/graph/_value.py").read_text())
    (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "TensorValue")
    (checked,) = (node.body for node in body if isinstance(node, ast.If))
    methods = {node.name: node for node in checked if isinstance(node, ast.FunctionDef)}
    annotated = [
        node.target.id for node in body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    return methods | {name: None for name in annotated if name.startswith("__")}


@pytest.mark.parametrize("name", declared())
def test_what_a_value_declares_is_bound_with_the_same_parameters(name: str) -> None:
    bound, node = getattr(TensorValue, name), declared()[name]
    own = [(one.name, one.default) for one in inspect.signature(bound).parameters.values()]
    if node is None:
        assert [name for name, _ in own] == ["self", "other"]
        return
    defaults = [ast.literal_eval(default) for default in node.args.defaults]
    names = [argument.arg for argument in node.args.args]
    given = [inspect.Parameter.empty] * (len(names) - len(defaults)) + defaults
    start = 0 if names[0] == "cls" else 1  # a function of `ops` names its first operand in its own way
    assert own[start:] == list(zip(names, given, strict=True))[1:]
