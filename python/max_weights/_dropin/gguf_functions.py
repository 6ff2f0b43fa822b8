"""The slow parts of GGUF files other than `gguf.GGUFReader`: decoding, maps of names, and metadata values."""

from __future__ import annotations

import contextlib
import copy
import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from max_weights._dropin.calls import Counter, Refused

if TYPE_CHECKING:
    from gguf.constants import MODEL_ARCH, GGMLQuantizationType
    from gguf.tensor_mapping import TensorNameMap

    from max_weights._buffer import Array

__all__ = ["dequantize", "get_tensor_name_map", "parse_value"]


# Types of values, by their numbers in the format, and the Python names of the scalars.
_STRING, _ARRAY = 8, 9
_SCALARS: dict[int, type[int | float]] = dict.fromkeys((0, 1, 2, 3, 4, 5, 10, 11), int) | {
    6: float,
    7: bool,
    12: float,
}


def dequantize(
    original: Callable[[Array, GGMLQuantizationType], Array], counter: Counter
) -> Callable[[Array, GGMLQuantizationType], Array]:
    """Return the replacement of `gguf.dequantize`."""
    import numpy as np
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    from max_weights._buffer import Buffer
    from max_weights._dtype import DType
    from max_weights._quantization import QuantizationEncoding
    from max_weights._quantization import dequantize as ours

    float16 = GGMLQuantizationType.F16
    floats = {float16: DType.float16, GGMLQuantizationType.BF16: DType.bfloat16}
    encodings = {encoding.ggml_type: encoding for encoding in QuantizationEncoding if encoding.is_gguf}

    def values_of(data: Array, qtype: GGMLQuantizationType) -> Array:
        if qtype not in floats:
            return np.asarray(ours(data, encodings[qtype]))
        values = np.asarray(Buffer.of(data.view(np.uint8)).view(floats[qtype]).astype(DType.float32))
        with np.errstate(invalid="ignore"):
            some_nan = np.isnan(values.max())
        if some_nan:
            raise Refused("16-bit floats with NaNs, of which NumPy keeps every bit")
        return values.view(type(data)) if qtype == float16 else values

    @functools.cache
    def is_same(qtype: GGMLQuantizationType) -> bool:
        """Whether the package decodes blocks of a type to the same bits; later versions may know others, or better."""
        size = GGML_QUANT_SIZES[qtype][1]
        blocks = (np.arange(6 * size) * 167 % 241).astype(np.uint8).reshape(2, 3 * size)
        with np.errstate(all="ignore"):
            expected = original(blocks, qtype)
        actual = values_of(blocks, qtype)
        return bool(actual.shape == expected.shape and actual.tobytes() == expected.tobytes())

    def decoded(data: Array, qtype: GGMLQuantizationType) -> Array:
        """Return the values as the original gives them; calls for which this is not certain are refused."""
        if type(data) not in (np.ndarray, np.memmap) or not data.flags.c_contiguous or not data.size:
            raise Refused("not an array in C order")
        if data.dtype != (np.float16 if qtype == float16 else np.uint8):
            raise Refused(f"an array of {data.dtype}")
        if not is_same(qtype):
            raise Refused("a type that this version of gguf decodes to different values")
        return values_of(data, qtype)

    @functools.wraps(original)
    def function(data: Array, qtype: GGMLQuantizationType) -> Array:
        values = counter.attempt(decoded, data, qtype) if counter.active else None
        return original(data, qtype) if values is None else values

    return function


def get_tensor_name_map(
    original: Callable[[MODEL_ARCH, int], TensorNameMap], counter: Counter
) -> Callable[[MODEL_ARCH, int], TensorNameMap]:
    """Return the replacement of `gguf.get_tensor_name_map`.

    A map takes 20 ms to build, and transformers requests the same one for every module of a model. While the first of
    them is in use, the others are copies of its original state.
    """
    from gguf.constants import MODEL_TENSORS
    from gguf.tensor_mapping import TensorNameMap

    built: dict[tuple[MODEL_ARCH, int], tuple[weakref.ref[TensorNameMap], TensorNameMap, object]] = {}

    def tables(arch: MODEL_ARCH) -> object:
        """Return what a map is built from; building one for another architecture changes it."""
        return list(MODEL_TENSORS[arch]), [dict(table) for table in vars(TensorNameMap).values() if type(table) is dict]

    def built_before(arch: MODEL_ARCH, n_blocks: int) -> TensorNameMap:
        entry = built.get((arch, n_blocks))
        if entry is None or entry[0]() is None or entry[2] != tables(arch):
            raise Refused("no map like it is in use")
        return _copied(entry[1])

    @functools.wraps(original)
    def function(arch: MODEL_ARCH, n_blocks: int) -> TensorNameMap:
        if not counter.active:
            return original(arch, n_blocks)
        if (name_map := counter.attempt(built_before, arch, n_blocks)) is not None:
            return name_map
        name_map = original(arch, n_blocks)
        with contextlib.suppress(Exception):  # maps of another version, which are not kept
            forget = functools.partial(built.pop, (arch, n_blocks))  # the reference is the default of pop
            built[arch, n_blocks] = weakref.ref(name_map, forget), _copied(name_map), tables(arch)
        return name_map

    return function


def _copied(name_map: TensorNameMap) -> TensorNameMap:
    """Return a new map with the same names."""
    copied = copy.copy(name_map)
    copied.mapping = dict(name_map.mapping)
    return copied


def parse_value(original: Callable[..., object], counter: Counter) -> Callable[..., object]:
    """Return the replacement of the transformers function that is called for each string of a tokenizer."""
    import numpy as np

    uint8 = np.dtype(np.uint8)

    @functools.wraps(original)
    def function(_value: Any, data_type: object) -> object:
        if counter.active:
            kind = data_type
            if isinstance(kind, list) and (len(kind) == 1 or (len(kind) == 2 and kind[0] == _ARRAY)):
                kind = kind[-1]
            if not isinstance(kind, int):
                counter.count_fallback("not a type of value")
            elif kind in _SCALARS:
                counter.count_fast()
                return _SCALARS[kind](_value[0])
            elif kind == _STRING and isinstance(_value, np.ndarray) and _value.dtype == uint8 and _value.ndim == 1:
                counter.count_fast()
                return _value.tobytes().decode()
            else:
                counter.count_fallback("neither a number nor the bytes of a string")
        return original(_value, data_type)

    return function
