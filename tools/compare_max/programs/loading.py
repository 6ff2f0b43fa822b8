"""`load_state_dict`: accepted and refused arguments, and the state afterwards."""

import numpy as np
from given import MODELS
from max.driver import Buffer
from max.dtype import DType
from max.graph import DeviceRef, Shape, Weight
from max.graph.quantization import QuantizationEncoding
from max.graph.weights import WeightData, load_weights
from max.nn import Module

cpu = DeviceRef.CPU()


class Holder(Module):
    """Weights by name."""

    def __init__(self, **weights):
        super().__init__()
        for name, weight in weights.items():
            setattr(self, name, weight)

    def __call__(self, x):
        return x


def holder(dtype, shape, **options):
    """A module with one weight `w`."""
    return Holder(w=Weight("w", dtype, shape, cpu, **options))


def loaded(module, value, **options):
    """The state after loading `w`: dtype, shape, encoding, and its declaration."""
    module.load_state_dict({"w": value}, **options)
    weight = module.raw_state_dict()["w"]
    return [
        weight.dtype,
        weight.shape,
        weight.quantization_encoding,
        weight.original_dtype_and_shape,
        module.state_dict()["w"],
    ]


def packed(encoding, dtype, *shape):
    """A tensor of bytes with an encoding."""
    value = np.arange(np.prod(shape), dtype=np.int64).astype(dtype).reshape(shape)
    return WeightData(value, "w", DType.from_numpy(value.dtype), Shape(shape), encoding)


ones = np.ones((2, 3), np.float32)

# --- the names ----------------------------------------------------------------------------------------------------------
two = Holder(a=Weight("a", DType.float32, (2, 3), cpu), b=Weight("b", DType.float32, (2, 3), cpu))
two.load_state_dict({"a": ones})
two.load_state_dict({"a": ones, "b": ones, "c": ones})
two.load_state_dict({"a": ones, "b": ones})
two.state_dict()
two.state_dict()["a"] is ones
two.load_state_dict({"a": ones}, strict=False)  # differs: load-report
two.load_state_dict({"a": ones * 2, "c": ones}, strict=False)  # differs: load-report
two.state_dict()["a"]
two.load_state_dict({}, strict=True)
Holder().load_state_dict({})
half = Holder(a=Weight("a", DType.float32, (2, 3), cpu), b=Weight("b", DType.float32, (2, 3), cpu))
half.load_state_dict({"a": ones}, strict=False)  # differs: load-report
half.state_dict()
half.state_dict(auto_initialize=False)

# --- the values ---------------------------------------------------------------------------------------------------------
loaded(holder(DType.float32, (2, 3)), ones)
loaded(holder(DType.float32, (2, 3)), Buffer.from_numpy(ones))
loaded(holder(DType.float32, (2, 3)), WeightData.from_numpy(ones, "w"))
loaded(holder(DType.float32, ("n", 3)), ones)
loaded(holder(DType.float32, ("n", 3)), WeightData.from_numpy(ones, "w"))  # differs: symbolic-shapes
loaded(holder(DType.float32, (3, 2)), ones)
loaded(holder(DType.float32, (6,)), ones)
loaded(holder(DType.float16, (2, 3)), ones)
loaded(holder(DType.float16, (2, 3)), WeightData.from_numpy(ones, "w"))
loaded(holder(DType.float32, (2, 3)), [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
loaded(holder(DType.float32, (2, 3)), None)
loaded(holder(DType.float32, (3, 2)), ones.T)  # differs: contiguous
loaded(holder(DType.float32, (2, 2)), ones[:, ::2])  # differs: contiguous
loaded(holder(DType.float32, ()), np.array(2.0, np.float32))
loaded(holder(DType.float32, (1,)), np.array(2.0, np.float32))
loaded(holder(DType.float32, ()), np.array([2.0], np.float32))
loaded(holder(DType.float32, ()), WeightData.from_numpy(np.array([2.0], np.float32), "w"))
loaded(holder(DType.float32, (1,)), WeightData.from_numpy(np.array(2.0, np.float32), "w"))
loaded(holder(DType.float32, (0, 3)), np.zeros((0, 3), np.float32))

# --- alignment ----------------------------------------------------------------------------------------------------------
crooked = np.zeros(33, np.uint8)[1:].view(np.float32)
aligned = np.zeros(128, np.uint8)
aligned = aligned[-aligned.ctypes.data % 64 :][:32].view(np.float32)
loaded(holder(DType.float32, (8,)), crooked)
loaded(holder(DType.float32, (8,), align=1), crooked)
loaded(holder(DType.float32, (8,)), crooked, weight_alignment=1)
loaded(holder(DType.float32, (8,)), aligned, weight_alignment=64)

# --- packed blocks ------------------------------------------------------------------------------------------------------
Q4_K, Q6_K, GPTQ = QuantizationEncoding.Q4_K, QuantizationEncoding.Q6_K, QuantizationEncoding.GPTQ
loaded(holder(DType.uint8, (2, 144), quantization_encoding=Q4_K), packed(Q4_K, np.uint8, 2, 144))
loaded(
    holder(DType.float32, (2, 256), quantization_encoding=Q4_K), packed(Q4_K, np.uint8, 2, 144)
)  # differs: logical-shapes
loaded(holder(DType.uint8, (2, 144), quantization_encoding=Q4_K), packed(None, np.uint8, 2, 144))
loaded(holder(DType.uint8, (2, 144), quantization_encoding=Q4_K), np.zeros((2, 144), np.uint8))
loaded(
    holder(DType.uint8, (2, 144), quantization_encoding=Q4_K), packed(Q6_K, np.uint8, 2, 210)
)  # differs: encodings-differ
loaded(
    holder(DType.uint8, (2, 144), quantization_encoding=Q4_K),
    packed(Q6_K, np.uint8, 2, 210),
    override_quantization_encoding=True,
)  # differs: original-shape
loaded(
    holder(DType.float32, (2, 256), quantization_encoding=Q4_K),
    packed(Q6_K, np.uint8, 2, 210),
    override_quantization_encoding=True,
)  # differs: logical-shapes
loaded(holder(DType.uint8, (2, 144)), packed(Q4_K, np.uint8, 2, 144))
loaded(holder(DType.uint8, (2, 144)), packed(Q4_K, np.uint8, 2, 144), override_quantization_encoding=True)
loaded(holder(DType.float32, (2, 256)), packed(Q4_K, np.uint8, 2, 144))
loaded(
    holder(DType.float32, (2, 256)), packed(Q4_K, np.uint8, 2, 144), override_quantization_encoding=True
)  # differs: logical-shapes
loaded(
    holder(DType.uint8, (2, 100), quantization_encoding=Q4_K), packed(Q4_K, np.uint8, 2, 144)
)  # differs: original-shape

# --- GPTQ ---------------------------------------------------------------------------------------------------------------
loaded(holder(DType.uint8, (1, 1), quantization_encoding=GPTQ), packed(None, np.int32, 4, 8))
loaded(
    holder(DType.uint8, (1, 1), quantization_encoding=GPTQ), np.arange(32, dtype=np.int32).reshape(4, 8)
)  # differs: arrays
loaded(holder(DType.uint8, (4, 32), quantization_encoding=GPTQ), packed(None, np.uint8, 4, 32))
loaded(holder(DType.uint8, (4, 32), quantization_encoding=GPTQ), packed(GPTQ, np.int32, 4, 8))
loaded(holder(DType.int32, (4, 8)), packed(GPTQ, np.int32, 4, 8))
loaded(
    holder(DType.int32, (4, 8)), packed(GPTQ, np.int32, 4, 8), override_quantization_encoding=True
)  # differs: gptq-bytes
loaded(holder(DType.uint8, (1, 1), quantization_encoding=GPTQ), packed(None, np.float16, 4, 8))

# --- a whole checkpoint -------------------------------------------------------------------------------------------------
weights = load_weights([MODELS / "minilm.safetensors"])
pooler = Holder(
    dense=Holder(
        weight=Weight("weight", DType.float32, (384, 384), cpu), bias=Weight("bias", DType.float32, (384,), cpu)
    )
)
pooler.load_state_dict({name.removeprefix("pooler."): child.data() for name, child in weights.pooler.items()})
pooler.state_dict()
{name: weight.name for name, weight in pooler.raw_state_dict().items()}
