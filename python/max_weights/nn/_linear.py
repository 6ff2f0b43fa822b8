"""The layers `Linear`, `MLP`, `Embedding` and `Identity`, and functions of one tensor that layers are built with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from max_weights._core import escape
from max_weights._devices import DeviceRef
from max_weights.errors import ArgumentError, UnsupportedError
from max_weights.graph import ops
from max_weights.graph._value import TensorValue, TensorValueLike
from max_weights.graph._weight import Weight
from max_weights.graph.ops._operands import operand
from max_weights.nn._module import Module, ShardableLayer
from max_weights.sharding._strategies import ShardingStrategy

if TYPE_CHECKING:
    from max_weights._dtype import DTypeLike
    from max_weights._quantization import QuantizationEncoding
    from max_weights.graph._value import TensorValue
    from max_weights.sharding._strategies import ShardingStrategy

__all__ = [
    "MLP",
    "Activation",
    "Embedding",
    "Identity",
    "Linear",
    "activation_function_from_name",
    "clamp",
    "require_no_quant_config",
]


Activation: TypeAlias = "Callable[[TensorValue], TensorValue]"

_BY_NAME: dict[str, Activation] = {
    "silu": ops.silu,
    "gelu": ops.gelu,
    "gelu_tanh": partial(ops.gelu, approximate="tanh"),
    "relu": ops.relu,
    "tanh": ops.tanh,
    "sigmoid": ops.sigmoid,
}


def activation_function_from_name(name: str) -> Activation:
    """Return the function named `silu`, `gelu`, `gelu_tanh`, `relu`, `tanh` or `sigmoid`.

    Args:
        name: The name.

    Raises:
        ArgumentError: there is no such function (a ValueError).

    Example:
        >>> nn.activation_function_from_name("silu")(x).shape
        [Dim(2), Dim(3)]
    """
    function = _BY_NAME.get(name)
    if function is None:
        raise ArgumentError(
            f"there is no activation function '{escape(str(name))}'; there are {', '.join(_BY_NAME)}",
            rule="argument.choice",
        )
    return function


def clamp(x: TensorValue, min: float | None = None, max: float | None = None) -> TensorValue:
    """Limit each element to at least `min` and at most `max`; `None` for no limit.

    Args:
        x: A tensor of numbers.
        min: The least value.
        max: The largest value.

    Returns:
        A tensor of the same type.

    Raises:
        GraphError: a limit does not fit the dtype (a ValueError).

    Example:
        >>> nn.clamp(x, 0.0, 1.0).shape
        [Dim(2), Dim(3)]
    """
    if min is not None:
        x = ops.max(x, min)
    if max is not None:
        x = ops.min(x, max)
    return x


def require_no_quant_config(layer: str, quant_config: object) -> None:
    """Refuse a `QuantConfig` of MAX.

    Args:
        layer: The name of the layer, for the message.
        quant_config: None.

    Raises:
        UnsupportedError: it is not None.

    Example:
        >>> from max_weights.nn._linear import require_no_quant_config
        >>> require_no_quant_config("Linear", None)
    """
    if quant_config is not None:
        raise UnsupportedError(
            f"{layer} with a quant_config is computed by kernels of MAX's compiler (fp8, fp4, int8 with scales), "
            "which are not available here: load the weights as floats (Module.load(path, dtype='float32')), without "
            "quant_config",
            rule="unsupported.kernel",
        )


class Linear(ShardableLayer):
    """A linear layer, `x @ weight.T + bias`: `[..., in_dim]` becomes `[..., out_dim]`.

    `weight` is `[out_dim, in_dim]`, `bias` is `[out_dim]`, as in files. With `rowwise`, the shards have some of the
    outputs, which are joined. With `columnwise` and `head_aware_columnwise`, they take some of the inputs, and their
    outputs are added; then only the first shard has the bias.

    Args:
        in_dim: The size of the last axis of the input.
        out_dim: The size of the last axis of the output.
        dtype: The dtype of the weights.
        device: The device of the weights.
        has_bias: Whether a bias is added.
        quantization_encoding: How the elements of `weight` are packed; see `ops.qmatmul`.
        quant_config: UnsupportedError for any value but `None`.
        name: The prefix of the names of the weights: `name.weight`, `name.bias`.
        clip_weight: Elements of the weight are first clipped to between `-clip_weight` and `clip_weight`.
        is_sharding: Create no weights: the caller sets them.
    """

    weight: Weight
    """`[out_dim, in_dim]`."""
    bias: Weight | None = None
    """`[out_dim]`; `None` without `has_bias`, and in all shards but the first of a layer that is split by columns."""

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        dtype: DTypeLike,
        device: DeviceRef | str,
        has_bias: bool = False,
        quantization_encoding: QuantizationEncoding | str | None = None,
        quant_config: None = None,
        name: str | None = None,
        clip_weight: float | None = None,
        is_sharding: bool = False,
    ) -> None:
        require_no_quant_config(type(self).__name__, quant_config)
        if clip_weight and quantization_encoding is not None:
            raise ArgumentError("clip_weight is for float weights, not for packed ones", rule="argument.layer")
        self.device = DeviceRef.from_device(device)
        self.clip_weight = clip_weight
        if is_sharding:
            return
        stem = f"{name}." if name else ""
        self.weight = Weight(f"{stem}weight", dtype, (out_dim, in_dim), self.device, quantization_encoding)
        if has_bias:
            self.bias = Weight(f"{stem}bias", dtype, (out_dim,), self.device)

    def __call__(self, x: TensorValueLike) -> TensorValue:
        """Return the product, `[..., out_dim]`, on the device of `x`.

        A packed weight needs a value before (TypeError), and takes any floats; another takes those of its dtype.
        """
        value = operand(type(self).__name__, x)
        weight = self.weight.to(value.device)
        encoding = self.weight.quantization_encoding
        if encoding is not None:
            product = ops.qmatmul(encoding, None, value, weight)
        else:
            if self.clip_weight:
                weight = clamp(weight, -self.clip_weight, self.clip_weight)
            product = value @ weight.T
        return product if self.bias is None else product + self.bias.to(value.device)

    def _strategies(self, strategy: ShardingStrategy) -> Mapping[str, ShardingStrategy]:
        if self.bias is not None and strategy.is_custom:
            raise self._refuse(strategy, "with a bias, strategies other than a custom function")
        follows = strategy.sharded_axis == 0  # the rows of the weight are the elements of the bias
        return {"weight": strategy, "bias": strategy if follows else ShardingStrategy.replicate(strategy.num_devices)}

    def _become_shard(self, index: int, device: DeviceRef) -> None:
        super()._become_shard(index, device)
        strategy = self._sharding_strategy
        if index > 0 and strategy is not None and strategy.sharded_axis in (1, -1):
            self.bias = None


class MLP(ShardableLayer):
    """The gated block `down_proj(activation(gate_proj(x)) * up_proj(x))`, from `[..., hidden_dim]` to the same shape.

    With `tensor_parallel`, each shard has some of the inner features, and the outputs are added.

    Args:
        dtype: The dtype of the weights.
        quantization_encoding: How the elements of the weights are packed.
        hidden_dim: The size of the last axis of input and output.
        feed_forward_length: The number of inner features.
        devices: The devices of the layer; the weights are placed on the first.
        linear_cls: The class that makes the three layers, called with the keyword arguments of `Linear`.
        has_bias: Whether the three layers have a bias.
        activation_function: See `activation_function_from_name`.
        quant_config: UnsupportedError for any value but `None`.
        swiglu_limit: If not 0, the gate is at most this, and the other factor between `-swiglu_limit` and this.
        is_sharding: Create none of the three layers: the caller sets them.
    """

    gate_proj: Linear
    """`[feed_forward_length, hidden_dim]`."""
    down_proj: Linear
    """`[hidden_dim, feed_forward_length]`."""
    up_proj: Linear
    """`[feed_forward_length, hidden_dim]`."""

    def __init__(
        self,
        dtype: DTypeLike,
        quantization_encoding: QuantizationEncoding | str | None,
        hidden_dim: int,
        feed_forward_length: int,
        devices: Iterable[DeviceRef | str],
        linear_cls: Callable[..., Linear] = Linear,
        has_bias: bool = False,
        activation_function: str = "silu",
        quant_config: None = None,
        swiglu_limit: float = 0.0,
        is_sharding: bool = False,
    ) -> None:
        require_no_quant_config(type(self).__name__, quant_config)
        self.devices = [DeviceRef.from_device(device) for device in devices]
        self.hidden_dim = hidden_dim
        self.feed_forward_length = feed_forward_length
        self.quantization_encoding = quantization_encoding
        self.swiglu_limit = swiglu_limit
        self.activation_function = activation_function_from_name(activation_function)
        if is_sharding:
            return
        common: dict[str, object] = {
            "dtype": dtype,
            "device": self.devices[0],
            "quantization_encoding": quantization_encoding,
            "has_bias": has_bias,
        }
        self.gate_proj = linear_cls(in_dim=hidden_dim, out_dim=feed_forward_length, **common)
        self.down_proj = linear_cls(in_dim=feed_forward_length, out_dim=hidden_dim, **common)
        self.up_proj = linear_cls(in_dim=hidden_dim, out_dim=feed_forward_length, **common)

    def __call__(self, x: TensorValueLike) -> TensorValue:
        """Return the output of the block, `[..., hidden_dim]` as `x`."""
        value = operand(type(self).__name__, x)
        gate, up = self.activation_function(self.gate_proj(value)), self.up_proj(value)
        if self.swiglu_limit > 0:
            gate, up = clamp(gate, max=self.swiglu_limit), clamp(up, -self.swiglu_limit, self.swiglu_limit)
        return self.down_proj(gate * up)

    def _strategies(self, strategy: ShardingStrategy) -> Mapping[str, ShardingStrategy]:
        number = strategy.num_devices
        if strategy.is_replicate:
            rows = columns = strategy
        elif strategy.is_tensor_parallel:
            rows, columns = ShardingStrategy.rowwise(number), ShardingStrategy.columnwise(number)
        else:
            raise self._refuse(strategy, "tensor_parallel and replicate")
        return {"gate_proj": rows, "up_proj": rows, "down_proj": columns}


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
        """Return the rows at these indices: `[..., hidden_dim]`, float32 if the table is packed."""
        numbers = operand(type(self).__name__, indices).to(self.weight.device)
        rows, encoding = ops.gather(self.weight, numbers, axis=0), self.weight.quantization_encoding
        return rows if encoding is None else ops.dequantize(encoding, rows)

    def _strategies(self, strategy: ShardingStrategy) -> Mapping[str, ShardingStrategy]:
        if not strategy.is_replicate and strategy.sharded_axis not in (1, -1):
            raise self._refuse(strategy, "columnwise and replicate")
        return {"weight": strategy}


_Value = TypeVar("_Value")


class Identity(Module):
    """A placeholder for a layer that a model may do without."""

    def __call__(self, x: _Value) -> _Value:
        """Return the value itself."""
        return x
