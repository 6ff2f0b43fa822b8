"""Convolutions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import max_weights.graph._infer as infer
from max_weights._dim import Dim, StaticDim, to_dim
from max_weights._shape import Shape, listed
from max_weights.graph._call_site import graph_error
from max_weights.graph._type import ConvInputLayout, FilterLayout
from max_weights.graph._value import TensorValue
from max_weights.graph.ops._operands import like, operands, record, require_float

if TYPE_CHECKING:
    from max_weights.graph._value import TensorValueLike

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
        groups: The number of groups that the channels are split into, each with filters of its own.
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
    strides, dilations = (_numbers(name, value, 2, 1) for name, value in (("stride", stride), ("dilation", dilation)))
    pads = _numbers("padding", padding, 4, 0)
    (groups,) = _numbers("groups", [groups], 1, 1)
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
    both = [_reach(*row, image, window) for row in zip(spatial, sizes, dilations, (pads[:2], pads[2:]), strict=True)]
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


def _reach(
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


def _numbers(name: str, value: Iterable[int], count: int, least: int) -> tuple[int, ...]:
    numbers = tuple(to_dim(number) for number in value)
    sizes = tuple(number.dim for number in numbers if isinstance(number, StaticDim))
    if len(sizes) != count or min(sizes) < least:
        what = "numbers" if count > 1 else "number"
        raise graph_error(_OP, f"{name} is {count} {what} of at least {least}, found {listed(numbers)}")
    return sizes
