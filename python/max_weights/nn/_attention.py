"""`Attention`, with grouped heads and rotary positions, `MultiheadAttention`, and the function that both compute.

All of it is written in plain operations over whole sequences. MAX's own layers of this kind read keys and values from
the cache of its serving; this package has no such cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING

import max_weights.graph._infer as infer
from max_weights._devices import DeviceRef
from max_weights._dim import StaticDim
from max_weights._dtype import DType
from max_weights._shape import listed
from max_weights.errors import ArgumentError, UnsupportedError
from max_weights.graph import ops
from max_weights.graph._stack import graph_error
from max_weights.graph._value import TensorValue
from max_weights.graph.ops._operands import operand
from max_weights.nn._linear import Linear
from max_weights.nn._module import ShardableLayer
from max_weights.nn._norm import RMSNorm
from max_weights.sharding._strategies import Segment, ShardingStrategy

if TYPE_CHECKING:
    from max_weights._dtype import DTypeLike
    from max_weights._quantization import QuantizationEncoding
    from max_weights.graph._value import TensorValueLike
    from max_weights.nn._rotary_embedding import RotaryEmbedding

__all__ = ["Attention", "MHAMaskVariant", "MultiheadAttention", "num_heads_for_device", "scaled_dot_product_attention"]


class MHAMaskVariant(Enum):
    """Which positions a position attends to."""

    CAUSAL_MASK = 0
    """The position itself and those before it."""
    NULL_MASK = 2
    """All positions."""


def num_heads_for_device(*, num_heads: int, device_idx: int, num_devices: int) -> int:
    """Return how many of the heads a device has: the first ones have one more if they cannot be split evenly.

    Args:
        num_heads: The heads of all devices.
        device_idx: The number of the device.
        num_devices: The number of devices.

    Raises:
        ArgumentError: there is no such device (a ValueError).

    Example:
        >>> from max_weights.nn._attention import num_heads_for_device
        >>> num_heads_for_device(num_heads=10, device_idx=0, num_devices=4)
        3
    """
    if not 0 <= device_idx < num_devices:
        raise ArgumentError(f"there is no device {device_idx} of {num_devices}", rule="argument.devices")
    return num_heads // num_devices + (device_idx < num_heads % num_devices)


def scaled_dot_product_attention(
    query: TensorValueLike,
    key: TensorValueLike,
    value: TensorValueLike,
    mask: TensorValueLike | None = None,
    *,
    mask_variant: MHAMaskVariant = MHAMaskVariant.NULL_MASK,
    scale: float | None = None,
) -> TensorValue:
    """Return the values, weighted by the softmax of the products of queries and keys.

    Args:
        query: `[..., heads, positions, head_dim]`, floats.
        key: `[..., kv_heads, kv_positions, head_dim]`, where `heads / kv_heads` consecutive queries share a head.
        value: `[..., kv_heads, kv_positions, value_dim]`.
        mask: Broadcast to `[..., heads, positions, kv_positions]`, with at least two axes: bool, true where a position
            is attended to, or floats that are added to the scaled products. A position that attends to nothing gives
            NaN.
        mask_variant: With `CAUSAL_MASK`, position i attends to positions 0 to i.
        scale: The factor of the products; default: `1 / sqrt(head_dim)`.

    Returns:
        `[..., heads, positions, value_dim]`.

    Raises:
        GraphError: shapes that do not fit, or a number of heads that is not known (a ValueError).

    Example:
        >>> query = key = value = x.reshape([1, 2, 3])
        >>> nn.scaled_dot_product_attention(query, key, value).shape
        [Dim(1), Dim(2), Dim(3)]
    """
    op = "scaled_dot_product_attention"
    q, k, v = operand(op, query), operand(op, key), operand(op, value)
    shape = q.shape
    if min(q.rank, k.rank, v.rank) < 3:
        shapes = ", ".join(listed(part.shape) for part in (q, k, v))
        raise graph_error(op, f"queries, keys and values must be [..., heads, positions, size], found {shapes}")
    heads, kv_heads = (_static_size(op, part, -3, "number of heads") for part in (q, k))
    if kv_heads == 0 or heads % kv_heads:
        raise graph_error(op, f"{heads} query heads cannot share {kv_heads} key heads equally")
    allowed = None if mask is None else operand(op, mask)
    if allowed is not None and allowed.rank < 2:
        raise graph_error(op, f"a mask must be [..., positions, kv_positions], found {listed(allowed.shape)}")
    grouped = heads != kv_heads
    if grouped:  # an additional axis, over which the keys and values of a group are broadcast
        q = _by_group(q, kv_heads)
        k, v = ops.unsqueeze(k, -3), ops.unsqueeze(v, -3)
        allowed = None if allowed is None else _by_group(allowed, kv_heads)
    factor = 1.0 / math.sqrt(_static_size(op, q, -1, "size of a head")) if scale is None else scale
    scores = (q * factor) @ k.T
    if mask_variant is MHAMaskVariant.CAUSAL_MASK:
        rows = ops.unsqueeze(ops.range(0, scores.shape[-2], device=scores.device), 1)
        columns = ops.range(0, scores.shape[-1], device=scores.device)
        scores = ops.where(columns <= rows, scores, -math.inf)
    if allowed is not None:
        is_choice = allowed.dtype is DType.bool
        scores = ops.where(allowed, scores, -math.inf) if is_choice else scores + allowed.cast(scores.dtype)
    out = ops.softmax(scores) @ v
    return out.reshape([*shape[:-1], out.shape[-1]]) if grouped else out


def _static_size(op: str, value: TensorValue, axis: int, what: str) -> int:
    dim = value.shape[axis]
    if not isinstance(dim, StaticDim):
        raise graph_error(op, f"the {what} must be known, found {dim} in {listed(value.shape)}")
    return dim.dim


def _by_group(value: TensorValue, kv_heads: int) -> TensorValue:
    """Return `[..., heads, a, b]` as `[..., kv_heads, group, a, b]`; one head for all stays one."""
    shape = value.shape
    if value.rank < 3:
        return value
    if infer.is_size(shape[-3], 1):
        return ops.unsqueeze(value, -3)
    heads = _static_size("scaled_dot_product_attention", value, -3, "number of heads")
    return value.reshape([*shape[:-3], kv_heads, heads // kv_heads, *shape[-2:]])


class Attention(ShardableLayer):
    """Attention over whole sequences, from `[..., positions, hidden_size]` to the same shape.

    The weights are `q_proj`, `k_proj`, `v_proj` (or `qkv_proj`) and `o_proj`, and with `use_qk_norm` also `q_norm` and
    `k_norm`. With `tensor_parallel`, each shard has some of the key heads, with the queries that share them, and the
    outputs are added.

    The keyword arguments are those of MAX's `AttentionWithRope`, without its `kv_params` and `quant_config`, and with
    `head_dim`, `o_proj_has_bias` and `quantization_encoding`; `rope` can be omitted.

    Args:
        num_attention_heads: The number of query heads.
        num_key_value_heads: The number of key heads, and of value heads; a divisor of `num_attention_heads`.
        hidden_size: The size of the last axis of input and output.
        rope: The embedding that rotates queries and keys by their positions; default: none.
        head_dim: The size of a head; default: `hidden_size // num_attention_heads`.
        devices: The devices of the layer; the weights are placed on the first. Default: the CPU.
        dtype: The dtype of the weights.
        linear_cls: The class that makes the projections, called with the keyword arguments of `Linear`.
        stacked_qkv: Whether the file has queries, keys and values stacked in one weight.
        scale: The factor of the products; default: `1 / sqrt(head_dim)`.
        has_bias: Whether queries, keys and values have a bias.
        o_proj_has_bias: Whether the output projection has a bias.
        clip_qkv: `clip_weight` of the projections to queries, keys and values.
        use_qk_norm: Whether each head of queries and keys goes through an `RMSNorm`.
        rms_norm_eps: The `eps` of these norms.
        mask_variant: Which positions a position attends to, unless the mask of a call excludes more.
        quantization_encoding: How the elements of the weights are packed.
        sharding_strategy: How the layer is split over devices.
    """

    q_proj: Linear
    """`[num_attention_heads * head_dim, hidden_size]`."""
    k_proj: Linear
    """`[num_key_value_heads * head_dim, hidden_size]`."""
    v_proj: Linear
    """As for `k_proj`."""
    qkv_proj: Linear
    """All three, stacked; replaces them with `stacked_qkv`."""
    o_proj: Linear
    """`[hidden_size, num_attention_heads * head_dim]`."""

    def __init__(
        self,
        *,
        num_attention_heads: int,
        num_key_value_heads: int,
        hidden_size: int,
        rope: RotaryEmbedding | None = None,
        head_dim: int | None = None,
        devices: Iterable[DeviceRef | str] | None = None,
        dtype: DTypeLike = DType.float32,
        linear_cls: Callable[..., Linear] = Linear,
        stacked_qkv: bool = False,
        scale: float | None = None,
        has_bias: bool = False,
        o_proj_has_bias: bool = False,
        clip_qkv: float | None = None,
        use_qk_norm: bool = False,
        rms_norm_eps: float = 1e-6,
        mask_variant: MHAMaskVariant = MHAMaskVariant.CAUSAL_MASK,
        quantization_encoding: QuantizationEncoding | str | None = None,
        sharding_strategy: ShardingStrategy | None = None,
    ) -> None:
        if num_key_value_heads < 1 or num_attention_heads % num_key_value_heads:
            raise ArgumentError(
                f"{num_attention_heads} query heads cannot share {num_key_value_heads} key heads equally",
                rule="argument.layer",
            )
        if head_dim is None and hidden_size % num_attention_heads:
            raise ArgumentError(
                f"the hidden_size {hidden_size} is not divisible by {num_attention_heads} heads; give the head_dim",
                rule="argument.layer",
            )
        self.n_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.hidden_size = hidden_size
        self.head_dim = hidden_size // num_attention_heads if head_dim is None else head_dim
        self.devices = [DeviceRef.from_device(device) for device in devices or ["cpu"]]
        self.scale = 1.0 / math.sqrt(self.head_dim) if scale is None else scale
        self.mask_variant = mask_variant
        self.stacked_qkv = stacked_qkv
        self.use_qk_norm = use_qk_norm
        self.rope = rope
        queries, keys = num_attention_heads * self.head_dim, num_key_value_heads * self.head_dim
        common: dict[str, object] = {
            "dtype": dtype,
            "device": self.devices[0],
            "quantization_encoding": quantization_encoding,
        }
        rows = {"qkv_proj": queries + 2 * keys} if stacked_qkv else {"q_proj": queries, "k_proj": keys, "v_proj": keys}
        for name, size in rows.items():
            projection = linear_cls(in_dim=hidden_size, out_dim=size, has_bias=has_bias, clip_weight=clip_qkv, **common)
            setattr(self, name, projection)
        self.o_proj = linear_cls(in_dim=queries, out_dim=hidden_size, has_bias=o_proj_has_bias, **common)
        if use_qk_norm:
            self.q_norm = RMSNorm(self.head_dim, dtype, rms_norm_eps)
            self.k_norm = RMSNorm(self.head_dim, dtype, rms_norm_eps)
        if sharding_strategy is not None:
            self.sharding_strategy = sharding_strategy

    def __call__(
        self, x: TensorValueLike, mask: TensorValueLike | None = None, *, mask_variant: MHAMaskVariant | None = None
    ) -> TensorValue:
        """Return the output of the layer.

        Args:
            x: `[..., positions, hidden_size]`.
            mask: Which positions are attended to, in addition to `mask_variant`; see `scaled_dot_product_attention`.
            mask_variant: Which positions a position attends to; default: that of the layer.

        Returns:
            `[..., positions, hidden_size]`.
        """
        hidden = operand(type(self).__name__, x)
        if hidden.rank < 2:
            raise graph_error(type(self).__name__, f"takes [..., positions, hidden_size], found {listed(hidden.shape)}")
        q, k, v = self._projected(hidden)
        if self.use_qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.rope is not None:
            q, k = self.rope(q), self.rope(k)
        q, k, v = (part.transpose(-3, -2) for part in (q, k, v))
        variant = self.mask_variant if mask_variant is None else mask_variant
        out = scaled_dot_product_attention(q, k, v, mask, mask_variant=variant, scale=self.scale)
        return self.o_proj(out.transpose(-3, -2).flatten(-2))

    def _projected(self, hidden: TensorValue) -> list[TensorValue]:
        """Return queries, keys and values: `[..., positions, heads, head_dim]`."""
        counts = [self.n_heads, self.num_key_value_heads, self.num_key_value_heads]
        if self.stacked_qkv:
            parts = ops.split(self.qkv_proj(hidden), [count * self.head_dim for count in counts], axis=-1)
        else:
            parts = [self.q_proj(hidden), self.k_proj(hidden), self.v_proj(hidden)]
        return [
            part.reshape([*part.shape[:-1], count, self.head_dim]) for part, count in zip(parts, counts, strict=True)
        ]

    def _strategies(self, strategy: ShardingStrategy) -> Mapping[str, ShardingStrategy]:
        number, kv_heads = strategy.num_devices, self.num_key_value_heads
        replicated = ShardingStrategy.replicate(number)
        if strategy.is_replicate:
            rows = stacked = shared = columns = strategy
        elif strategy.is_tensor_parallel:
            if kv_heads < number:
                raise ArgumentError(
                    f"{kv_heads} key heads cannot be split over {number} devices; replicate the layer instead",
                    rule="argument.devices",
                )
            group = self.n_heads // kv_heads * self.head_dim  # the queries that share a head stay together
            rows = ShardingStrategy.segmented(number, 0, [Segment.head_aware(kv_heads, group)])
            shared = ShardingStrategy.segmented(number, 0, [Segment.head_aware(kv_heads, self.head_dim)])
            stacked = ShardingStrategy.stacked_qkv(number, self.n_heads, self.head_dim, num_kv_heads=kv_heads)
            columns = ShardingStrategy.head_aware_columnwise(number, kv_heads, group)
        else:
            raise self._refuse(strategy, "tensor_parallel and replicate")
        return {
            "qkv_proj": stacked,
            "q_proj": rows,
            "k_proj": shared,
            "v_proj": shared,
            "o_proj": columns,
            "q_norm": replicated,
            "k_norm": replicated,
        }

    def _become_shard(self, index: int, device: DeviceRef) -> None:
        super()._become_shard(index, device)
        strategy = self._sharding_strategy
        if strategy is not None and strategy.is_tensor_parallel:
            group = self.n_heads // self.num_key_value_heads
            begin, end = Segment.head_aware(self.num_key_value_heads, 1).shard_range(index, strategy.num_devices)
            self.num_key_value_heads = end - begin
            self.n_heads = group * self.num_key_value_heads


class MultiheadAttention(Attention):
    """`Attention` with as many key heads as query heads, without rotary positions; every position attends to all.

    Args:
        num_attention_heads: The number of heads.
        hidden_size: The size of the last axis of input and output.
        devices: The device of the weights; default: the CPU. UnsupportedError for several: see `shard`.
        dtype: The dtype of the weights.
        scale: The factor of the products; default: `1 / sqrt(head_dim)`.
        qkv_has_bias: Whether queries, keys and values have a bias.
        o_proj_has_bias: Whether the output projection has a bias.
        stacked_qkv: Whether the file has queries, keys and values stacked in one weight.
    """

    def __init__(
        self,
        num_attention_heads: int,
        hidden_size: int,
        devices: Iterable[DeviceRef | str] | None = None,
        dtype: DTypeLike = DType.float32,
        scale: float | None = None,
        qkv_has_bias: bool = False,
        o_proj_has_bias: bool = False,
        stacked_qkv: bool = False,
    ) -> None:
        places = None if devices is None else list(devices)
        if places is not None and len(places) != 1:
            raise UnsupportedError(
                f"MultiheadAttention on {len(places)} devices needs MAX's collectives, which are not available here: "
                "make it on one, set sharding_strategy = ShardingStrategy.tensor_parallel(n), and add the outputs of "
                "its shards",
                rule="unsupported.kernel",
            )
        super().__init__(
            num_attention_heads=num_attention_heads,
            num_key_value_heads=num_attention_heads,
            hidden_size=hidden_size,
            devices=places,
            dtype=dtype,
            stacked_qkv=stacked_qkv,
            scale=scale,
            has_bias=qkv_has_bias,
            o_proj_has_bias=o_proj_has_bias,
            mask_variant=MHAMaskVariant.NULL_MASK,
        )
