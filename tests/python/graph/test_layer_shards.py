"""Layers split over devices: the outputs of the shards, summed or concatenated, are those of the whole layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from layer_runs import CPU, called, filled, near
from max_weights import nn
from max_weights._weights import load_weights
from max_weights.graph import DeviceRef, Graph, ShardingStrategy, TensorType, ops
from max_weights.sharding import Segment
from refusals import refuses

DEVICES = 2


def added(parts: list[Any]) -> Any:
    first, *rest = parts
    for part in rest:
        first = first + part
    return first


def joined(parts: list[Any]) -> Any:
    return ops.concat(parts, axis=-1)


def require_the_same(layer: Any, strategy: ShardingStrategy, combine: Callable[[list[Any]], Any], x: Any) -> list[Any]:
    """The shards, whose outputs `combine` merges into that of the whole layer for `x`."""
    filled(layer)
    layer.sharding_strategy = strategy
    assert layer.sharding_strategy is strategy
    shards = layer.shard([CPU] * strategy.num_devices)
    assert [type(shard) for shard in shards] == [type(layer)] * strategy.num_devices
    layer.state_dict()
    near(called(lambda value: combine([shard(value) for shard in shards]), x), called(layer, x))
    names = list(layer.raw_state_dict())
    assert all(not shard.raw_state_dict() for shard in shards)  # the whole layer owns the weights
    assert list(layer.raw_state_dict()) == names
    return list(shards)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_linear_by_rows_is_joined(number: int, has_bias: bool) -> None:
    layer = nn.Linear(8, 10, "float32", CPU, has_bias=has_bias)
    shards = require_the_same(layer, ShardingStrategy.rowwise(number), joined, torch.randn(2, 3, 8))
    assert sum(int(shard.weight.shape[0]) for shard in shards) == 10


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("strategy", "ranges"),
    [
        (ShardingStrategy.columnwise(2), [[(0, 6)], [(6, 12)]]),
        (ShardingStrategy.columnwise(5), [[(0, 3)], [(3, 6)], [(6, 8)], [(8, 10)], [(10, 12)]]),
        (ShardingStrategy.head_aware_columnwise(2, 3, 4), [[(0, 8)], [(8, 12)]]),
        (
            ShardingStrategy.segmented(2, 1, [Segment.even(4), Segment.even(8)]),
            [[(0, 2), (4, 8)], [(2, 4), (8, 12)]],
        ),
    ],
)
def test_linear_by_columns_is_added_and_has_its_bias_once(
    strategy: ShardingStrategy, ranges: list[list[tuple[int, int]]], has_bias: bool
) -> None:
    layer = nn.Linear(12, 5, "float32", CPU, has_bias=has_bias)
    filled(layer)
    layer.sharding_strategy = strategy
    layer.state_dict()
    shards = layer.shard([CPU] * strategy.num_devices)

    def ours(x: Any) -> Any:
        cut = [ops.concat([x[:, start:stop] for start, stop in parts], axis=-1) for parts in ranges]
        return added([shard(part) for shard, part in zip(shards, cut, strict=True)])

    x = torch.randn(4, 12)
    near(called(ours, x), called(layer, x))
    assert [shard.bias is not None for shard in shards] == [has_bias] + [False] * (strategy.num_devices - 1)


@pytest.mark.parametrize("encoding", ["Q4_0", "Q6_K"])
def test_packed_linear_is_split_between_blocks(models: Path, encoding: str) -> None:
    weights = load_weights(models / "derived" / "minilm-ffn-allquants.gguf")
    (weight,) = [node for name, node in weights.items() if f".{encoding}." in name]
    layer = nn.Linear(1536, 64, "float32", CPU, quantization_encoding=encoding)
    layer.load_state_dict({"weight": weight})
    x = torch.randn(3, 1536)
    expected = called(layer, x)
    layer.sharding_strategy = ShardingStrategy.rowwise(2)
    rows = layer.shard([CPU, CPU])
    near(called(lambda value: joined([shard(value) for shard in rows]), x), expected)
    layer.sharding_strategy = ShardingStrategy.columnwise(2)
    first, second = layer.shard([CPU, CPU])
    near(called(lambda value: first(value[:, :768]) + second(value[:, 768:]), x), expected)


def test_a_function_of_ones_own_cannot_say_what_becomes_of_the_bias() -> None:
    def rows(weight: Any, index: int, number: int) -> Any:
        size = int(weight.shape[0]) // number
        return weight[index * size : (index + 1) * size]

    layer = nn.Linear(8, 10, "float32", CPU, has_bias=True)
    with refuses(ValueError, "argument.strategy"):
        layer.sharding_strategy = ShardingStrategy(2, rows)
    require_the_same(nn.Linear(8, 10, "float32", CPU), ShardingStrategy(2, rows), joined, torch.randn(3, 8))


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_mlp_by_tensor_parallel_is_added(number: int, has_bias: bool) -> None:
    layer = nn.MLP("float32", None, 8, 20, [CPU], has_bias=has_bias)
    strategy = ShardingStrategy.tensor_parallel(number)
    shards = require_the_same(layer, strategy, added, torch.randn(2, 3, 8))
    assert sum(int(shard.up_proj.weight.shape[0]) for shard in shards) == 20


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (9, 3)])
@pytest.mark.parametrize("options", [{}, {"stacked_qkv": True}, {"use_qk_norm": True, "o_proj_has_bias": True}])
@pytest.mark.parametrize("has_bias", [False, True])
def test_attention_by_tensor_parallel_is_added(
    heads: int, kv_heads: int, number: int, options: dict[str, Any], has_bias: bool
) -> None:
    rope = nn.RotaryEmbedding(4 * heads, heads, 10000.0, 64)
    layer = nn.Attention(
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        hidden_size=4 * heads,
        rope=rope,
        has_bias=has_bias,
        **options,
    )
    strategy = ShardingStrategy.tensor_parallel(number)
    shards = require_the_same(layer, strategy, added, torch.randn(2, 5, 4 * heads))
    assert sum(shard.num_key_value_heads for shard in shards) == kv_heads
    assert sum(shard.n_heads for shard in shards) == heads
    assert {shard.n_heads // shard.num_key_value_heads for shard in shards} == {heads // kv_heads}
    assert (layer.n_heads, layer.num_key_value_heads) == (heads, kv_heads)


def test_multihead_attention_takes_its_strategy_in_the_same_way() -> None:
    layer = nn.MultiheadAttention(4, 32, qkv_has_bias=True, o_proj_has_bias=True)
    require_the_same(layer, ShardingStrategy.tensor_parallel(DEVICES), added, torch.randn(2, 5, 32))


def test_embedding_by_columns_is_joined() -> None:
    numbers = torch.tensor([[1, 9, 0]])
    require_the_same(nn.Embedding(10, 7, "float32", CPU), ShardingStrategy.columnwise(DEVICES), joined, numbers)


REPLICATED: list[tuple[Any, torch.Tensor]] = [
    (lambda: nn.Linear(8, 6, "float32", CPU, has_bias=True), torch.randn(3, 8)),
    (lambda: nn.MLP("float32", None, 8, 20, [CPU]), torch.randn(3, 8)),
    (lambda: nn.Attention(num_attention_heads=2, num_key_value_heads=1, hidden_size=8), torch.randn(1, 3, 8)),
    (lambda: nn.Embedding(10, 7, "float32", CPU), torch.tensor([1, 2])),
    (lambda: nn.LayerNorm(8, [CPU], "float32"), torch.randn(3, 8)),
    (lambda: nn.LayerNorm(8, [CPU], "float32", use_bias=False), torch.randn(3, 8)),
    (lambda: nn.RMSNorm(8, "float32"), torch.randn(3, 8)),
    (lambda: nn.Conv2d(2, 8, 4, "float32", has_bias=True), torch.randn(1, 3, 3, 8)),
    (lambda: nn.Conv1D(2, 8, 4, "float32"), torch.randn(1, 3, 8)),
]


@pytest.mark.parametrize(("make", "x"), REPLICATED)
@pytest.mark.parametrize("index", range(DEVICES))
def test_each_replica_is_the_whole_layer(make: Callable[[], Any], x: torch.Tensor, index: int) -> None:
    require_the_same(make(), ShardingStrategy.replicate(DEVICES), lambda parts: parts[index], x)


def test_shards_are_on_the_devices_that_they_are_made_for() -> None:
    gpus = [DeviceRef.GPU(0), DeviceRef.GPU(1)]
    linear = nn.Linear(8, 6, "float32", CPU, has_bias=True)
    linear.sharding_strategy = ShardingStrategy.rowwise(2)
    assert [(shard.device, shard.weight.device, shard.bias.device) for shard in linear.shard(gpus)] == [
        (gpu, gpu, gpu) for gpu in gpus
    ]
    mlp = nn.MLP("float32", None, 8, 20, [CPU])
    mlp.sharding_strategy = ShardingStrategy.tensor_parallel(2)
    shards = mlp.shard(iter(gpus))
    assert [shard.devices for shard in shards] == [[gpu] for gpu in gpus]
    mlp.state_dict()
    with Graph("g", input_types=[TensorType("float32", [2, 8], gpus[1])]) as graph:
        assert shards[1](graph.inputs[0]).device == gpus[1]
    assert mlp.devices == [CPU]


@pytest.mark.parametrize(
    ("make", "strategy"),
    [
        (lambda: nn.MLP("float32", None, 8, 20, [CPU]), ShardingStrategy.rowwise(2)),
        (lambda: nn.RMSNorm(8, "float32"), ShardingStrategy.rowwise(2)),
        (lambda: nn.LayerNorm(8, [CPU], "float32"), ShardingStrategy.rowwise(2)),
        (lambda: nn.Conv2d(2, 8, 4, "float32"), ShardingStrategy.rowwise(2)),
        (lambda: nn.Embedding(8, 4, "float32", CPU), ShardingStrategy.rowwise(2)),
        (
            lambda: nn.Attention(num_attention_heads=4, num_key_value_heads=2, hidden_size=8),
            ShardingStrategy.tensor_parallel(3),
        ),
        (
            lambda: nn.Attention(num_attention_heads=4, num_key_value_heads=2, hidden_size=8),
            ShardingStrategy.columnwise(2),
        ),
    ],
)
def test_a_strategy_that_a_layer_does_not_take_is_refused(make: Any, strategy: ShardingStrategy) -> None:
    layer = make()
    with refuses(ValueError):
        layer.sharding_strategy = strategy
    assert layer.sharding_strategy is None


def test_a_layer_without_a_strategy_or_with_one_for_others_is_not_sharded() -> None:
    layer = nn.Linear(8, 6, "float32", CPU)
    with refuses(ValueError, "argument.strategy"):
        layer.shard([CPU, CPU])
    layer.sharding_strategy = ShardingStrategy.rowwise(2)
    with refuses(ValueError):
        layer.shard([CPU] * 3)


def test_layers_are_shardable_as_the_protocol_says() -> None:
    assert isinstance(nn.Linear(8, 6, "float32", CPU), nn.Shardable)
    assert isinstance(nn.MLP("float32", None, 8, 6, [CPU]), nn.Shardable)
    assert not isinstance(nn.RotaryEmbedding(8, 1, 1e4, 8), nn.Shardable)
