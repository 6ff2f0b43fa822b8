"""The short way of `load_state_dict`: a look at all values at once, which can only say that every one of them fits.

A model of twenty thousand weights has a microsecond for each. So nothing here is done per weight in Python: attributes
are gathered in comprehensions, and compared by functions of C over whole lists.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from max_weights._core import Buffer
from max_weights.dtype import DType
from max_weights.graph.shape import Shape
from max_weights.graph.weights.weight_data import WeightData

if TYPE_CHECKING:
    from max_weights.graph.weight import Weight

# NumPy's C_CONTIGUOUS and ALIGNED.
_IN_ORDER = 0x101
_NOTHING = {None}


def plain(weights: list[Weight], values: list[Any]) -> list[Any] | None:
    """What is to be stored, if all is plain: arrays of NumPy, Buffers, or weights of a checkpoint, of what is declared,
    in order, no packing, no symbolic dimension, no alignment beyond that of the dtype. None if something is not.
    """
    if {weight._quantization_encoding for weight in weights} | {weight._align for weight in weights} != _NOTHING:
        return None
    (kind, *others) = set(map(type, values))
    if others:
        return None
    data = values
    if kind is WeightData:
        if {value.quantization_encoding for value in values} != _NOTHING:
            return None
        data = [value.data for value in values]
        shapes = [value._shape for value in values]
        if set(map(type, data)) != {Buffer} or set(map(type, shapes)) != {tuple}:
            return None
    elif kind is Buffer:
        shapes = [value.shape for value in values]
    elif (numpy := sys.modules.get("numpy")) is not None and kind is numpy.ndarray:
        shapes = [value.shape for value in values]
        if any(number & _IN_ORDER != _IN_ORDER for number in {value.flags.num for value in values}):
            return None
    else:
        return None
    # Lists, because a generator costs twice as much.
    if isinstance(data[0], Buffer) and {*[value.is_contiguous for value in data], *[value.aligned for value in data]} != {
        True
    }:
        return None
    if not _same_dtypes(weights, values) or not _same_shapes(weights, shapes):
        return None
    return data


def _same_dtypes(weights: list[Weight], values: list[Any]) -> bool:
    found = [value.dtype for value in values]
    declared = [weight._dtype for weight in weights]
    by_id = {id(dtype): dtype for dtype in found}
    for number, wanted in set(zip(map(id, found), map(id, declared), strict=True)):
        dtype = by_id[number]
        if type(dtype) is not DType:
            try:
                translated = DType.from_numpy(dtype)
            except ValueError:
                return False
            if dtype.alignment != translated.align:  # NumPy's flag speaks of NumPy's own
                return False
            dtype = translated
        if id(dtype) != wanted:
            return False
    return True


def _same_shapes(weights: list[Weight], shapes: list[tuple[int, ...]]) -> bool:
    # Lists of `Dim` are compared by identity first, and most of them are shared.
    dims: dict[tuple[int, ...], list[Any]] = {shape: [*Shape(shape)] for shape in set(shapes)}
    return all(map(list.__eq__, [weight._shape for weight in weights], [dims[shape] for shape in shapes]))
