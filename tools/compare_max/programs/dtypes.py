"""`DType`, encodings and their parameters."""

import numpy as np
from max.dtype import DType, finfo
from max.graph.quantization import BlockParameters, QuantizationConfig, QuantizationEncoding

common = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
]
fp8 = ["float8_e8m0fnu", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]
sub_byte = ["float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"]
for name in [*common, "bfloat16", *fp8, *sub_byte]:
    dtype = DType[name]
    dtype.value
    str(dtype)
    repr(dtype)
    dtype.size_in_bits
    dtype.align
    [dtype.is_integral(), dtype.is_float(), dtype.is_half(), dtype.is_float8()]
    [dtype.is_signed_integral(), dtype.is_unsigned_integral()]
    finfo(dtype).bits
    [finfo(dtype).max, finfo(dtype).min, finfo(dtype).tiny, finfo(dtype).eps]
    finfo(dtype).smallest_normal
for name in [*common, "bfloat16", *fp8]:
    DType[name].size_in_bytes
for name in common:
    str(np.dtype(DType[name].to_numpy()))
    DType.from_numpy(DType[name].to_numpy()).name
for name in ["bfloat16", *fp8, *sub_byte]:
    str(np.dtype(DType[name].to_numpy()))  # differs: ml-dtypes
for name in sub_byte:
    DType[name].size_in_bytes  # differs: sub-byte
for code in "?bhilBHILefd":
    DType.from_numpy(np.dtype(code)).name
DType.from_numpy(np.dtype("U3"))
DType.from_numpy(np.float32)
DType(81)
DType(999)
DType("float32")  # differs: names
DType("no such")  # differs: no-such-dtype
DType["no such"]
DType.float32 == DType.float32
DType.float32 < DType.float64
DType.float32 == 81
hash(DType.float32) == hash(DType.float32)
len({DType.float32, DType.float64, DType.float32})
DType.float32.name

for name in ("Q4_0", "Q4_K", "Q5_K", "Q6_K"):
    encoding = QuantizationEncoding[name]
    encoding.name
    encoding.value
    encoding.elements_per_block
    encoding.block_size
    encoding.block_parameters.elements_per_block
    encoding.block_parameters.block_size
    encoding.is_gguf
    str(encoding)
QuantizationEncoding.GPTQ.name
QuantizationEncoding.GPTQ.value
QuantizationEncoding.GPTQ.is_gguf
QuantizationEncoding.GPTQ.elements_per_block  # differs: gptq-blocks
QuantizationEncoding.GPTQ.block_size  # differs: gptq-blocks
QuantizationEncoding.GPTQ.block_parameters  # differs: gptq-blocks
[QuantizationEncoding[name].block_size for name in ("Q8_0", "Q2_K")]  # differs: encodings
QuantizationEncoding("Q4_K")
QuantizationEncoding("q4_k")  # differs: names
QuantizationEncoding["no such"]
[BlockParameters(32, 18).elements_per_block, BlockParameters(32, 18).block_size]
config = QuantizationConfig(quant_method="gptq", bits=4, group_size=128)
[config.quant_method, config.bits, config.group_size, config.desc_act, config.sym]
config == QuantizationConfig("gptq", 4, 128)
DType.finfo(DType.bfloat16).max
DType.float32.finfo is DType.finfo
DType.finfo is finfo
DType.finfo(DType.int32)
