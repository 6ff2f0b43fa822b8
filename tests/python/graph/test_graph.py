"""`Graph`: recording, values of other graphs, and the innermost graph."""

import asyncio
import copy
import re
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import max_weights.graph as graph_package
from max_weights import Buffer
from max_weights.driver import DLPackArray
from max_weights.dtype import DType
from max_weights.errors import UnsupportedError, WeightNotFoundError
from max_weights.graph import DeviceRef, Dim, Graph, TensorType, TensorValue, Weight, ops
from max_weights.graph.weights import Weights
from refusals import refuses

F32 = DType.float32
CPU = DeviceRef.CPU()


def vector(*shape: int | str) -> TensorType:
    return TensorType(F32, shape, CPU)


def test_a_graph_records_operations_with_their_types() -> None:
    with Graph("double", input_types=[vector("n", 4)]) as graph:
        (x,) = graph.inputs
        graph.output(x + x)
    assert [node.op for node in graph.nodes] == ["input", "add"]
    assert graph.input_types == graph.output_types == [vector("n", 4)]
    assert all(operand is x for operand in graph.nodes[1].inputs)
    assert all(node.location.startswith(__file__) for node in graph.nodes)


def test_a_function_makes_the_graph() -> None:
    def forward(x: TensorValue, y: TensorValue, scale: float, *, shift: float) -> TensorValue:
        return x * scale + y - shift

    graph = Graph("line", forward, [vector("n"), vector("n")], None, 2.0, shift=1.0)
    assert graph.output_types == [vector("n")]
    assert Graph("pair", lambda x: (x, x * 2), [vector(3)]).output_types == [vector(3)] * 2
    assert Graph("nothing", lambda _x: None, [vector(3)]).output_types == []
    assert Graph("keyword", forward=lambda x: x.T, input_types=[vector(3, 4)]).output_types == [vector(4, 3)]


def test_the_innermost_graph_is_the_current_one() -> None:
    with refuses(ValueError, "graph.absent"):
        _ = Graph.current
    outer, inner = Graph("outer"), Graph("inner")
    with outer:
        assert Graph.current is outer
        with inner:
            assert Graph.current is inner
            with outer:
                assert Graph.current is outer
        assert Graph.current is outer
    with refuses(ValueError, "graph.absent"):
        _ = Graph.current


def test_an_error_inside_leaves_the_graph() -> None:
    with pytest.raises(KeyError), Graph("broken"):
        raise KeyError
    with refuses(ValueError, "graph.absent"):
        _ = Graph.current


def test_leaving_in_the_wrong_order_is_an_error() -> None:
    first, second = Graph("first"), Graph("second")
    with first, refuses(RuntimeError):
        second.__exit__(None, None, None)


def test_threads_have_a_graph_of_their_own() -> None:
    found: dict[str, list[str]] = {}
    barrier = threading.Barrier(4)

    def build(name: str) -> None:
        with pytest.raises(ValueError, match="no parent graph"):
            _ = Graph.current
        with Graph(name, input_types=[vector(3)]) as graph:
            x = graph.inputs[0]
            for _ in range(20):
                barrier.wait(10)
                assert Graph.current is graph
                x = x + 1.0
            graph.output(x)
        found[name] = [node.op for node in graph.nodes]

    with Graph("main"):
        threads = [threading.Thread(target=build, args=(f"thread {i}",)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert len(found) == 4
    assert all(ops == ["input", *["constant", "add"] * 20] for ops in found.values())


def test_tasks_have_a_graph_of_their_own() -> None:
    async def build(name: str) -> int:
        with Graph(name, input_types=[vector(3)]) as graph:
            for _ in range(10):
                await asyncio.sleep(0)
                assert Graph.current is graph
                _ = graph.inputs[0] * 2.0
        return len(graph.nodes)

    async def several() -> list[int]:
        return await asyncio.gather(*(build(f"task {i}") for i in range(3)))

    assert asyncio.run(several()) == [21, 21, 21]


def test_one_weight_joins_once_from_many_threads() -> None:
    graph, weight = Graph("shared"), Weight("w", F32, [2], CPU)
    barrier = threading.Barrier(8)
    values: list[TensorValue] = []

    def join() -> None:
        barrier.wait(10)
        values.append(graph.add_weight(weight))

    threads = [threading.Thread(target=join) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(values) == 8
    assert len({id(value) for value in values}) == 1
    assert len(graph.nodes) == 1


def test_a_value_of_another_graph_is_refused() -> None:
    outer = Graph("outer", input_types=[vector(3)])
    with Graph("inner", input_types=[vector(3)]) as inner:
        with refuses(ValueError, "graph.invalid"):
            _ = inner.inputs[0] + outer.inputs[0]
        with refuses(ValueError, "graph.invalid"):
            inner.output(outer.inputs[0])


def test_computing_outside_of_a_graph_is_refused() -> None:
    graph = Graph("closed", input_types=[vector(3)])
    weight = Weight("w", F32, [3], CPU)
    for kind in (ValueError, LookupError):
        with refuses(kind, "graph.absent"):
            _ = graph.inputs[0] + 1.0
        with refuses(kind, "graph.absent"):
            _ = Graph.current
        with refuses(kind, "graph.absent"):
            _ = weight + 1.0


def test_outputs_come_last_and_once() -> None:
    with Graph("finished", input_types=[vector(3)]) as graph:
        with refuses(ValueError, "graph.invalid"):
            _ = graph.output_types
        graph.output(graph.inputs[0])
        with refuses(ValueError, "graph.invalid"):
            graph.output(graph.inputs[0])
        with refuses(ValueError, "graph.invalid"):
            _ = -graph.inputs[0]


def test_a_weight_can_be_an_output() -> None:
    with Graph("weights only") as graph:
        graph.output(Weight("w", F32, [2, 3], CPU))
    assert graph.output_types == [vector(2, 3)]


@pytest.mark.parametrize(
    "arguments", [(3,), ("g", None, ["float32"]), ("g", None, (), 1)], ids=["name", "type", "arguments of no function"]
)
def test_wrong_arguments_are_type_errors(arguments: tuple[object, ...]) -> None:
    with pytest.raises(TypeError):
        Graph(*arguments)  # type: ignore[arg-type]


def test_output_takes_values_alone() -> None:
    with Graph("g") as graph, refuses(TypeError):
        graph.output(1.0)  # type: ignore[arg-type]


def test_subgraphs_have_names_of_their_own() -> None:
    graph = Graph("model")
    block = graph.add_subgraph("block", lambda x: x * 2.0, [vector("n")])
    assert graph.subgraphs == {"block": block}
    assert block.output_types == [vector("n")]
    with refuses(ValueError, "graph.invalid"):
        graph.add_subgraph("block")


def test_the_listing_shows_operations_types_and_lines() -> None:
    with Graph("mlp", input_types=[vector("n", 5)]) as graph:
        x = graph.inputs[0]
        up = Weight("up.weight", F32, [10, 5], CPU)
        hidden = ops.silu(x @ up.T)[1:]
        hidden.print("hidden")
        graph.output(hidden)
    lines = repr(graph).splitlines()
    shown = [re.sub(r"\s+", " ", line).strip() for line in lines]
    assert shown[0] == "Graph 'mlp'"
    assert shown[1].startswith("%0 = input(index=0) float32 [n, 5] cpu:0 test_graph.py:")
    assert shown[2].startswith("%1 = weight('up.weight') float32 [10, 5] cpu:0 test_graph.py:")
    assert shown[4].startswith("%3 = matmul(%0, %2) float32 [n, 10] cpu:0 test_graph.py:")
    assert shown[6].startswith("%5 = slice_tensor(%4, [1:, :], n >= 1) float32 [n - 1, 10] cpu:0 test_graph.py:")
    assert shown[7].startswith("print(%5, label='hidden') test_graph.py:")
    assert shown[8] == "output(%5)"
    assert max(map(len, lines)) < 120


def test_building_a_graph_without_arrays_leaves_numpy_out() -> None:
    script = """
import sys
from max_weights.graph import DeviceRef, Dim, Graph, TensorType, Weight, ops
with Graph("g", input_types=[TensorType("float32", ["n", 4], DeviceRef.CPU())]) as graph:
    x = ops.softmax(graph.inputs[0] @ Weight("w", "float32", [4, 4], "cpu") + 1)[:, :2].reshape((-1,))
    graph.output(ops.where(x > 0.5, x, 0), ops.range(0, Dim("n")))
repr(graph)
print("numpy" in sys.modules)"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


class TestWeightsOfAGraph:
    """Document 001: a `Weights` whose `allocate` makes new weights."""

    def test_the_example(self) -> None:
        graph = Graph("my_model")
        weights = graph.weights()

        # Allocate weights with hierarchical naming
        attn_weight = weights.transformer.layers[0].attention.weight.allocate(dtype=DType.float32, shape=(768, 768))
        # Creates weight named "transformer.layers.0.attention.weight"
        assert attn_weight.name == "transformer.layers.0.attention.weight"

        # Check if a weight exists before allocating
        assert not weights.transformer.layers[0].mlp.weight.exists()
        if weights.transformer.layers[0].mlp.weight.exists():
            weights.transformer.layers[0].mlp.weight.allocate(dtype=DType.float16, shape=(768, 3072))
        assert list(weights.allocated_weights) == ["transformer.layers.0.attention.weight"]

    def test_the_example_of_allocate(self) -> None:
        graph = Graph("my_model")
        weights = graph.weights()
        # Allocate a weight with specific configuration
        weight = weights.model.layers[0].weight.allocate(
            dtype=DType.float16,  # Convert to half precision
            shape=(768, 768),
            device=DeviceRef.GPU(0),  # Place on first GPU
        )

        # Add to graph
        with graph:
            weight_tensor = graph.add_weight(weight)
        assert weight_tensor.type == TensorType(DType.float16, [768, 768], DeviceRef.GPU(0))

    def test_it_is_a_tree_of_weights(self) -> None:
        weights = Graph("g").weights()
        assert isinstance(weights, Weights)
        assert (weights.name, weights.model.layers[0].name, weights["a.b"].c.name) == ("", "model.layers.0", "a.b.c")
        assert weights["items"].weight.name == "items.weight"

    def test_items_are_the_allocated_weights_at_and_below(self) -> None:
        weights = Graph("g").weights()
        for layer in (1, 10, 0):
            weights.layers[layer].weight.allocate(F32, [2])
        weights.layers.allocate(F32, [1])
        weights.head.allocate(F32, [Dim("n")])
        assert [name for name, _ in weights.layers.items()] == [
            "layers.1.weight",
            "layers.10.weight",
            "layers.0.weight",
            "layers",
        ]
        assert [(name, node.name) for name, node in weights.layers[1].items()] == [("layers.1.weight",) * 2]
        assert len(weights) == 5
        assert "layers.10.weight" in weights
        assert "layers.10" not in weights
        assert {"head", "layers"} <= set(dir(weights))
        assert [child.name for child in weights.children()] == ["layers", "head"]
        assert [child.name for child in weights.layers.children()] == ["layers.1", "layers.10", "layers.0"]
        assert weights.nowhere.children() == []
        assert weights.nowhere
        with pytest.raises(TypeError):
            iter(weights)  # type: ignore[call-overload]

    def test_there_is_no_data(self) -> None:
        weights = Graph("g").weights()
        weights.w.allocate(F32, [2])
        for node in (weights.w, weights.other):
            with refuses(KeyError, "weight.no-data") as caught:
                node.data()
            assert isinstance(caught.value, WeightNotFoundError)

    def test_a_name_is_allocated_once(self) -> None:
        weights = Graph("g").weights()
        first = weights.w.allocate(F32, [2])
        with refuses(ValueError, "graph.invalid"):
            weights.w.allocate(F32, [2])
        assert weights.allocated_weights == {"w": first}

    def test_what_was_allocated_exports_the_value_that_it_got(self) -> None:
        weights = Graph("g").weights()
        weight = weights.w.allocate(F32, [2])
        assert isinstance(weights.allocated_weights["w"], DLPackArray)
        with refuses(ValueError):
            np.from_dlpack(weights.allocated_weights["w"])
        for value in (np.ones(2, np.float32), Buffer.from_numpy(np.ones(2, np.float32))):
            weight.load(value)
            assert np.from_dlpack(weights.allocated_weights["w"]).tolist() == [1, 1]

    def test_dtype_and_shape_are_needed_and_nothing_is_kept_without(self) -> None:
        weights = Graph("g").weights()
        with refuses(ValueError, "graph.invalid"):
            weights.w.allocate()
        with refuses(ValueError, "graph.invalid"):
            weights.w.allocate(F32)
        with refuses(ValueError):
            weights.w.allocate(F32, [-1])
        assert not weights.w.exists()

    def test_probes_of_notebooks_find_nothing(self) -> None:
        weights = Graph("g").weights()
        for probe in ("__array_interface__", "_repr_html_", "_ipython_canary_method_should_not_exist_"):
            assert not hasattr(weights, probe)
        for key in (1.5, None, True):
            with refuses(TypeError):
                weights[key]  # type: ignore[index]
        weights["_hidden"].weight.allocate(F32, [2])
        assert weights._hidden.weight.exists(), "a child whose name begins with an underscore"
        assert copy.copy(weights) is copy.deepcopy(weights) is weights

    def test_the_repr_lists_what_was_allocated(self) -> None:
        weights = Graph("g").weights()
        weights.layers[0].w.allocate(F32, [2, "n"])
        weights.layers[10].w.allocate("int8", [], device="gpu:1")
        assert repr(weights).splitlines() == [
            "DeclaredWeights(the root of graph 'g', 2 allocated)",
            "  layers.0.w  float32 [2, n] cpu:0",
            "  layers.10.w  int8 [] gpu:1",
        ]
        assert repr(weights.layers[1]) == "DeclaredWeights('layers.1' of graph 'g', 0 allocated)"
        for i in range(100):
            weights.many[i].allocate(F32, [2])
        assert repr(weights.many).splitlines()[-1] == "  and 60 more"


def test_a_declared_weight_is_no_array_and_has_no_last_child() -> None:
    with Graph("g") as graph:
        declared: Any = graph.weights().layers
    for take in (np.asarray, np.from_dlpack):
        with refuses(WeightNotFoundError, "weight.no-data"):
            take(declared.weight)
    assert not hasattr(declared, "__array_interface__")
    with refuses(IndexError):
        declared[-1]


def test_the_symbols_of_a_graph_are_found_once_for_each_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []
    parameters = TensorType.parameters.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(TensorType, "parameters", property(lambda kind: looked.append(kind) or parameters(kind)))

    def calls(count: int) -> int:
        looked.clear()
        with Graph("g", input_types=[TensorType("bool", ["n"], DeviceRef.CPU())]) as graph:
            (x,) = graph.inputs
            sub = graph.add_subgraph("sub", lambda x: ops.nonzero(x, "m"), [x.type])
            for _ in range(count):
                (found,) = ops.call(sub, x)
        assert found.shape == [f"m_{count - 1}", 1]
        assert graph.symbols == {"n", "m", *(f"m_{number}" for number in range(1, count))}
        graph.symbols.clear()
        assert "n" in graph.symbols
        return len(looked)

    assert calls(64) < 2.5 * calls(32)


def test_a_name_of_max_that_cannot_work_says_what_to_do_instead() -> None:
    sentence = r"Module of MAX is not in max_weights: .* Graph\.add_subgraph\. .* nn\.Module"
    with pytest.raises(ImportError, match=sentence):
        from max_weights.graph import Module  # noqa: F401
    with refuses(ImportError):
        from max_weights.graph import DevicePlacementPolicy  # noqa: F401
    with refuses(AttributeError):
        graph_package.no_such_name  # noqa: B018


def test_the_fourth_argument_is_a_path_and_none_is_read_yet() -> None:
    for make in (Graph, Graph("outer").add_subgraph):
        with refuses(UnsupportedError, "unsupported.operation"):
            make("main", None, (), "model.mlir")
        with pytest.raises(TypeError):
            make("main", lambda x, scale: x * scale, [vector("n")], 2.0)


def test_the_names_of_max_are_in_the_package_of_graphs() -> None:
    names = {"BufferType", "DeviceKind", "DimLike", "ShapeLike", "ShardingStrategy", "TensorValueLike"}
    assert names <= set(graph_package.__all__)
    assert all(hasattr(graph_package, name) for name in names)
    assert not hasattr(graph_package, "no_such_name")
