"""`LayerNorm`, `ConstantLayerNorm`, `RMSNorm`, `GroupNorm`: layers that scale their input by its mean and variance."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from max_weights._devices import DeviceRef
from max_weights._dtype import DType
from max_weights.errors import ArgumentError
from max_weights.graph import ops
from max_weights.graph._value import TensorValue
from max_weights.graph._weight import Weight
from max_weights.graph.ops._operands import operand
from max_weights.nn._module import Module, ShardableLayer

if TYPE_CHECKING:
    from max_weights._dtype import DTypeLike
    from max_weights.graph._value import TensorValueLike

__all__ = ["ConstantLayerNorm", "GroupNorm", "LayerNorm", "RMSNorm"]


_CPU = DeviceRef.CPU()


def _layer_norm(value: TensorValue, weight: Weight | None, bias: Weight | None, dim: int, eps: float) -> TensorValue:
    wide = DType.float64 if value.dtype is DType.float64 else DType.float32
    scale, shift = (
        ops.constant(number, wide, value.device).broadcast_to([dim])
        if part is None
        else part.to(value.device).cast(wide)
        for part, number in ((weight, 1.0), (bias, 0.0))
    )
    return ops.layer_norm(value.cast(wide), scale, shift, eps).cast(value.dtype)


class LayerNorm(ShardableLayer):
    """Layer normalisation, `(x - mean) / sqrt(variance + eps) * weight + bias`, over the last axis.

    See `ops.layer_norm`. It is computed in float32, or in float64 for float64 input. All shards are the whole layer.

    Args:
        dims: The size of the last axis.
        devices: The devices of the layer; the weights are placed on the first.
        dtype: The dtype of the weights.
        eps: A positive number.
        use_bias: Whether a bias is added.
    """

    weight: Weight
    """`[dims]`."""
    bias: Weight | None
    """`[dims]`; `None` without `use_bias`."""

    def __init__(
        self, dims: int, devices: Iterable[DeviceRef | str], dtype: DTypeLike, eps: float = 1e-5, use_bias: bool = True
    ) -> None:
        self.devices = [DeviceRef.from_device(device) for device in devices]
        self.weight = Weight("weight", dtype, (dims,), self.devices[0])
        self.bias = Weight("bias", dtype, (dims,), self.devices[0]) if use_bias else None
        self.eps = eps
        self.dim = dims
        self.dtype = DType(dtype)

    def __call__(self, input: TensorValueLike) -> TensorValue:
        """Return `[..., dims]`, floats, normalised: a tensor of the same shape, dtype and device."""
        return _layer_norm(operand(type(self).__name__, input), self.weight, self.bias, self.dim, self.eps)


class ConstantLayerNorm(Module):
    """Layer normalisation without weights, `(x - mean) / sqrt(variance + eps)`, over the last axis.

    It is computed in float32, or in float64 for float64 input.

    Args:
        dims: The size of the last axis.
        device: Not needed here: the result is on the device of the input.
        dtype: Not needed here: the result has the dtype of the input.
        eps: A positive number.
    """

    def __init__(self, dims: int | tuple[int], device: DeviceRef | str, dtype: DTypeLike, eps: float = 1e-5) -> None:
        (self.dim,) = (dims,) if isinstance(dims, int) else dims
        self.device = DeviceRef.from_device(device)
        self.dtype = DType(dtype)
        self.eps = eps

    def __call__(self, input: TensorValueLike) -> TensorValue:
        """Return `[..., dims]`, floats, normalised: a tensor of the same shape, dtype and device."""
        return _layer_norm(operand(type(self).__name__, input), None, None, self.dim, self.eps)


class RMSNorm(ShardableLayer):
    """RMS normalisation, `x / sqrt(mean(x * x) + eps) * (weight + weight_offset)`, over the last axis.

    See `ops.rms_norm`. All shards are the whole layer.

    Args:
        dim: The size of the last axis.
        dtype: The dtype of the weight.
        eps: A positive number.
        weight_offset: Added to the weight: 1.0 for Gemma, whose files have the weight less one.
        multiply_before_cast: Whether the product is rounded to the input's dtype, as Gemma does, or the normalised
            input before it, as Llama does; there is no difference for float32.
    """

    weight: Weight
    """`[dim]`."""

    def __init__(
        self,
        dim: int,
        dtype: DTypeLike,
        eps: float = 1e-6,
        weight_offset: float = 0.0,
        multiply_before_cast: bool = True,
    ) -> None:
        self.weight = Weight("weight", dtype, (dim,), DeviceRef.CPU())
        self.dim = dim
        self.dtype = DType(dtype)
        self.eps = eps
        self.weight_offset = weight_offset
        self.multiply_before_cast = multiply_before_cast

    def __call__(self, x: TensorValueLike) -> TensorValue:
        """Return `[..., dim]`, floats, normalised: a tensor of the same shape, dtype and device."""
        value = operand(type(self).__name__, x)
        weight = self.weight.cast(value.dtype).to(value.device)
        return ops.rms_norm(value, weight, self.eps, self.weight_offset, self.multiply_before_cast)


class GroupNorm(Module):
    """Group normalisation, `(x - mean) / sqrt(variance + eps) * weight + bias`, over groups of channels.

    See `ops.group_norm`.

    Args:
        num_groups: The number of groups that the channels are split into.
        num_channels: The number of channels, a multiple of `num_groups`.
        eps: A positive number.
        affine: Whether there are a weight and a bias, in float32.
        device: The device of the weights; default: the CPU, where graphs run.
    """

    weight: Weight | None = None
    """`[num_channels]`; `None` without `affine`."""
    bias: Weight | None = None
    """As for `weight`."""

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, device: DeviceRef | str = _CPU
    ) -> None:
        if num_groups < 1 or num_channels % num_groups:
            raise ArgumentError(
                f"{num_channels} channels cannot be split into {num_groups} groups of the same size",
                rule="argument.layer",
            )
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.affine = affine
        if affine:
            self.weight = Weight("weight", DType.float32, (num_channels,), device)
            self.bias = Weight("bias", DType.float32, (num_channels,), device)

    def __call__(self, x: TensorValueLike) -> TensorValue:
        """Return `[batch, num_channels, ...]`, floats, normalised: a tensor of the same shape, dtype and device."""
        value = operand(type(self).__name__, x)
        if self.weight is None or self.bias is None:
            one, zero = (ops.constant(number, value.dtype, value.device) for number in (1.0, 0.0))
            scale, shift = one.broadcast_to([self.num_channels]), zero.broadcast_to([self.num_channels])
        else:
            scale, shift = (part.to(value.device).cast(value.dtype) for part in (self.weight, self.bias))
        return ops.group_norm(value, scale, shift, self.num_groups, self.eps)
