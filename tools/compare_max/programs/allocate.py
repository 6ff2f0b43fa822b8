"""`allocate` on a safetensors file: dtype, shape, encoding, device."""

import numpy as np
from given import MODELS, written
from max.dtype import DType
from max.graph import DeviceRef, Dim
from max.graph.quantization import QuantizationEncoding
from max.graph.weights import load_weights

weights = load_weights([MODELS / "minilm.safetensors"])
dense = weights.pooler.dense.weight
weight = dense.allocate()
weight
weight.align  # differs: alignment
weight.original_dtype_and_shape
sorted(weights.allocated_weights)
weights.allocated_weights["pooler.dense.weight"]
dense.allocate(DType.float32, [384, 384])
dense.allocate(shape=(384, 384), device=DeviceRef.GPU(1)).device
dense.allocate(shape=["rows", "columns"])  # differs: symbolic-shapes
dense.allocate(shape=[Dim("rows"), 384])  # differs: symbolic-shapes
dense.allocate(shape=[384, 383])
dense.allocate(shape=[384])
dense.allocate(dtype=DType.float16)  # differs: allocate-dtype
dense.allocate(dtype=DType.float16).dtype  # differs: allocate-dtype
dense.allocate(quantization_encoding=QuantizationEncoding.Q4_K)
weights.pooler.allocate()
weights.absent.allocate()
sorted(weights.allocated_weights)
sorted(weights.encoder.allocated_weights)
dense.allocate() is dense.allocate()

fresh = load_weights([MODELS / "minilm.safetensors"])
fresh.pooler.dense.weight.allocate(shape=[1, 2])
sorted(fresh.allocated_weights)  # differs: all-or-nothing

odd = load_weights(
    [
        written(
            "bytes.safetensors",
            {"m": np.ones((2, 3), np.float32), "s": np.array(1.0, np.float64), "v": np.ones(5, np.int16)},
        )
    ]
)
odd.m.allocate_as_bytes()
odd.s.allocate_as_bytes()
odd.v.allocate_as_bytes()
odd.v.allocate_as_bytes(DType.uint8)
odd.v.allocate_as_bytes(DType.int16)
odd.v.allocate().align  # differs: alignment
odd.allocated_weights
