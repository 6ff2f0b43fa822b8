"""`Weight` and `ShardingStrategy`: members outside of a graph, shards, and the shapes of shards inside a graph."""

from max.dtype import DType
from max.graph import DeviceRef, Graph, ShardingStrategy, TensorValue, Weight
from max.graph.quantization import QuantizationEncoding
from max.graph.weight import Segment

cpu = DeviceRef.CPU()


def weight(*shape, dtype=DType.float32):
    """A weight of that shape."""
    return Weight("w", dtype, shape, cpu)


# --- a weight -----------------------------------------------------------------------------------------------------------
w = weight(6, 4)
w
isinstance(w, TensorValue)
repr(w)
w.name
w.dtype
w.shape
w.device
w.rank  # differs: rank
w.align
w.shard_idx
w.sharding_strategy
w.quantization_encoding
w.original_dtype_and_shape
repr(Weight("w", DType.uint8, [2, 18], cpu, quantization_encoding=QuantizationEncoding.Q4_0))
Weight("w", DType.float32, ["n", 4], DeviceRef.GPU(2))
Weight("w", DType.float32, [2], cpu, align=1).align
Weight("", DType.float32, [2], cpu).name
w + 1
w[0]
w.T
w.shard([cpu])
w.reshape([4, 6])

with Graph("one") as graph:
    TensorValue(w).shape
    (w + 1).shape
    w.T.shape
    w.shape
    graph.add_weight(w)
    graph.add_weight(w).shape
    graph.add_weight(Weight("w", DType.float32, [1], cpu))
    graph.add_weight(Weight("w2", DType.float32, [1], cpu)).shape

# --- strategies ---------------------------------------------------------------------------------------------------------
strategies = {
    "rowwise": (ShardingStrategy.rowwise(4), (10, 8)),
    "rowwise of one": (ShardingStrategy.rowwise(1), (10, 8)),
    "rowwise of few": (ShardingStrategy.rowwise(4), (3, 8)),
    "columnwise": (ShardingStrategy.columnwise(3), (10, 8)),
    "columnwise of three axes": (ShardingStrategy.columnwise(2), (2, 10, 8)),
    "axiswise": (ShardingStrategy.axiswise(2, 2), (2, 10, 7)),
    "axiswise from the end": (ShardingStrategy.axiswise(-1, 2), (2, 10, 7)),
    "replicate": (ShardingStrategy.replicate(2), (2, 3)),
    "stacked_qkv": (ShardingStrategy.stacked_qkv(2, 4, 3), (36, 5)),
    "stacked_qkv uneven": (ShardingStrategy.stacked_qkv(3, 4, 3), (36, 5)),
    "head_aware_columnwise": (ShardingStrategy.head_aware_columnwise(2, 3, 4), (5, 12)),
    "head_aware_columnwise of halves": (ShardingStrategy.head_aware_columnwise(2, 3, 4), (5, 6)),
    "gate_up": (ShardingStrategy.gate_up(2), (3, 4, 12)),
    "gate_up on an axis": (ShardingStrategy.gate_up(2, axis=0), (12, 4)),
    "segmented": (ShardingStrategy.segmented(2, 0, [Segment.even(6), Segment.head_aware(3, 2)]), (12, 4)),
}
for name, (strategy, shape) in strategies.items():
    name
    strategy.num_devices
    strategy.sharded_axis
    sorted(member for member in dir(strategy) if member.startswith("is_") and getattr(strategy, member))
    with Graph(name):
        value = TensorValue(weight(*shape))
        [strategy(value, i).shape for i in range(strategy.num_devices)]
    with Graph(name + " by shard()"):
        whole = weight(*shape)
        whole.sharding_strategy = strategy
        shards = whole.shard([DeviceRef.GPU(i) for i in range(strategy.num_devices)])
        [shard.name for shard in shards]
        [shard.shard_idx for shard in shards]
        [shard.device for shard in shards]
        [TensorValue(shard).shape for shard in shards]
        [TensorValue(shard).device for shard in shards]
        whole.shard_idx
        shards[0].sharding_strategy is strategy
        shards[0].shard([cpu])
        isinstance(shards[0], Weight)

# --- sizes that a strategy cannot split ---------------------------------------------------------------------------------
misfits = {
    "gate_up odd": (ShardingStrategy.gate_up(2, axis=0), (11, 4)),
    "segmented of another size": (ShardingStrategy.segmented(2, 0, [Segment.even(6)]), (7, 4)),
}
for name, (strategy, shape) in misfits.items():
    with Graph(name):
        value = TensorValue(weight(*shape))
        [strategy(value, i).shape for i in range(2)]
        misfit = weight(*shape)
        misfit.name = "misfit"
        misfit.sharding_strategy = strategy
        [TensorValue(shard).shape for shard in misfit.shard([DeviceRef.GPU(0), DeviceRef.GPU(1)])]

columns = ShardingStrategy.head_aware_columnwise(2, 3, 4)
with Graph("a column too many"):
    value = TensorValue(weight(5, 13))
    columns(value, 1).shape  # differs: misfits

# --- markers ------------------------------------------------------------------------------------------------------------
markers = {"tensor": ShardingStrategy.tensor_parallel(2), "expert": ShardingStrategy.expert_parallel(2)}
for name, marker in markers.items():
    with Graph(name):
        value = TensorValue(weight(4, 4))
        marker(value, 0)
        marker.sharded_axis
        [marker.is_tensor_parallel, marker.is_expert_parallel]
marked = weight(4, 4)
marked.sharding_strategy = ShardingStrategy.tensor_parallel(2)
with Graph("marked"):
    marked.shard([DeviceRef.GPU(0), DeviceRef.GPU(1)])[0].name  # differs: markers

# --- strategies as values -----------------------------------------------------------------------------------------------
ShardingStrategy.rowwise(0)  # differs: device-count
ShardingStrategy.rowwise(-1)  # differs: device-count
ShardingStrategy.rowwise(2) == ShardingStrategy.rowwise(2)
ShardingStrategy.rowwise(2) == ShardingStrategy.columnwise(2)
[Segment.even(6).size, Segment.head_aware(3, 2).num_heads]

own = ShardingStrategy(2, lambda value, i, n: value[i : i + 1])
own.num_devices
with Graph("own"):
    value = TensorValue(weight(4, 2))
    [own(value, i).shape for i in range(2)]

with Graph("columns of a vector"):
    ShardingStrategy.columnwise(2)(TensorValue(weight(4)), 0).shape  # differs: columns-of-a-vector

outside = weight(8, 2)
outside.sharding_strategy = ShardingStrategy.rowwise(2)
outside.shard([DeviceRef.GPU(0), DeviceRef.GPU(1)])  # differs: shards-without-graph
[shard.shape for shard in outside.shard([DeviceRef.GPU(0), DeviceRef.GPU(1)])]  # differs: shards-without-graph
[shard.dtype for shard in outside.shard([DeviceRef.GPU(0), DeviceRef.GPU(1)])]
outside.shard([DeviceRef.GPU(0)])
outside.shard([])  # differs: device-count
outside.name = "renamed"
[shard.name for shard in outside.shard([DeviceRef.GPU(0), DeviceRef.GPU(1)])]
