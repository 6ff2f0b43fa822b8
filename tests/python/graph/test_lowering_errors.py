"""Errors of ONNX Runtime, at load and at run time, name the operation and the user's line."""

from __future__ import annotations

import numpy as np
import pytest

from graphs import CPU, recorded
from max_weights.engine import InferenceSession
from max_weights.errors import UnsupportedError
from max_weights.graph import Graph, GraphError, TensorType, TensorValue, Weight, ops
from refusals import refuses

X = TensorType("float32", ["n", 4], CPU)
PLACES = TensorType("int64", ["k"], CPU)


def line(of: str) -> str:
    """`file:line` of the only line of this file that ends with a comment."""
    with open(__file__) as file:
        numbers = [number for number, text in enumerate(file, 1) if text.rstrip().endswith(f"# {of}")]
    return f"{__file__}:{numbers[0]}"


@pytest.mark.parametrize("memory", ["shared", "fast"])
def test_a_run_that_fails_in_a_subgraph_of_a_subgraph(memory: str) -> None:
    with Graph("g", input_types=[X, PLACES]) as graph:
        x, places = graph.inputs
        inner = graph.add_subgraph("inner", lambda x, i: ops.gather(x, i, 0), [X, PLACES])  # here
        outer = graph.add_subgraph("outer", lambda x, i: ops.call(inner, x, i)[0], [X, PLACES])
        graph.output(*ops.call(outer, x, places))
    model = InferenceSession().load(graph, memory=memory)
    given = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert model(given, np.array([2, -3]))[0].to_numpy().tolist() == given[[2, 0]].tolist()
    with pytest.raises(GraphError, match=r"gather of graph 'g'.* must be within the inclusive range") as caught:
        model(given, np.array([7]))
    assert (caught.value.op, caught.value.location) == ("gather", line("here"))
    assert line("here") in str(caught.value)


def test_a_run_without_memory_is_a_memory_error(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph("g", lambda x: x + 1, [TensorType("float32", [2], CPU)])
    model = InferenceSession().load(graph)

    def run(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("max_weights.engine._runs.Runs.run", run)
    with pytest.raises(MemoryError):
        model.execute(np.ones(2, np.float32))


def test_an_operation_that_is_refused_when_it_is_loaded() -> None:
    with Graph("g", input_types=[X]) as graph:
        node = graph.record("softmax", graph.inputs, [X], {"axis": 9})  # refused
        graph.output(node.outputs[0])
    with pytest.raises(GraphError, match=r"softmax of graph 'g'.*'axis' must be in") as caught:
        InferenceSession().load(graph)
    assert caught.value.location == line("refused")


def test_an_operation_that_nothing_lowers() -> None:
    with Graph("g", input_types=[X]) as graph:
        node = graph.record("mystery", graph.inputs, [X], {})  # unknown
        graph.output(node.outputs[0])
    with refuses(UnsupportedError, "unsupported.operation") as caught:
        InferenceSession().load(graph)
    assert line("unknown") in str(caught.value)


def test_a_dtype_that_onnx_has_not() -> None:
    graph = recorded(lambda x: x.cast("float8_e8m0fnu"), np.ones(2, np.float32))
    with refuses(UnsupportedError, "unsupported.dtype"):
        InferenceSession().load(graph)


def test_a_weight_may_have_any_name() -> None:
    """Those of the model's own inputs and outputs too."""
    names = ("input0", "output0", "a.b/c d", "val_0", "val_1", "node_Add_0")
    weights = {name: np.full(4, number, np.float32) for number, name in enumerate(names)}
    with Graph("g", input_types=[X]) as graph:
        total = graph.inputs[0]
        for name in names:
            total = total + Weight(name, "float32", [4], CPU)
        graph.output(total)
    for memory in ("shared", "fast"):
        model = InferenceSession().load(graph, weights_registry=weights, memory=memory)
        assert model(np.zeros((1, 4), np.float32))[0].to_numpy().tolist() == [[15.0] * 4]


def test_a_subgraph_may_have_any_name() -> None:
    def nested(x: TensorValue) -> TensorValue:
        inner = Graph.current.add_subgraph("twice", lambda x: x * 2, [X])
        return ops.call(inner, x)[0] + 1

    with Graph("g", input_types=[X]) as graph:
        (value,) = graph.inputs
        for name in ("twice", "twice.1", "a b", ""):
            (value,) = ops.call(graph.add_subgraph(name, nested, [X]), value)
        graph.output(value)
    assert InferenceSession().load(graph)(np.zeros((1, 4), np.float32))[0].to_numpy().tolist() == [[15.0] * 4]


def test_a_graph_without_outputs_is_refused() -> None:
    graph = Graph("g", lambda _x: None, [X])
    with refuses(GraphError, "graph.invalid"):
        InferenceSession().load(graph)


def test_prints_are_of_the_values(capsys: pytest.CaptureFixture[str]) -> None:
    def function(x: TensorValue) -> TensorValue:
        ops.print("begins")
        ops.print(x * 2, "twice")
        (x.cast("bfloat16") + 1).print("narrow")
        return x

    InferenceSession().load(recorded(function, np.ones(2, np.float32))).execute(np.array([1, 2], np.float32))
    assert capsys.readouterr().out.splitlines() == ["begins", "twice = [2. 4.]", "narrow = [2 3]"]
