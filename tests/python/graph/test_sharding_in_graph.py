"""A `ShardingStrategy` called with a value of a graph: the shard, recorded as slices and a concat."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from max_weights.graph import DeviceRef, Graph, Segment, ShardingStrategy, TensorType, TensorValue, Weight, ops
from max_weights.sharding._pieces import Pieces
from refusals import refuses

S = ShardingStrategy
CPU = DeviceRef.CPU()


def by_other_strategies(weight: Any, index: int, _count: int) -> Any:
    return ops.concat([S.gate_up(2, axis=0)(weight, index)[:2], S.rowwise(2)(weight, 1 - index)[:1]])


STRATEGIES = {
    "rowwise": S.rowwise(3),
    "columnwise": S.columnwise(5),
    "axiswise": S.axiswise(-1, 4),
    "replicate": S.replicate(2),
    "stacked_qkv": S.stacked_qkv(2, 2, 2),
    "stacked_qkv of grouped queries": S.stacked_qkv(3, 4, 2, num_kv_heads=1),
    "head_aware_columnwise": S.head_aware_columnwise(2, 3, 2),
    "gate_up": S.gate_up(4, axis=0),
    "segmented": S.segmented(2, 0, [Segment.even(5), Segment.head_aware(1, 7)]),
    "more devices than rows": S.rowwise(14),
    "own": S(2, lambda weight, i, n: weight[12 // n * i : 12 // n * (i + 1), ..., : weight.shape[1] // 2]),
    "own with ops.concat": S(2, lambda weight, i, _: ops.concat([weight[:, i::1], weight[:, :i]], axis=-1)),
    "own with a generator": S(2, lambda weight, i, n: ops.concat(weight[row : row + 1] for row in range(i, 12, n))),
    "own of other strategies": S(2, by_other_strategies),
}


def computed(value: TensorValue, weight: Any) -> Any:
    """The elements of a value computed from one weight by slices and concats."""
    node = value.node
    inputs = [computed(operand, weight) for operand in node.inputs]
    if node.op == "slice_tensor":
        return inputs[0][tuple(slice(*bounds) for bounds in node.attributes["index"])]
    if node.op == "concat":
        return np.concatenate(inputs, node.attributes["axis"])
    assert node.op in ("weight", "input")
    return weight


@pytest.mark.parametrize("kind", STRATEGIES)
def test_a_strategy_called_in_a_graph_gives_the_shards_as_values(kind: str) -> None:
    strategy, elements = STRATEGIES[kind], np.arange(72, dtype=np.float32).reshape(12, 6)
    weight = Weight("w", "float32", [12, 6], CPU, sharding_strategy=strategy)
    shards = weight.shard([CPU] * strategy.num_devices)
    with Graph("g", input_types=[TensorType("float32", [12, 6], "gpu:1")]) as graph:
        for of in (weight, graph.inputs[0]):
            for index, shard in enumerate(shards):
                value = strategy(of, index)
                assert type(value) is TensorValue
                assert value.type == TensorType("float32", shard.shape, of.device)
                np.testing.assert_array_equal(computed(value, elements), shard.data_of(elements))
    assert list(graph.parameters) == ["w"]


def test_outside_of_a_graph_it_gives_pieces_and_joins_nothing() -> None:
    weight = Weight("w", "float32", [12, 6], CPU)
    graph = Graph("g", input_types=[TensorType("float32", [12, 6], CPU)])
    for whole in (weight, graph.inputs[0], [12, 6]):
        assert isinstance(S.rowwise(3)(whole, 1), Pieces)
    with graph:
        assert isinstance(S.rowwise(3)([12, 6], 1), Pieces)
        assert isinstance(S.rowwise(3).pieces(weight, 1), Pieces)
    assert [node.op for node in graph.nodes] == ["input"]
    weight.shape = [3]


def test_what_is_not_split_may_be_symbolic() -> None:
    with Graph("g", input_types=[TensorType("float32", ["n", 6], CPU)]) as graph:
        x = graph.inputs[0]
        assert S.columnwise(2)(x, 1).shape == ["n", 3]
        assert S.replicate(2)(x, 1) is x
        with refuses(ValueError):
            S.rowwise(2)(x, 1)


def test_shards_of_packed_weights_are_their_bytes() -> None:
    weight = Weight("q", "uint8", [4, 36], CPU, quantization_encoding="q4_0")
    with Graph("g"):
        assert S.columnwise(2)(weight, 1).type == TensorType("uint8", [4, 18], CPU)
        with refuses(ValueError):
            S.columnwise(3)(weight, 1)


def test_a_shard_of_a_strategy_and_a_weight_of_it_make_the_same_graph() -> None:
    """Both ways of document 002: `Weight.shard` outside, the strategy inside."""
    whole = Weight("w", "float32", [8, 6], CPU, sharding_strategy=S.rowwise(2))
    with Graph("g", input_types=[TensorType("float32", ["n", 6], CPU)]) as graph:
        x = graph.inputs[0]
        by_shard = x @ whole.shard([CPU, CPU])[1].T
        strategy = whole.sharding_strategy
        assert strategy is not None
        by_strategy = x @ strategy(whole, 1).T
    assert by_shard.type == by_strategy.type


def test_slices_of_a_stand_in_do_not_mix_with_tensors() -> None:
    def mixed(weight: Any, *_: int) -> Any:
        return ops.concat([weight[:1], np.zeros((1, 6), np.float32)])

    with Graph("g"), refuses(TypeError):
        S(2, mixed)(Weight("w", "float32", [12, 6], CPU), 0)
