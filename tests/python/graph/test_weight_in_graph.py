"""`Weight` inside a graph: the first use adds it, and fixes it from then on."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from max_weights.dtype import DType
from max_weights.graph import DeviceRef, Graph, ShardingStrategy, TensorType, TensorValue, Weight, ops
from refusals import refuses

F32, CPU = DType.float32, DeviceRef.CPU()


@pytest.fixture
def weight() -> Weight:
    return Weight("w", F32, [6, 4], CPU)


def vector(*shape: int | str) -> TensorType:
    return TensorType(F32, shape, CPU)


def test_a_weight_is_a_value_and_says_its_type_outside_of_a_graph(weight: Weight) -> None:
    assert isinstance(weight, TensorValue)
    assert weight.type == vector(6, 4)
    assert weight.rank == 2
    assert weight.tensor is weight


USES: dict[str, Callable[[Any], Any]] = {
    "T": lambda w: w.T,
    "index": lambda w: w[0],
    "operator": lambda w: w + 1,
    "mirrored operator": lambda w: 1 - w,
    "product": lambda w: np.ones((2, 6), np.float32) @ w,
    "elements compared": lambda w: w == 0.0,
    "elements differ": lambda w: w != 0.0,
    "reshape": lambda w: w.reshape([-1]),
    "cast": lambda w: w.cast("float16"),
    "ops": lambda w: ops.softmax(w),
    "concat": lambda w: ops.concat([w, w]),
    "TensorValue": TensorValue,
    "node": lambda w: w.node,
    "print": lambda w: w.print(),
    "transfer": lambda w: w.to("gpu"),
    "output": lambda w: Graph.current.output(w),
}


@pytest.mark.parametrize("use", USES)
def test_it_joins_at_the_first_use_and_only_once(weight: Weight, use: str) -> None:
    with Graph("g") as graph:
        assert not graph.nodes
        USES[use](weight)
        joined = [node for node in graph.nodes if node.op == "weight"]
    assert len(joined) == 1
    assert joined[0].attributes["weight"] is weight
    assert graph.parameters == {"w": weight}


@pytest.mark.parametrize("use", sorted(set(USES) - {"elements compared", "elements differ", "output"}))
def test_outside_of_a_graph_every_use_is_refused(weight: Weight, use: str) -> None:
    with refuses(ValueError, "graph.absent"):
        USES[use](weight)
    weight.shape = [7]  # nothing was added


@pytest.mark.parametrize("use", [bool, iter, len])
def test_the_refusal_of_what_needs_elements_holds_for_weights(weight: Weight, use: Callable[[Any], Any]) -> None:
    with refuses(ValueError, "graph.absent"):
        use(weight)
    with Graph("g"), refuses(TypeError):
        use(weight)


def test_the_same_object_is_the_same_value(weight: Weight) -> None:
    with Graph("g") as graph:
        value = graph.add_weight(weight)
        assert value is graph.add_weight(weight)
        assert type(value) is TensorValue
        assert value.type == weight.type
        assert (weight + value).node.inputs[0] is value
    assert graph.add_weight(weight) is value


def test_another_weight_of_the_name_is_refused(weight: Weight) -> None:
    with Graph("g") as graph:
        graph.add_weight(weight)
        other = Weight("w", F32, [6, 4], CPU)
        with refuses(ValueError, "graph.invalid"):
            graph.add_weight(other)
        with refuses(ValueError, "graph.invalid"):
            _ = weight + other
        other.shape = [1]  # it was not added
        other.name = "v"
        assert (weight + other).shape == [6, 4]
        assert graph.parameters == {"w": weight, "v": other}


def test_names_are_those_that_the_weights_have_now(weight: Weight) -> None:
    with Graph("g") as graph:
        graph.add_weight(weight)
        weight.name = "layer.w"
        other = Weight("w", F32, [2], CPU)
        graph.add_weight(other)
    assert graph.parameters == {"layer.w": weight, "w": other}
    other.name = "layer.w"
    with refuses(ValueError, "graph.invalid"):
        _ = graph.parameters


@pytest.mark.parametrize(("attribute", "value"), [("dtype", "float16"), ("shape", [3]), ("device", "gpu:0")])
def test_what_the_graph_relies_on_is_fixed_from_then_on(weight: Weight, attribute: str, value: Any) -> None:
    setattr(weight, attribute, value)
    with Graph("g") as graph:
        graph.add_weight(weight)
    kept = weight.type
    with refuses(ValueError):
        setattr(weight, attribute, value)
    assert weight.type == kept
    weight.name, weight.align, weight.shard_idx = "v", 64, 1


def test_a_copy_has_joined_nothing(weight: Weight) -> None:
    with Graph("g") as graph:
        graph.add_weight(weight)
        for again in (copy.copy, copy.deepcopy, lambda w: pickle.loads(pickle.dumps(w))):
            other = again(weight)
            other.shape = [2]
            assert weight.shape == [6, 4]
            with refuses(ValueError, "graph.invalid"):
                graph.add_weight(other)


def test_one_weight_serves_several_graphs(weight: Weight) -> None:
    with Graph("first", input_types=[vector("n", 4)]) as first:
        first.output(first.inputs[0] @ weight.T)
    with Graph("second", input_types=[vector(6)]) as second:
        second.output(second.inputs[0] @ weight)
        with Graph("inner") as inner:
            assert weight.T.node.graph is inner
    assert first.output_types == [vector("n", 6)]
    assert second.output_types == [vector(4)]
    assert first.parameters == second.parameters == inner.parameters == {"w": weight}


def test_in_a_graph_weights_compare_by_elements_as_values_do(weight: Weight) -> None:
    other = Weight("other", F32, [6, 4], CPU)
    assert weight == weight
    assert weight != other
    with Graph("g") as graph:
        assert (weight == None) is False  # noqa: E711
        assert (weight in {weight: 1}, other in {weight: 1}) == (True, False)
        assert not graph.nodes
        for compared, op in ((weight == other, "equal"), (weight != other, "not_equal"), (other == weight, "equal")):
            assert (compared.node.op, compared.dtype, compared.shape) == (op, DType.bool, [6, 4])
        assert (graph.add_weight(weight) == weight).dtype is DType.bool
    assert weight == weight


CHANGES: dict[str, Callable[[Any], Any]] = {
    "an item": lambda shape: shape.__setitem__(0, 7),
    "append": lambda shape: shape.append(7),
    "+=": lambda shape: shape.__iadd__([7]),
    "del": lambda shape: shape.__delitem__(0),
    "pop": lambda shape: shape.pop(),
    "reverse": lambda shape: shape.reverse(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_shape_that_a_graph_relies_on_cannot_be_changed(change: str, weight: Weight) -> None:
    weight.shape[0] = 8
    assert weight.type.shape == [8, 4]
    with Graph("g") as graph:
        graph.add_weight(weight)
    with refuses(ValueError):
        CHANGES[change](weight.shape)
    assert weight.shape == [8, 4]
    again = weight.shape.copy()
    CHANGES[change](again)
    assert again != weight.shape
    for copied in (copy.copy(weight), copy.deepcopy(weight), pickle.loads(pickle.dumps(weight))):
        CHANGES[change](copied.shape)
        assert (weight.shape, copied.shape) == ([8, 4], again)


def test_the_shape_of_a_shard_is_changed_by_that_of_the_whole_weight() -> None:
    whole = Weight("w", F32, [6, 4], CPU, sharding_strategy=ShardingStrategy.rowwise(2))
    shard = whole.shard([CPU, CPU])[1]
    with refuses(ValueError):
        shard.shape[0] = 2
    whole.shape[0] = 8
    assert shard.shape == [4, 4]


def test_a_shard_joins_as_itself_and_fixes_the_whole_weight() -> None:
    whole = Weight("w", F32, [6, 4], CPU, sharding_strategy=ShardingStrategy.rowwise(2))
    shards = whole.shard([DeviceRef.GPU(0), DeviceRef.GPU(1)])
    with refuses(ValueError, "graph.absent"):
        _ = shards[1].T
    with Graph("g", input_types=[TensorType(F32, ["n", 4], "gpu:1")]) as graph:
        assert (graph.inputs[0] @ shards[1].T).type == TensorType(F32, ["n", 3], "gpu:1")
    assert graph.parameters == {"w[1]": shards[1]}
    with refuses(ValueError):
        whole.shape = [8, 4]


def test_add_weight_takes_weights_alone() -> None:
    with Graph("g", input_types=[vector(3)]) as graph, refuses(TypeError):
        graph.add_weight(graph.inputs[0])  # type: ignore[arg-type]


def test_a_packed_weight_has_the_type_of_its_bytes() -> None:
    packed = Weight("q", "uint8", [6, 144], CPU, quantization_encoding="Q4_K")
    with Graph("g") as graph:
        assert graph.add_weight(packed).type == TensorType("uint8", [6, 144], CPU)


def test_the_layers_of_document_004() -> None:
    """The forward pass of its MLP; the weights are (out, in) here, as `x @ weight.T` needs them."""

    class Linear:
        def __init__(self, name: str, in_dims: int, out_dims: int) -> None:
            self.weight = Weight(f"{name}.weight", DType.float32, (out_dims, in_dims), DeviceRef.CPU())

        def __call__(self, x: TensorValue) -> TensorValue:
            return x @ self.weight.T

    up, gate, down = Linear("up", 5, 10), Linear("gate", 5, 10), Linear("down", 10, 5)
    graph = Graph("mlp", lambda x: down(ops.silu(gate(x)) + up(x)), [vector("batch", 5)])
    assert graph.output_types == [vector("batch", 5)]
    assert list(graph.parameters) == ["gate.weight", "up.weight", "down.weight"]
