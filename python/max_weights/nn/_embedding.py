"""`Embedding`: looks up a row of a table for each index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from max_weights._devices import DeviceRef
from max_weights.graph import ops
from max_weights.graph._value import TensorValue
from max_weights.graph._weight import Weight
from max_weights.graph.ops._operands import operand
from max_weights.nn._shardable import ShardableLayer

if TYPE_CHECKING:
    from max_weights._dtype import DTypeLike
    from max_weights._quantization import QuantizationEncoding
    from max_weights.graph._value import TensorValueLike
    from max_weights.sharding._strategies import ShardingStrategy

__all__ = ["Embedding"]


class Embedding(ShardableLayer):
    """A table of rows that are looked up by index: `[...]` becomes `[..., hidden_dim]`.

    With `columnwise`, the shards have some of the columns, and their outputs are joined along the last axis. A table
    that is split by rows needs the collectives of MAX's `VocabParallelEmbedding`, which are not part of this package.

    Args:
        vocab_size: The number of rows.
        hidden_dim: The size of a row.
        dtype: The dtype of the table.
        device: The device of the table.
        quantization_encoding: How the elements of the table are packed; see `ops.dequantize`.
        name: The name of the weight; default: `weight`.
    """

    weight: Weight
    """`[vocab_size, hidden_dim]`."""

    def __init__(
        self,
        vocab_size: int,
        hidden_dim: int,
        dtype: DTypeLike,
        device: DeviceRef | str,
        quantization_encoding: QuantizationEncoding | str | None = None,
        name: str | None = None,
    ) -> None:
        self.device = DeviceRef.from_device(device)
        self.weight = Weight(name or "weight", dtype, (vocab_size, hidden_dim), self.device, quantization_encoding)

    def __call__(self, indices: TensorValueLike) -> TensorValue:
        """Return the rows at these indices.

        Args:
            indices: Integers of any shape, 0 to `vocab_size - 1`.

        Returns:
            `[..., hidden_dim]`, on the device of the table; float32 if the table is packed.
        """
        numbers = operand(type(self).__name__, indices).to(self.weight.device)
        rows, encoding = ops.gather(self.weight, numbers, axis=0), self.weight.quantization_encoding
        return rows if encoding is None else ops.dequantize(encoding, rows)

    def _strategies(self, strategy: ShardingStrategy) -> Mapping[str, ShardingStrategy]:
        if not strategy.is_replicate and strategy.sharded_axis not in (1, -1):
            raise self._refuse(strategy, "columnwise and replicate")
        return {"weight": strategy}
