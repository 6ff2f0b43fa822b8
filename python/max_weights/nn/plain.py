"""The short way of `load_state_dict`: a look at all values at once, which can only say that every one of them fits.

A model of twenty thousand weights has a microsecond for each. So nothing here is done per weight in Python: attributes
are gathered and compared by chains of `map`, which run in C.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from max_weights._core import Buffer
from max_weights.dtype import DType
from max_weights.shape import Shape
from max_weights.weight_data import WeightData

if TYPE_CHECKING:
    from max_weights.graph.weight import Weight

# NumPy's C_CONTIGUOUS and ALIGNED.
_IN_ORDER = 0x101

_dtype = attrgetter("dtype")
_shape = attrgetter("shape")
_flags = attrgetter("flags.num")
_data = attrgetter("data")
_encoding = attrgetter("quantization_encoding")
_contiguous = attrgetter("is_contiguous")
_aligned = attrgetter("aligned")
_declared_dtype = attrgetter("_dtype")
_declared_shape = attrgetter("_shape")
_declared_encoding = attrgetter("_quantization_encoding")
_declared_align = attrgetter("_align")


class _Dims(dict[Any, list[Any]]):
    """Sizes -> a list of `Dim`; what is no tuple of sizes has a list that equals no shape."""

    def __missing__(self, shape: Any) -> list[Any]:
        found: list[Any] = [*Shape(shape)] if type(shape) is tuple else [None]
        self[shape] = found
        return found


class _DTypes(dict[Any, "DType | None"]):
    """The dtype of an array -> the `DType`; none for one that NumPy's own flag of alignment says too little about."""

    def __missing__(self, dtype: Any) -> DType | None:
        found: DType | None
        try:
            found = DType.from_numpy(dtype)
        except ValueError:
            found = None
        if found is not None and dtype.alignment != found.align:
            found = None
        self[dtype] = found
        return found


def plain(weights: list[Weight], values: list[Any]) -> list[Any] | None:
    """What is to be stored, if all is plain: arrays of NumPy, Buffers, or weights of a checkpoint, of what is declared,
    in order, no packing, no symbolic dimension, no alignment beyond that of the dtype. None if something is not.
    """
    if any(map(_declared_encoding, weights)) or any(map(_declared_align, weights)):
        return None
    (kind, *others) = set(map(type, values))
    if others:
        return None
    data = values
    if kind is WeightData:
        data = list(map(_data, values))
        if any(map(_encoding, values)) or set(map(type, data)) != {Buffer}:
            return None
    dtypes: Iterable[Any] = map(_dtype, values)
    if kind is Buffer or kind is WeightData:
        if not all(map(_contiguous, data)) or not all(map(_aligned, data)):
            return None
    elif (numpy := sys.modules.get("numpy")) is not None and kind is numpy.ndarray:
        if any(number & _IN_ORDER != _IN_ORDER for number in set(map(_flags, values))):
            return None
        dtypes = map(_DTypes().__getitem__, dtypes)
    else:
        return None
    if not all(map(operator.is_, dtypes, map(_declared_dtype, weights))):
        return None
    shapes: Iterable[Any] = map(_shape, data)
    # Lists of `Dim` are compared by identity first, and most of them are shared.
    same = map(list.__eq__, map(_declared_shape, weights), map(_Dims().__getitem__, shapes))
    return data if all(same) else None
