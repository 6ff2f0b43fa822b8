# fmt: off
# ruff: noqa: I001, RUF100
"""The dotted path `max.graph.weight` of MAX."""

from max_weights.graph._weight import Weight
from max_weights.sharding._functions import (
    axiswise_sharding_strategy, col_sharding_strategy, expert_parallel_sharding_strategy, gate_up_sharding_strategy,
    head_aware_col_sharding_strategy, replicate_sharding_strategy, row_sharding_strategy, segmented_sharding_strategy,
    stacked_qkv_sharding_strategy, tensor_parallel_sharding_strategy,
)
from max_weights.sharding._rules import Segment
from max_weights.sharding._strategies import ShardingStrategy

__all__ = [
    "Segment", "ShardingStrategy", "Weight", "axiswise_sharding_strategy", "col_sharding_strategy",
    "expert_parallel_sharding_strategy", "gate_up_sharding_strategy", "head_aware_col_sharding_strategy",
    "replicate_sharding_strategy", "row_sharding_strategy", "segmented_sharding_strategy",
    "stacked_qkv_sharding_strategy", "tensor_parallel_sharding_strategy",
]
