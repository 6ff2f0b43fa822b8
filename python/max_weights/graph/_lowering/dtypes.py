"""Dtypes in ONNX, and which of them ONNX Runtime computes with on a CPU."""

from __future__ import annotations

from max_weights._dtype import DType

__all__ = ["ONNX_TYPES", "computed_as", "wider"]

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
"""The number of each dtype in `onnx.TensorProto.DataType`; ONNX Runtime does not support those that are missing."""

_ALL = set(ONNX_TYPES)
_SINGLE = {DType.float32}
_BOOL = {DType.bool}
_FLOATS = {DType.float32, DType.float64}
_SOME = _FLOATS | {DType.int32, DType.int64}
_INTEGERS = {dtype for dtype in ONNX_TYPES if dtype.is_integral()}
_NUMBERS = _FLOATS | _INTEGERS
_MOVED = {dtype for dtype in ONNX_TYPES if not dtype.is_float8()}

# The dtypes for which ONNX Runtime has a kernel on the CPU, by operator; all others have those of `_SOME`.
_KERNELS = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Mod", "Abs", "Sign"), _NUMBERS),
    **dict.fromkeys(("Less", "LessOrEqual", "Greater", "GreaterOrEqual"), _NUMBERS),
    **dict.fromkeys(("Exp", "Log", "Sqrt", "Reciprocal", "Floor", "Ceil", "Round", "Relu"), _FLOATS),
    **dict.fromkeys(("Sin", "Cos", "Tanh", "Sigmoid", "IsNaN", "IsInf", "Gemm"), _FLOATS),
    **dict.fromkeys(("Softmax", "LogSoftmax", "LayerNormalization", "RMSNormalization"), _FLOATS),
    **dict.fromkeys(("Erf", "Gelu", "QuickGelu", "Acos", "Conv", "ConvTranspose"), _SINGLE),
    **dict.fromkeys(("AveragePool", "Resize"), _SINGLE),
    "MaxPool": _FLOATS,
    **dict.fromkeys(("And", "Or", "Xor", "Not"), _BOOL),
    **dict.fromkeys(("Reshape", "Transpose", "Identity", "Cast"), _ALL),
    **dict.fromkeys(("Gather", "GatherND", "GatherElements", "ScatterElements", "ScatterND"), _MOVED),
    **dict.fromkeys(("Concat", "Split", "Slice", "Squeeze", "Unsqueeze"), _MOVED),
    "Expand": _MOVED - {DType.bfloat16},
    "Tile": _MOVED - {DType.bfloat16, DType.float16},
    "Pad": _SOME | _BOOL | {DType.int8, DType.uint8, DType.uint32, DType.uint64},
    "Equal": _NUMBERS | _BOOL,
    "Max": _NUMBERS - {DType.int16, DType.uint16},
    "Min": _NUMBERS - {DType.int16, DType.uint16},
    "Neg": _SOME | {DType.int8},
    "Where": _SOME | {DType.uint8},
    "Range": _SOME | {DType.int16},
    "Trilu": _SOME | _BOOL,
    "NonZero": {DType.bool, DType.float32, DType.int32, DType.int64, DType.uint8},
}
_WIDER_FLOATS = (DType.float32, DType.float64)
_WIDER_INTEGERS = (DType.int32, DType.int64)


def computed_as(operator: str, dtype: DType) -> DType:
    """Return the dtype in which an ONNX operator computes tensors of `dtype`: itself, or a wider one with a kernel."""
    kernels = _KERNELS.get(operator, _SOME)
    if dtype in kernels:
        return dtype
    if dtype.is_float():
        return next((wider for wider in _WIDER_FLOATS if wider in kernels), dtype)
    if dtype is DType.bool:
        return next((wider for wider in (DType.uint8, *_WIDER_INTEGERS) if wider in kernels), dtype)
    large = dtype in (DType.uint32, DType.uint64, DType.int64)
    return next((wider for wider in _WIDER_INTEGERS[large:] if wider in kernels), dtype)


def wider(dtype: DType) -> DType:
    """Return the dtype in which an operation of several operators computes, so that its result is rounded once.

    It is float32 for narrower floats, else `dtype` itself.
    """
    return DType.float32 if dtype.is_float() and dtype is not DType.float64 else dtype
