"""`TensorSpec`: a tensor in memory, by its address."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NoReturn, SupportsIndex

from max_weights._core import shown
from max_weights.safetensors.errors import safetensor_error

__all__ = ["CODES", "TensorSpec"]

CODES = {
    "bool": "BOOL",
    "int8": "I8",
    "uint8": "U8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "float4_e2m1fn_x2": "F4",
    "complex64": "C64",
}
"""The dtypes of a `TensorSpec`: as torch and NumPy spell them, and as safetensors files do."""


class TensorSpec:
    """A tensor for `serialize` and `serialize_file`: contiguous memory, given by its address.

    You have to keep the memory alive while it is used.

    Args:
        dtype: The dtype as torch and NumPy spell it, such as "float32".
        shape: The shape, slowest dimension first. That of packed "float4_e2m1fn_x2" counts pairs along its last
            dimension, as torch does.
        data_ptr: The address.
        data_len: The number of bytes.

    Raises:
        SafetensorError: a dtype that safetensors files do not have.
        OverflowError: a negative number, or one of more than 64 bits.
    """

    __slots__ = ("_data_len", "_data_ptr", "_dtype", "_shape")

    def __init__(self, *, dtype: str, shape: Sequence[int], data_ptr: int, data_len: int) -> None:
        if not isinstance(dtype, str):
            raise TypeError(f"argument 'dtype': {type(dtype).__name__!r} object is not an instance of 'str'")
        if dtype not in CODES:
            known = ", ".join(CODES)
            raise safetensor_error(f'Unknown dtype "{shown(dtype)}". Supported dtypes: {known}')
        self._dtype = CODES[dtype]
        self._shape = [_unsigned("shape", dim) for dim in _listed(shape)]
        if self._dtype == "F4" and self._shape:
            if self._shape[-1] >= 1 << 63:
                raise safetensor_error(f"F4 last-dim {self._shape[-1]} doubled to logical shape overflows usize")
            self._shape[-1] *= 2
        self._data_ptr = _unsigned("data_ptr", data_ptr)
        self._data_len = _unsigned("data_len", data_len)

    @property
    def dtype(self) -> str:
        """The dtype as safetensors files spell it, such as "F32"."""
        return self._dtype

    @property
    def shape(self) -> list[int]:
        """The shape as written to the file, which counts the elements of packed dtypes one by one."""
        return self._shape.copy()

    @property
    def data_ptr(self) -> int:
        """The address of the first byte."""
        return self._data_ptr

    @property
    def data_len(self) -> int:
        """The number of bytes."""
        return self._data_len

    def __repr__(self) -> str:
        return (
            f"TensorSpec(dtype={self._dtype!r}, shape={self._shape}, data_ptr={self._data_ptr}, "
            f"data_len={self._data_len})"
        )

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise TypeError(f"cannot pickle {type(self).__name__!r} object: an address means nothing elsewhere")


def _listed(shape: Any) -> list[Any]:
    """Return the dimensions of a sequence or an array that is not a string."""
    if isinstance(shape, str):
        raise TypeError("argument 'shape': a sequence of integers is needed, not `str`")
    if not isinstance(shape, Sequence) and not hasattr(type(shape), "__array__"):
        name = type(shape).__name__
        raise TypeError(f"argument 'shape': {name!r} object is not an instance of 'Sequence'")
    return list(shape)


def _unsigned(argument: str, value: SupportsIndex) -> int:
    try:
        number = operator.index(value)
    except TypeError as error:
        raise TypeError(f"argument {argument!r}: {error}") from None
    if number < 0:
        raise OverflowError("can't convert negative int to unsigned")
    if number >= 1 << 64:
        raise OverflowError("int too big to convert")
    return number
