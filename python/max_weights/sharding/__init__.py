"""How weights are split over devices: strategies, and the pieces that they give as plain numbers."""

from max_weights.sharding._by_name import Shard
from max_weights.sharding._expert_selection import experts
from max_weights.sharding._pieces import Pieces
from max_weights.sharding._rules import Segment
from max_weights.sharding._strategies import ShardingStrategy
from max_weights.sharding._tables import Table

__all__ = ["Pieces", "Segment", "Shard", "ShardingStrategy", "Table", "experts"]
