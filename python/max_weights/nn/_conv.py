"""`Conv1D` and `Conv2d`: sums of products of filters with each window of a signal or an image."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from max_weights._devices import DeviceRef
from max_weights._dtype import DType
from max_weights.graph import ops
from max_weights.graph._type import ConvInputLayout, FilterLayout
from max_weights.graph._value import TensorValue
from max_weights.graph._weight import Weight
from max_weights.graph.ops._operands import operand
from max_weights.nn._module import ShardableLayer

if TYPE_CHECKING:
    from max_weights._dtype import DTypeLike
    from max_weights.graph._value import TensorValueLike

__all__ = ["Conv1D", "Conv2d"]


class _Convolution(ShardableLayer):
    """A filter, a bias, and how they are applied. All shards are the whole layer."""

    filter: Weight
    """The filters; the name of the weight is `weight`."""
    bias: Weight | None = None
    """`[out_channels]`; `None` without `has_bias`."""

    def __init__(
        self,
        sizes: Iterable[int],
        in_channels: int,
        out_channels: int,
        dtype: DTypeLike,
        num_groups: int,
        device: DeviceRef | str | None,
        has_bias: bool,
        permute: bool,
        name: str | None,
    ) -> None:
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.dtype = DType(dtype)
        self.device = None if device is None else DeviceRef.from_device(device)
        self.num_groups = num_groups
        self.has_bias = has_bias
        self.permute = permute
        self.name = name
        channels = in_channels // num_groups
        shape = [out_channels, channels, *sizes] if permute else [*sizes, channels, out_channels]
        place, stem = self.device or DeviceRef.CPU(), f"{name}." if name else ""
        self.filter = Weight(f"{stem}weight", dtype, shape, place)
        if has_bias:
            self.bias = Weight(f"{stem}bias", dtype, (out_channels,), place)

    def _conv2d(
        self,
        value: TensorValue,
        filter: TensorValue,
        stride: tuple[int, int],
        dilation: tuple[int, int],
        padding: tuple[int, int, int, int],
    ) -> TensorValue:
        layouts = (
            (ConvInputLayout.NCHW, FilterLayout.FCRS) if self.permute else (ConvInputLayout.NHWC, FilterLayout.RSCF)
        )
        bias = None if self.bias is None else self.bias.to(value.device)
        filter = filter.to(value.device)
        return ops.conv2d(value, filter, stride, dilation, padding, self.num_groups, bias, *layouts)


class Conv2d(_Convolution):
    """A convolution of images, from `[batch, height, width, in_channels]` to `[batch, ..., ..., out_channels]`.

    See `ops.conv2d`.

    Args:
        kernel_size: The height and width of a filter; one number for both.
        in_channels: The channels of the input.
        out_channels: The channels of the output.
        dtype: The dtype of the weights.
        stride: The distance between windows, along height and width.
        padding: The zeros around the image: above, below, left, right; two numbers for the height and the width; one
            for all.
        dilation: The distance between the elements of a window.
        num_groups: The number of groups that the channels are split into, each with separate filters.
        device: The device of the weights; default: the CPU.
        has_bias: Whether a bias is added.
        permute: Whether inputs, outputs and the weight have torch's order of axes: `[batch, channels, height, width]`
            and `[out_channels, in_channels / num_groups, height, width]`. Otherwise the weight is `[height, width,
            in_channels / num_groups, out_channels]`.
        name: The prefix of the names of the weights: `name.weight`, `name.bias`.
    """

    def __init__(
        self,
        kernel_size: int | tuple[int, int],
        in_channels: int,
        out_channels: int,
        dtype: DTypeLike,
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | tuple[int, int, int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        num_groups: int = 1,
        device: DeviceRef | str | None = None,
        has_bias: bool = False,
        permute: bool = False,
        name: str | None = None,
    ) -> None:
        self.kernel_size = _pair(kernel_size)
        self.stride = _pair(stride)
        self.dilation = _pair(dilation)
        if isinstance(padding, int):
            padding = (padding, padding)
        self.padding = (padding[0], padding[0], padding[1], padding[1]) if len(padding) == 2 else padding
        super().__init__(
            self.kernel_size, in_channels, out_channels, dtype, num_groups, device, has_bias, permute, name
        )

    def __call__(self, x: TensorValueLike) -> TensorValue:
        """Return the convolved images, with the order of axes of `x`."""
        return self._conv2d(operand(type(self).__name__, x), self.filter, self.stride, self.dilation, self.padding)


class Conv1D(_Convolution):
    """A convolution of signals, from `[batch, length, in_channels]` to `[batch, ..., out_channels]`.

    Args:
        kernel_size: The length of a filter.
        in_channels: The channels of the input.
        out_channels: The channels of the output.
        dtype: The dtype of the weights.
        stride: The distance between windows.
        padding: The zeros before and after the signal; one number for both.
        dilation: The distance between the elements of a window.
        num_groups: As for `Conv2d`.
        device: As for `Conv2d`.
        has_bias: As for `Conv2d`.
        permute: Whether inputs, outputs and the weight have torch's order of axes: `[batch, channels, length]` and
            `[out_channels, in_channels / num_groups, length]`. Otherwise the weight is `[length, in_channels /
            num_groups, out_channels]`.
        name: The prefix of the names of the weights: `name.weight`, `name.bias`.
    """

    def __init__(
        self,
        kernel_size: int,
        in_channels: int,
        out_channels: int,
        dtype: DTypeLike,
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
        dilation: int = 1,
        num_groups: int = 1,
        device: DeviceRef | str | None = None,
        has_bias: bool = False,
        permute: bool = False,
        name: str | None = None,
    ) -> None:
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = _pair(padding)
        self.dilation = dilation
        super().__init__([kernel_size], in_channels, out_channels, dtype, num_groups, device, has_bias, permute, name)

    def __call__(self, x: TensorValueLike) -> TensorValue:
        """Return the convolved signals, with the order of axes of `x`."""
        value = operand(type(self).__name__, x)
        height = 2 if self.permute else 1  # a signal is an image of height 1
        filter = ops.unsqueeze(self.filter, 2 if self.permute else 0)
        image, padding = ops.unsqueeze(value, height), (0, 0, *self.padding)
        return ops.squeeze(self._conv2d(image, filter, (1, self.stride), (1, self.dilation), padding), height)


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value
