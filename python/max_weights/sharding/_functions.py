"""MAX's functions that shard a weight, for strategies made of them: `ShardingStrategy(2, row_sharding_strategy)`.

Each takes a weight, the number of a shard and the number of shards, and returns what a call of the strategy returns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from max_weights.sharding._rules import Segment
from max_weights.sharding._strategies import (
    COLUMNWISE,
    EXPERT_PARALLEL,
    REPLICATE,
    ROWWISE,
    TENSOR_PARALLEL,
    ShardingStrategy,
    Sliceable,
)

__all__ = [
    "axiswise_sharding_strategy",
    "col_sharding_strategy",
    "expert_parallel_sharding_strategy",
    "gate_up_sharding_strategy",
    "head_aware_col_sharding_strategy",
    "replicate_sharding_strategy",
    "row_sharding_strategy",
    "segmented_sharding_strategy",
    "stacked_qkv_sharding_strategy",
    "tensor_parallel_sharding_strategy",
]

_T = TypeVar("_T")

row_sharding_strategy = ROWWISE
"""The rule of `ShardingStrategy.rowwise`."""
col_sharding_strategy = COLUMNWISE
"""The rule of `ShardingStrategy.columnwise`."""
replicate_sharding_strategy = REPLICATE
"""The rule of `ShardingStrategy.replicate`."""
tensor_parallel_sharding_strategy = TENSOR_PARALLEL
"""The rule of `ShardingStrategy.tensor_parallel`."""
expert_parallel_sharding_strategy = EXPERT_PARALLEL
"""The rule of `ShardingStrategy.expert_parallel`."""


def axiswise_sharding_strategy(weight: Sliceable[_T], i: int, num_devices: int, axis: int) -> _T:
    """Return shard `i` of `ShardingStrategy.axiswise`."""
    return ShardingStrategy.axiswise(axis, num_devices)(weight, i)


def stacked_qkv_sharding_strategy(weight: Sliceable[_T], i: int, num_devices: int, num_heads: int, head_dim: int) -> _T:
    """Return shard `i` of `ShardingStrategy.stacked_qkv`."""
    return ShardingStrategy.stacked_qkv(num_devices, num_heads, head_dim)(weight, i)


def head_aware_col_sharding_strategy(
    weight: Sliceable[_T], i: int, num_devices: int, num_heads: int, head_dim: int
) -> _T:
    """Return shard `i` of `ShardingStrategy.head_aware_columnwise`."""
    return ShardingStrategy.head_aware_columnwise(num_devices, num_heads, head_dim)(weight, i)


def gate_up_sharding_strategy(weight: Sliceable[_T], i: int, num_devices: int, axis: int) -> _T:
    """Return shard `i` of `ShardingStrategy.gate_up`."""
    return ShardingStrategy.gate_up(num_devices, axis)(weight, i)


def segmented_sharding_strategy(
    weight: Sliceable[_T], i: int, num_devices: int, *, axis: int, segments: Iterable[Segment]
) -> _T:
    """Return shard `i` of `ShardingStrategy.segmented`."""
    return ShardingStrategy.segmented(num_devices, axis, segments)(weight, i)
