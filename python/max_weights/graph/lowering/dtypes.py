"""Dtypes in ONNX, and which of them ONNX Runtime computes with on a CPU."""

from __future__ import annotations

from max_weights.dtype import DType

__all__ = ["ONNX_TYPES", "computed_as"]

ONNX_TYPES = {
    DType.float32: 1,
    DType.uint8: 2,
    DType.int8: 3,
    DType.uint16: 4,
    DType.int16: 5,
    DType.int32: 6,
    DType.int64: 7,
    DType.bool: 9,
    DType.float16: 10,
    DType.float64: 11,
    DType.uint32: 12,
    DType.uint64: 13,
    DType.bfloat16: 16,
    DType.float8_e4m3fn: 17,
    DType.float8_e4m3fnuz: 18,
    DType.float8_e5m2: 19,
    DType.float8_e5m2fnuz: 20,
}
"""The number of each dtype in `onnx.TensorProto.DataType`; those that are missing, ONNX Runtime does not take."""

_NUMBERS = {DType.float32, DType.float64, DType.int32, DType.int64}
_BOOL = {DType.bool}
_FLOATS = {DType.float32, DType.float64}
_MOVED = set(ONNX_TYPES)

# The dtypes for which ONNX Runtime has a kernel on the CPU, by operator; every other has those of `_NUMBERS`.
_KERNELS = {
    **dict.fromkeys(("Sigmoid", "Erf", "Gelu", "QuickGelu", "Sin", "Cos", "Tanh", "LayerNormalization"), _FLOATS),
    **dict.fromkeys(("Exp", "Log", "Sqrt", "Floor", "Ceil", "Round", "Softmax", "LogSoftmax", "Atanh"), _FLOATS),
    **dict.fromkeys(("RMSNormalization", "Reciprocal", "Conv", "Resize", "AveragePool", "MaxPool"), _FLOATS),
    **dict.fromkeys(("And", "Or", "Xor", "Not"), _BOOL),
    **dict.fromkeys(("Reshape", "Transpose", "Concat", "Split", "Slice", "Expand", "Identity", "Cast"), _MOVED),
    **dict.fromkeys(("Gather", "GatherND", "GatherElements", "Squeeze", "Unsqueeze", "Tile"), _MOVED),
    "Equal": _NUMBERS | {DType.bool},
    "Where": _NUMBERS | {DType.uint8},
    "Neg": _NUMBERS | {DType.int8},
    "Erf": {DType.float32},
    "Gelu": {DType.float32},
    "QuickGelu": {DType.float32},
    "Relu": {DType.float32, DType.float64},
    "Range": _NUMBERS | {DType.int16},
    "Abs": _NUMBERS | {DType.int8, DType.int16, DType.uint8, DType.uint16, DType.uint32, DType.uint64},
    "Sign": _NUMBERS | {DType.int8, DType.int16, DType.uint8, DType.uint16, DType.uint32, DType.uint64},
    "Mod": _NUMBERS | {DType.int8, DType.int16, DType.uint8, DType.uint16, DType.uint32, DType.uint64},
    "TopK": _NUMBERS,
}
_KERNELS["Conv"] = _KERNELS["AveragePool"] = _KERNELS["Resize"] = {DType.float32}
_WIDER_FLOATS = (DType.float32, DType.float64)
_WIDER_INTEGERS = (DType.int32, DType.int64)


def computed_as(operator: str, dtype: DType) -> DType:
    """The dtype that an operator of ONNX computes tensors of `dtype` as: itself, or a wider one that there is a kernel
    for.
    """
    kernels = _KERNELS.get(operator, _NUMBERS)
    if dtype in kernels:
        return dtype
    if dtype.is_float():
        return next((wider for wider in _WIDER_FLOATS if wider in kernels and wider.size_in_bits > 8), dtype)
    if dtype is DType.bool:
        return next((wider for wider in (DType.uint8, *_WIDER_INTEGERS) if wider in kernels), dtype)
    large = dtype in (DType.uint32, DType.uint64, DType.int64)
    return next((wider for wider in _WIDER_INTEGERS[large:] if wider in kernels), dtype)
