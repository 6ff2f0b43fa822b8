"""The layers of models: arguments, names, dtypes and shapes of their weights, results, shards."""

import inspect

from max.dtype import DType
from max.graph import DeviceRef, Graph, ShardingStrategy, TensorType
from max.graph import ops as graph_ops
from max.nn import (
    MLP,
    Conv1D,
    Conv2d,
    Embedding,
    GroupNorm,
    LayerNorm,
    Linear,
    Llama3RopeScalingParams,
    Llama3RotaryEmbedding,
    MultiheadAttention,
    RMSNorm,
    RotaryEmbedding,
)

cpu = DeviceRef.CPU()
gpus = [DeviceRef.GPU(0), DeviceRef.GPU(1)]


def arguments(layer):
    """The names of the arguments, with their defaults."""
    given = list(inspect.signature(layer.__init__).parameters.values())[1:]
    return [f"{p.name}={p.default}" if isinstance(p.default, (int, float, str)) else p.name for p in given]


def weights(layer):
    """The weights by name."""
    return [f"{name} {w.dtype} {w.shape} {w.device}" for name, w in layer.raw_state_dict().items()]


def called(layer, shape, dtype=DType.float32):
    """The results of a graph of one call."""
    layer.state_dict()
    with Graph("called", input_types=[TensorType(dtype, shape, cpu)]) as graph:
        made = layer(graph.inputs[0].tensor)
    return f"{made.dtype} {made.shape} {made.device}"


def parts(layer, strategy, *attributes):
    """The shapes of the weights of the shards."""
    layer.state_dict()
    layer.sharding_strategy = strategy
    found = []
    with Graph("parts"):
        for shard in layer.shard(gpus):
            for attribute in attributes:
                value = shard
                for name in attribute.split("."):
                    value = getattr(value, name)
                found.append(value if value is None else f"{attribute} {value.shape} {value.device}")
    return found


# --- arguments ----------------------------------------------------------------------------------------------------------
arguments(Linear)
arguments(MLP)
arguments(Embedding)
arguments(LayerNorm)
arguments(RMSNorm)
arguments(GroupNorm)
arguments(RotaryEmbedding)
arguments(Llama3RotaryEmbedding)
arguments(Llama3RopeScalingParams)
arguments(Conv1D)
arguments(Conv2d)

# --- Linear and MLP -----------------------------------------------------------------------------------------------------
weights(Linear(8, 4, DType.float32, cpu))
weights(Linear(8, 4, DType.bfloat16, DeviceRef.GPU(1), has_bias=True))
weights(Linear(8, 4, DType.float32, cpu, has_bias=True, name="head"))
called(Linear(8, 4, DType.float32, cpu), ["n", 8])
called(Linear(8, 4, DType.float32, cpu, has_bias=True), ["b", "n", 8])
called(Linear(8, 4, DType.float32, cpu, clip_weight=1.0), [8])
called(Linear(8, 4, DType.float32, cpu), ["n", 9])
Linear(8, 4, DType.float32, cpu).bias
parts(Linear(8, 4, DType.float32, cpu, has_bias=True), ShardingStrategy.rowwise(2), "weight", "bias")
parts(Linear(8, 4, DType.float32, cpu, has_bias=True), ShardingStrategy.replicate(2), "weight", "bias")
parts(Linear(8, 4, DType.float32, cpu, has_bias=True), ShardingStrategy.columnwise(2), "weight")
[shard is None for shard in parts(Linear(8, 4, DType.float32, cpu, True), ShardingStrategy.columnwise(2), "bias")]
parts(Linear(8, 5, DType.float32, cpu), ShardingStrategy.rowwise(2), "weight")
parts(Linear(12, 4, DType.float32, cpu), ShardingStrategy.head_aware_columnwise(2, 3, 4), "weight")
Linear(8, 4, DType.float32, cpu).sharding_strategy
Linear(8, 4, DType.float32, cpu).shard(gpus)
weights(Linear(8, 4, DType.float32, cpu, has_bias=True, is_sharding=True))
weights(MLP(DType.float32, None, 8, 20, [cpu], is_sharding=True))
weights(MLP(DType.float32, None, 8, 20, [cpu]))
weights(MLP(DType.float32, None, 8, 20, [cpu], has_bias=True))
called(MLP(DType.float32, None, 8, 20, [cpu]), ["n", 8])
called(MLP(DType.float32, None, 8, 20, [cpu], has_bias=True, activation_function="gelu_tanh"), [3, 8])
called(MLP(DType.float32, None, 8, 20, [cpu], swiglu_limit=2.0), [3, 8])
MLP(DType.float32, None, 8, 20, [cpu], activation_function="swish")
mlp_weights = ("gate_proj.weight", "up_proj.weight", "down_proj.weight")
parts(MLP(DType.float32, None, 8, 20, [cpu]), ShardingStrategy.tensor_parallel(2), *mlp_weights)
parts(MLP(DType.float32, None, 8, 20, [cpu]), ShardingStrategy.replicate(2), *mlp_weights)
parts(MLP(DType.float32, None, 8, 20, [cpu]), ShardingStrategy.rowwise(2), *mlp_weights)

# --- embeddings and norms -----------------------------------------------------------------------------------------------
weights(Embedding(10, 6, DType.float32, cpu))
weights(Embedding(10, 6, DType.float16, cpu, name="table"))
called(Embedding(10, 6, DType.float32, cpu), ["b", "n"], DType.int64)
called(Embedding(10, 6, DType.float32, cpu), ["b", "n"], DType.float32)
weights(LayerNorm(6, [cpu], DType.float32))
weights(LayerNorm(6, [cpu], DType.float16, use_bias=False))
called(LayerNorm(6, [cpu], DType.float32), ["b", "n", 6])
called(LayerNorm(6, [cpu], DType.float32, use_bias=False), ["n", 6])
called(LayerNorm(6, [cpu], DType.bfloat16), ["n", 6], DType.bfloat16)
called(LayerNorm(6, [cpu], DType.float32), ["n", 7])
parts(LayerNorm(6, [cpu], DType.float32), ShardingStrategy.replicate(2), "weight", "bias")
parts(LayerNorm(6, [cpu], DType.float32), ShardingStrategy.rowwise(2), "weight")
weights(RMSNorm(6, DType.float32))
called(RMSNorm(6, DType.float32), ["b", "n", 6])
called(RMSNorm(6, DType.float32, weight_offset=1.0), ["n", 6], DType.float16)
called(RMSNorm(6, DType.float32), ["n", 7])
parts(RMSNorm(6, DType.float32), ShardingStrategy.replicate(2), "weight")
parts(RMSNorm(6, DType.float32), ShardingStrategy.rowwise(2), "weight")
weights(GroupNorm(2, 6))  # differs: group-norm
weights(GroupNorm(2, 6, affine=False, device=cpu))
GroupNorm(4, 6)
called(GroupNorm(2, 6, device=cpu), [1, 6, 5, 4])
called(GroupNorm(2, 6, device=cpu), ["b", 6, 8], DType.float16)

# --- rotary positions ---------------------------------------------------------------------------------------------------
scaling = Llama3RopeScalingParams(8.0, 1.0, 4.0, 8192)
ropes = {
    "plain": RotaryEmbedding(64, 4, 10000.0, 32),
    "halves": RotaryEmbedding(64, 4, 10000.0, 32, interleaved=False),
    "other heads": RotaryEmbedding(64, 4, 10000.0, 32, head_dim=8),
    "Llama 3": Llama3RotaryEmbedding(64, 4, 10000.0, 32, scaling_params=scaling),
}
for name, rope in ropes.items():
    name
    rope.head_dim
    rope.interleaved
    rope.compute_scale()
    rope.compute_scale(0.5)
    weights(rope)
    size = rope.head_dim
    with Graph(name, input_types=[TensorType(DType.float32, ["b", 8, 4, size], cpu)]) as graph:
        rope.freqs_cis_base().shape
        rope.freqs_cis.shape
        rope(graph.inputs[0].tensor).shape
scaling.factor
scaling.orig_max_position

# --- convolutions -------------------------------------------------------------------------------------------------------
weights(Conv2d(3, 4, 8, DType.float32))
weights(Conv2d((3, 2), 4, 8, DType.float32, num_groups=2, has_bias=True, permute=True))
weights(Conv1D(3, 4, 8, DType.float32, has_bias=True, name="conv"))
weights(Conv1D(3, 4, 8, DType.float32, permute=True))
called(Conv2d(3, 4, 8, DType.float32), [1, 9, 10, 4])
called(Conv2d(3, 4, 8, DType.float32, stride=2, padding=1, has_bias=True), ["b", 9, 10, 4])
called(Conv2d(3, 4, 8, DType.float32, padding=(1, 2, 0, 3), dilation=2), [1, 9, 10, 4])
called(Conv2d(3, 4, 8, DType.float32, permute=True), [1, 4, 9, 10])
called(Conv2d(3, 4, 8, DType.float32), [1, 9, 10, 5])
called(Conv2d(3, 4, 8, DType.float32), [9, 10, 4])
called(Conv1D(3, 4, 8, DType.float32), ["b", 10, 4])
called(Conv1D(3, 4, 8, DType.float32, stride=2, padding=(2, 0), permute=True), [1, 4, 10])
conv = Conv2d(3, 4, 8, DType.float32, padding=(1, 2))
[conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.num_groups]
Conv1D(3, 4, 8, DType.float32, padding=1).padding
parts(Conv2d(3, 4, 8, DType.float32), ShardingStrategy.replicate(2), "filter")
parts(Conv2d(3, 4, 8, DType.float32), ShardingStrategy.rowwise(2), "filter")
with Graph("conv2d") as graph:
    image = graph_ops.constant([[[[1.0]] * 6] * 5], DType.float32, cpu)
    window = graph_ops.constant([[[[1.0, 2.0]]] * 2] * 3, DType.float32, cpu)
    graph_ops.conv2d(image, window).shape
    graph_ops.conv2d(image, window, stride=(2, 1), padding=(1, 0, 2, 3)).shape
    graph_ops.conv2d(image, image[0]).shape

# --- attention ----------------------------------------------------------------------------------------------------------
sorted(weights(MultiheadAttention(4, 32, [cpu])))
sorted(weights(MultiheadAttention(4, 32, [cpu], qkv_has_bias=True, o_proj_has_bias=True)))
sorted(weights(MultiheadAttention(4, 32, [cpu], stacked_qkv=True)))
MultiheadAttention(4, 32).scale
MultiheadAttention(4, 32).head_dim
MultiheadAttention(5, 32)
