"""How weights are split over devices: strategies, and the pieces that they give as plain numbers."""

from max_weights.sharding import tables
from max_weights.sharding.by_name import Shard
from max_weights.sharding.expert_selection import experts
from max_weights.sharding.pieces import Pieces
from max_weights.sharding.rules import Segment
from max_weights.sharding.strategies import ShardingStrategy

__all__ = ["Pieces", "Segment", "Shard", "ShardingStrategy", "experts", "tables"]
