"""MAX's functions that shard a weight, for strategies composed of them: `ShardingStrategy(2, row_sharding_strategy)`.

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
    """Return a shard of `ShardingStrategy.axiswise`.

    Args:
        weight: The weight, or a shape.
        i: The number of the shard, from 0.
        num_devices: The number of shards.
        axis: The axis that is split.

    Returns:
        The part of the weight; for a shape, its `Pieces`.

    Raises:
        ValueError: The weight cannot be split like this.
        IndexError: There is no such shard.

    Example:
        >>> max_weights.graph.weight.axiswise_sharding_strategy([4, 3], 1, 2, 0).shape
        [Dim(2), Dim(3)]
    """
    return ShardingStrategy.axiswise(axis, num_devices)(weight, i)


def stacked_qkv_sharding_strategy(weight: Sliceable[_T], i: int, num_devices: int, num_heads: int, head_dim: int) -> _T:
    """Return a shard of `ShardingStrategy.stacked_qkv`.

    Args:
        weight: The weight, or a shape.
        i: The number of the shard, from 0.
        num_devices: The number of shards.
        num_heads: The number of heads.
        head_dim: The size of a head.

    Returns:
        The part of the weight; for a shape, its `Pieces`.

    Raises:
        ValueError: The weight cannot be split like this.
        IndexError: There is no such shard.

    Example:
        >>> max_weights.graph.weight.stacked_qkv_sharding_strategy([6], 0, 2, 2, 1).shape
        [Dim(3)]
    """
    return ShardingStrategy.stacked_qkv(num_devices, num_heads, head_dim)(weight, i)


def head_aware_col_sharding_strategy(
    weight: Sliceable[_T], i: int, num_devices: int, num_heads: int, head_dim: int
) -> _T:
    """Return a shard of `ShardingStrategy.head_aware_columnwise`.

    Args:
        weight: The weight, or a shape.
        i: The number of the shard, from 0.
        num_devices: The number of shards.
        num_heads: The number of heads.
        head_dim: The size of a head.

    Returns:
        The part of the weight; for a shape, its `Pieces`.

    Raises:
        ValueError: The weight cannot be split like this.
        IndexError: There is no such shard.

    Example:
        >>> max_weights.graph.weight.head_aware_col_sharding_strategy([3, 4], 1, 2, 2, 2).shape
        [Dim(3), Dim(2)]
    """
    return ShardingStrategy.head_aware_columnwise(num_devices, num_heads, head_dim)(weight, i)


def gate_up_sharding_strategy(weight: Sliceable[_T], i: int, num_devices: int, axis: int) -> _T:
    """Return a shard of `ShardingStrategy.gate_up`.

    Args:
        weight: The weight, or a shape.
        i: The number of the shard, from 0.
        num_devices: The number of shards.
        axis: The axis that is split.

    Returns:
        The part of the weight; for a shape, its `Pieces`.

    Raises:
        ValueError: The weight cannot be split like this.
        IndexError: There is no such shard.

    Example:
        >>> max_weights.graph.weight.gate_up_sharding_strategy([4, 3], 1, 2, 0).shape
        [Dim(2), Dim(3)]
    """
    return ShardingStrategy.gate_up(num_devices, axis)(weight, i)


def segmented_sharding_strategy(
    weight: Sliceable[_T], i: int, num_devices: int, *, axis: int, segments: Iterable[Segment]
) -> _T:
    """Return a shard of `ShardingStrategy.segmented`.

    Args:
        weight: The weight, or a shape.
        i: The number of the shard, from 0.
        num_devices: The number of shards.
        axis: The axis that is split.
        segments: The parts of the axis, in order.

    Returns:
        The part of the weight; for a shape, its `Pieces`.

    Raises:
        ValueError: The weight cannot be split like this.
        IndexError: There is no such shard.

    Example:
        >>> max_weights.graph.weight.segmented_sharding_strategy([6], 0, 2, axis=0, segments=[Segment.even(6)]).shape
        [Dim(3)]
    """
    return ShardingStrategy.segmented(num_devices, axis, segments)(weight, i)
