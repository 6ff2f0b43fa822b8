"""Operations on windows of images: convolution, pooling, and images from overlapping windows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeAlias

import max_weights.graph._infer as infer
from max_weights._dim import Dim, DimLike, StaticDim, to_dim
from max_weights._shape import Shape, listed
from max_weights.graph._stack import graph_error
from max_weights.graph._type import ConvInputLayout, FilterLayout
from max_weights.graph._value import TensorValue, TensorValueLike
from max_weights.graph.ops._creation import constant
from max_weights.graph.ops._operands import like, operand, operands, record, require_float
from max_weights.graph.ops._shaping import broadcast_to, pad, permute

_Pair: TypeAlias = int | tuple[int, int]
_OP = "conv2d"

# The positions of batch, height, width and channels in an input.
_INPUT = {ConvInputLayout.NHWC: (0, 1, 2, 3), ConvInputLayout.NCHW: (0, 2, 3, 1)}
# The positions of height, width, input channels and output channels in a filter.
_FILTER = {FilterLayout.RSCF: (0, 1, 2, 3), FilterLayout.FCRS: (2, 3, 1, 0)}


def conv2d(
    x: TensorValueLike,
    filter: TensorValueLike,
    stride: tuple[int, int] = (1, 1),
    dilation: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    groups: int = 1,
    bias: TensorValueLike | None = None,
    input_layout: ConvInputLayout = ConvInputLayout.NHWC,
    filter_layout: FilterLayout = FilterLayout.RSCF,
) -> TensorValue:
    """Convolve an image: sum the products of a filter with each window.

    Args:
        x: `[batch, height, width, channels]`, floats; `[batch, channels, height, width]` with `input_layout` NCHW.
        filter: `[height, width, channels / groups, out_channels]`; `[out_channels, channels / groups, height, width]`
            with `filter_layout` FCRS, as in torch.
        stride: The distance between windows, along height and width.
        dilation: The distance between the elements of a window.
        padding: The zeros around the image: above, below, left, right.
        groups: The number of groups that the channels are split into, each with separate filters.
        bias: `[out_channels]`, added to the result.
        input_layout: NHWC or NCHW; the result has the same.
        filter_layout: RSCF or FCRS.

    Returns:
        `[batch, out_height, out_width, out_channels]`, where the height is `(height + above + below - dilation *
        (filter_height - 1) - 1) // stride + 1`, and the width likewise.
    """
    arguments = [x, filter] if bias is None else [x, filter, bias]
    values = operands(_OP, *arguments)
    image, window = values[0].shape, values[1].shape
    require_float(_OP, values[0])
    if len(image) != 4 or len(window) != 4:
        raise graph_error(
            _OP, f"takes an input and a filter of 4 axes each, found {listed(image)} and {listed(window)}"
        )
    layouts = ConvInputLayout(input_layout), FilterLayout(filter_layout)
    if layouts[1] not in _FILTER:
        raise graph_error(
            _OP, f"the filter_layout of a convolution over 2 axes must be RSCF or FCRS, not {layouts[1].value}"
        )
    strides, dilations = (_counts(name, value, 2, 1) for name, value in (("stride", stride), ("dilation", dilation)))
    pads = _counts("padding", padding, 4, 0)
    (groups,) = _counts("groups", [groups], 1, 1)
    batch, *spatial, channels = (image[axis] for axis in _INPUT[layouts[0]])
    *sizes, per_group, out_channels = (window[axis] for axis in _FILTER[layouts[1]])
    if channels != per_group * groups:
        raise graph_error(
            _OP,
            f"the shapes {listed(image)} and {listed(window)} do not fit: {infer.differ(channels, per_group * groups)} "
            f"channels ({layouts[0].value}, {layouts[1].value}, groups={groups})",
        )
    if isinstance(out_channels, StaticDim) and out_channels.dim % groups:
        raise graph_error(_OP, f"the {out_channels} channels of the output are not split into {groups} groups")
    if len(values) == 3 and values[2].shape != Shape([out_channels]):
        raise graph_error(_OP, f"the bias must be [{out_channels}], found {listed(values[2].shape)}")
    both = [_covered(*row, image, window) for row in zip(spatial, sizes, dilations, (pads[:2], pads[2:]), strict=True)]
    out_sizes = [(padded - reach) // step + 1 for (padded, reach), step in zip(both, strides, strict=True)]
    out = dict(zip(_INPUT[layouts[0]], [batch, *out_sizes, out_channels], strict=True))
    return record(
        _OP,
        values,
        like(values[0], [out[axis] for axis in range(4)]),
        stride=strides,
        dilation=dilations,
        padding=pads,
        groups=groups,
        input_layout=layouts[0].value,
        filter_layout=layouts[1].value,
        minimums=tuple(pair for pair in both if not all(isinstance(dim, StaticDim) for dim in pair)),
    )


def _covered(
    size: Dim, window: Dim, dilation: int, pads: tuple[int, ...], image: Shape, filter: Shape
) -> tuple[Dim, Dim]:
    """Return the padded size of an axis, and how much of it a window covers, which is not more."""
    if infer.is_size(window, 0):
        raise graph_error(_OP, f"the filter {listed(filter)} has no elements")
    padded, reach = size + sum(pads), (window - 1) * dilation + 1
    if isinstance(padded, StaticDim) and isinstance(reach, StaticDim) and padded.dim < reach.dim:
        raise graph_error(
            _OP,
            f"the shapes {listed(image)} and {listed(filter)} do not fit: a window of {reach} is larger than {padded}, "
            "padding included",
        )
    return padded, reach


def _counts(name: str, value: Iterable[int], count: int, least: int) -> tuple[int, ...]:
    numbers = tuple(to_dim(number) for number in value)
    sizes = tuple(number.dim for number in numbers if isinstance(number, StaticDim))
    if len(sizes) != count or min(sizes) < least:
        what = "numbers" if count > 1 else "number"
        raise graph_error(_OP, f"{name} is {count} {what} of at least {least}, found {listed(numbers)}")
    return sizes


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
    value = operand(op, input, require_float)
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

    Padding is a separate operation; a last window that only `ceil_mode` counts gets padding that it extends into.
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
        value = operand(op, x, require_float)
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
