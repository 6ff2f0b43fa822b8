"""Operations on windows of images: pooling, and images from overlapping windows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import max_weights.graph._infer as infer
from max_weights._dim import Dim, DimLike, StaticDim, to_dim
from max_weights._shape import Shape, listed
from max_weights.graph._call_site import graph_error
from max_weights.graph._value import TensorValue
from max_weights.graph.ops._creation import constant
from max_weights.graph.ops._operands import like, operand, record, require_float
from max_weights.graph.ops._shaping import broadcast_to, pad, permute

if TYPE_CHECKING:
    from max_weights.graph._value import TensorValueLike

_Pair: TypeAlias = int | tuple[int, int]


def avg_pool2d(
    input: TensorValueLike,
    kernel_size: tuple[DimLike, DimLike],
    stride: _Pair = 1,
    dilation: _Pair = 1,
    padding: _Pair = 0,
    ceil_mode: bool = False,
    count_boundary: bool = True,
) -> TensorValue:
    """Compute the mean of each window of an image.

    Args:
        input: `[batch, height, width, channels]`, floats.
        kernel_size: The height and width of a window.
        stride: The distance between windows, one number or one for each axis.
        dilation: The distance between the elements of a window, one number or one for each axis.
        padding: The zeros on both sides of height and of width, one number or one for each axis.
        ceil_mode: Whether a last window that extends beyond the padding counts.
        count_boundary: Whether a mean is over all elements of the window, or over those inside the image.

    Returns:
        `[batch, out_height, out_width, channels]`, where the height is `(height + 2 * padding - dilation *
        (window_height - 1) - 1) // stride + 1`, one more if `ceil_mode` adds a window, and the width likewise.
    """
    pool = _Pool("avg_pool2d", input, kernel_size, stride, dilation, padding, ceil_mode)
    mean = pool.over(pool.planes, 0)
    if pool.is_padded and not count_boundary:
        shape = pool.planes.shape
        ones = broadcast_to(constant(1, mean.dtype, mean.device), [1, 1, *shape[2:]])
        mean = mean / pool.over(ones, 0)
    return permute(mean, [0, 2, 3, 1])


def max_pool2d(
    input: TensorValueLike,
    kernel_size: tuple[DimLike, DimLike],
    stride: _Pair = 1,
    dilation: _Pair = 1,
    padding: _Pair = 0,
    ceil_mode: bool = False,
) -> TensorValue:
    """Return the largest element of each window of an image; the padding does not count. See `avg_pool2d`."""
    pool = _Pool("max_pool2d", input, kernel_size, stride, dilation, padding, ceil_mode)
    return permute(pool.over(pool.planes, -math.inf), [0, 2, 3, 1])


def fold(
    input: TensorValueLike,
    output_size: tuple[DimLike, DimLike],
    kernel_size: tuple[DimLike, DimLike],
    stride: _Pair = 1,
    dilation: _Pair = 1,
    padding: _Pair = 0,
) -> TensorValue:
    """Sum overlapping windows into an image.

    Args:
        input: `[batch, channels * window_height * window_width, windows]`, floats: the columns are windows, row by row.
        output_size: The height and width of the image.
        kernel_size: The height and width of a window.
        stride: The distance between windows, one number or one for each axis.
        dilation: The distance between the elements of a window, one number or one for each axis.
        padding: The number of elements to cut off on both sides of height and of width, one number or one for each
            axis.

    Returns:
        `[batch, channels, height, width]`.
    """
    op = "fold"
    value = operand(op, input)
    require_float(op, value)
    shape = value.shape
    if len(shape) != 3:
        raise graph_error(op, f"takes [batch, channels * window, windows], found {listed(shape)}")
    window = _pair(op, "kernel_size", kernel_size, 1)
    steps, dilations, pads = _numbers(op, stride, dilation, padding)
    size = Shape(output_size)
    if len(size) != 2:
        raise graph_error(op, f"output_size must be height and width, found {listed(size)}")
    channels = shape[1] // (window[0] * window[1])
    if isinstance(shape[1], StaticDim) and channels * (window[0] * window[1]) != shape[1]:
        raise graph_error(
            op, f"the {shape[1]} rows of {listed(shape)} are not a multiple of a window of {window[0]} by {window[1]}"
        )
    both = [_reach(op, size, axis, window, dilations, pads) for axis in range(2)]
    counts = [(padded - reach + step) // step for (padded, reach), step in zip(both, steps, strict=True)]
    windows = counts[0] * counts[1]
    if isinstance(windows, StaticDim) and isinstance(shape[2], StaticDim) and windows != shape[2]:
        raise graph_error(op, f"an image {listed(size)} has {windows} windows, and {listed(shape)} has {shape[2]}")
    return record(
        op,
        [value],
        like(value, [shape[0], channels, *size]),
        kernel_size=window,
        stride=steps,
        dilation=dilations,
        padding=pads,
        minimums=_constraints(both),
    )


class _Pool:
    """The common part of both kinds of pooling: channels go before height and width, as in ONNX.

    Padding is an operation of its own; a last window that only `ceil_mode` counts gets padding that it extends into.
    """

    def __init__(
        self,
        op: str,
        x: TensorValueLike,
        kernel_size: tuple[DimLike, DimLike],
        stride: _Pair,
        dilation: _Pair,
        padding: _Pair,
        ceil_mode: bool,
    ) -> None:
        value = operand(op, x)
        require_float(op, value)
        if value.rank != 4:
            raise graph_error(op, f"takes an image [batch, height, width, channels], found {listed(value.shape)}")
        self.op, self.window = op, _pair(op, "kernel_size", kernel_size, 1)
        self.steps, self.dilations, pads = _numbers(op, stride, dilation, padding)
        more = [step - 1 if ceil_mode else 0 for step in self.steps]
        self.paddings = [0, 0, 0, 0, pads[0], pads[0] + more[0], pads[1], pads[1] + more[1]]
        self.is_padded = any(self.paddings)
        _, height, width, _ = value.shape
        both = [_reach(op, Shape([height, width]), axis, self.window, self.dilations, pads) for axis in range(2)]
        self.counts = [
            (padded - reach + (step + beyond)) // step
            for (padded, reach), beyond, step in zip(both, more, self.steps, strict=True)
        ]
        self.minimums = (*_constraints(both), *infer.some(op, value.shape, 3))
        self.planes = permute(value, [0, 3, 1, 2])

    def over(self, planes: TensorValue, outside: float) -> TensorValue:
        """Return one number for each window, where `outside` is the value beyond the image."""
        shape = [*planes.shape[:2], *self.counts]
        if self.is_padded:
            planes = pad(planes, self.paddings, value=outside)
        return record(
            self.op,
            [planes],
            like(planes, shape),
            kernel_size=self.window,
            stride=self.steps,
            dilation=self.dilations,
            minimums=self.minimums,
        )


def _reach(
    op: str, size: Shape, axis: int, window: tuple[int, int], dilations: tuple[int, int], pads: tuple[int, int]
) -> tuple[Dim, Dim]:
    """Return the padded size of an axis, and how much of it a window covers, which is not more."""
    reach = dilations[axis] * (window[axis] - 1) + 1
    padded = size[axis] + 2 * pads[axis]
    if isinstance(padded, StaticDim) and padded < reach:
        raise graph_error(
            op, f"a window of {reach} is larger than {padded}, padding included, in an image {listed(size)}"
        )
    return padded, to_dim(reach)


def _constraints(both: list[tuple[Dim, Dim]]) -> tuple[tuple[Dim, Dim], ...]:
    """Return what `_reach` assumes about sizes that are not known."""
    return tuple(pair for pair in both if not isinstance(pair[0], StaticDim))


def _numbers(op: str, stride: _Pair, dilation: _Pair, padding: _Pair) -> tuple[tuple[int, int], ...]:
    return _pair(op, "stride", stride, 1), _pair(op, "dilation", dilation, 1), _pair(op, "padding", padding, 0)


def _pair(op: str, name: str, value: object, least: int) -> tuple[int, int]:
    pair = value if isinstance(value, tuple | list) else (value, value)
    numbers = tuple(number for number in map(to_dim, pair) if isinstance(number, StaticDim))
    if len(numbers) != 2 or len(pair) != 2 or any(number < least for number in numbers):
        raise graph_error(op, f"{name} must be one number or two, each at least {least}, found {value!r}")
    return numbers[0].dim, numbers[1].dim
