"""Resizing of images, and the selection among overlapping boxes."""

from __future__ import annotations

import enum

import max_weights.graph._infer as infer
from max_weights._dim import DimLike
from max_weights._dtype import DType
from max_weights._shape import Shape, ShapeLike, listed
from max_weights.graph._stack import graph_error
from max_weights.graph._value import TensorValue, TensorValueLike
from max_weights.graph.ops._operands import (
    CPU,
    converted,
    is_scalar,
    like,
    operand,
    record,
    require_float,
    require_one_device,
    scalar,
)

_COORDINATES = ("half_pixel", "align_corners", "asymmetric", "half_pixel_1d")
_ROUNDINGS = ("half_down", "half_up", "floor", "ceil")


class InterpolationMode(enum.Enum):
    """How elements between those of an image are computed."""

    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"

    def __str__(self) -> str:
        return self.value


def resize(
    input: TensorValueLike, shape: ShapeLike, interpolation: InterpolationMode = InterpolationMode.BILINEAR
) -> TensorValue:
    """Resize an image.

    Args:
        input: `[batch, channels, height, width]`, floats; for the nearest element also integers of up to 16 bits.
        shape: The shape of the result, four sizes.
        interpolation: How elements between those of the image are computed.

    Returns:
        A tensor of shape `shape`.
    """
    value, mode = _image("resize", input), InterpolationMode(interpolation)
    if mode is InterpolationMode.BICUBIC:
        return resize_bicubic(value, shape)
    return resize_nearest(value, shape) if mode is InterpolationMode.NEAREST else resize_linear(value, shape)


def resize_linear(
    input: TensorValueLike, size: ShapeLike, coordinate_transform_mode: int = 0, antialias: bool = False
) -> TensorValue:
    """Resize a tensor by linear interpolation along each axis.

    Args:
        input: Any tensor of floats.
        size: The shape of the result, with as many sizes as there are axes.
        coordinate_transform_mode: The position of element `i` of the result among those of the input. The scale `s` is
            the size of the result divided by that of the input. Mode 0: `(i + 0.5) / s - 0.5`. Mode 1: the first and
            the last elements coincide. Mode 2: `i / s`. Mode 3: as 0, but 0 where the result has size 1.
        antialias: Whether more than two neighbours count where the result is smaller.

    Returns:
        A tensor of shape `size`.
    """
    coordinates = _choice("resize_linear", "coordinate_transform_mode", coordinate_transform_mode, _COORDINATES)
    return _resize("resize_linear", input, size, "linear", coordinates, antialias=bool(antialias))


def resize_nearest(
    input: TensorValueLike, size: ShapeLike, coordinate_transform_mode: int = 0, round_mode: int = 0
) -> TensorValue:
    """Resize a tensor by the nearest element.

    Args:
        input: Any tensor of floats, or of integers of up to 16 bits.
        size: The shape of the result, with as many sizes as there are axes.
        coordinate_transform_mode: As in `resize_linear`.
        round_mode: Which element is the nearest: 0 the lower one of two, 1 the upper one; 2 always the one below, 3 the
            one above.

    Returns:
        A tensor of shape `size`.
    """
    coordinates = _choice("resize_nearest", "coordinate_transform_mode", coordinate_transform_mode, _COORDINATES)
    rounding = _choice("resize_nearest", "round_mode", round_mode, _ROUNDINGS)
    value = operand("resize_nearest", input)
    exact = value.dtype.is_integral() and value.dtype.size_in_bits <= 16
    floats = converted(value, DType.float32) if exact else value
    return converted(_resize("resize_nearest", floats, size, "nearest", coordinates, rounding=rounding), value.dtype)


def resize_bicubic(input: TensorValueLike, size: ShapeLike) -> TensorValue:
    """Resize an image by cubic curves through four neighbours along height and width, as torch does.

    Args:
        input: `[batch, channels, height, width]`, floats.
        size: The shape of the result, four sizes.

    Returns:
        A tensor of shape `size`.
    """
    value = _image("resize_bicubic", input)
    return _resize("resize_bicubic", value, size, "cubic", "half_pixel")


def non_maximum_suppression(
    boxes: TensorValueLike,
    scores: TensorValueLike,
    max_output_boxes_per_class: TensorValueLike,
    iou_threshold: TensorValueLike,
    score_threshold: TensorValueLike,
    out_dim: DimLike = "num_selected",
) -> TensorValue:
    """Select the best boxes of each class that do not overlap better ones too much.

    Args:
        boxes: `[batch, boxes, 4]`, floats: y and x of one corner, then of the opposite one.
        scores: `[batch, classes, boxes]`, of the same dtype.
        max_output_boxes_per_class: The most boxes for a class of an image: a number, or a scalar.
        iou_threshold: Boxes overlap too much if their intersection is more than this part of their union.
        score_threshold: The least score of a box.
        out_dim: The number of boxes that are left, as a number or a name: it is known only when the graph is run.

    Returns:
        int64, `[out_dim, 3]`: the numbers of the image, of the class and of the box.
    """
    op = "non_maximum_suppression"
    value, ratings = operand(op, boxes), operand(op, scores)
    require_float(op, value)
    require_one_device(op, [value, ratings])
    if value.dtype is not ratings.dtype:
        raise graph_error(
            op, f"{value.dtype!r} and {ratings.dtype!r} are different dtypes; convert one with `.cast(...)`"
        )
    shapes = value.shape, ratings.shape
    if [len(shape) for shape in shapes] != [3, 3] or not infer.is_size(shapes[0][2], 4):
        both = " and ".join(map(listed, shapes))
        raise graph_error(op, f"takes [batch, boxes, 4] and [batch, classes, boxes], found {both}")
    infer.same(op, [Shape([shapes[0][0], shapes[0][1]]), Shape([shapes[1][0], shapes[1][2]])], None)
    limits = [
        _limit(op, name, bound, kind)
        for name, bound, kind in (
            ("max_output_boxes_per_class", max_output_boxes_per_class, DType.int64),
            ("iou_threshold", iou_threshold, DType.float32),
            ("score_threshold", score_threshold, DType.float32),
        )
    ]
    return record(op, [value, ratings, *limits], like(value, [out_dim, 3], DType.int64))


def _limit(op: str, name: str, bound: TensorValueLike, kind: DType) -> TensorValue:
    if is_scalar(bound):
        return scalar(op, bound, kind, CPU)
    value = operand(op, bound)
    if value.rank or value.dtype.is_float() is not kind.is_float():
        raise graph_error(op, f"{name} is a number or a scalar of {kind!r}, found {value.type}")
    return converted(value, kind)


def _resize(
    op: str, x: TensorValueLike, size: ShapeLike, mode: str, coordinates: str, **attributes: bool | str
) -> TensorValue:
    value, shape = operand(op, x), Shape(size)
    require_float(op, value)
    if len(shape) != value.rank:
        raise graph_error(
            op, f"a size needs as many axes as the tensor, found {listed(shape)} for {listed(value.shape)}"
        )
    return record("resize", [value], like(value, shape), mode=mode, coordinates=coordinates, **attributes)


def _image(op: str, x: TensorValueLike) -> TensorValue:
    value = operand(op, x)
    if value.rank != 4:
        raise graph_error(op, f"takes an image [batch, channels, height, width], found {listed(value.shape)}")
    return value


def _choice(op: str, name: str, number: int, choices: tuple[str, ...]) -> str:
    if isinstance(number, bool) or number not in range(len(choices)):
        raise graph_error(op, f"{name} is 0 to {len(choices) - 1}, not {number!r}")
    return choices[number]
