"""Checkpoints in safetensors: one file, several shards, the tree of names, tensors."""

import numpy as np
from given import MODELS, SCRATCH, written
from max.dtype import DType
from max.graph.weights import SafetensorWeights, WeightData, Weights, WeightsFormat, load_weights, weights_format

# --- which format -------------------------------------------------------------------------------------------------------
weights_format([MODELS / "minilm.safetensors"])
weights_format([MODELS / "smollm2-135m.Q4_1.gguf"])
weights_format([])
weights_format([MODELS / "minilm.safetensors", MODELS / "smollm2-135m.Q4_1.gguf"])
weights_format([MODELS / "minilm.config.json"])
[str(kind.value) for kind in WeightsFormat]  # differs: pytorch-files
load_weights([])
load_weights([SCRATCH / "not_there.safetensors"])

# --- one file -----------------------------------------------------------------------------------------------------------
weights = load_weights([MODELS / "minilm.safetensors"])
isinstance(weights, Weights)
isinstance(weights, SafetensorWeights)
weights.name
weights.exists()
weights.encoder.layer[0].name
weights["encoder"]["layer"][3].attention.self.query.weight.name
weights["encoder.layer.0"].name
weights.encoder.exists()
weights.encoder.layer[0].attention.self.query.weight.exists()
weights.absent.exists()
weights.absent.data()
weights.encoder.data()
[name for name, _ in weights.items()]  # differs: file-order
sorted(name for name, _ in weights.items())
sorted(name for name, _ in weights.encoder.layer[0].items())
[child.name == name for name, child in weights.pooler.items()]
sorted(name for name, _ in weights.absent.items())  # differs: missing-names
{name: child.data() for name, child in weights.encoder.layer[5].items()}
weights.embeddings.position_ids.data()

# --- one tensor ---------------------------------------------------------------------------------------------------------
data = weights.pooler.dense.weight.data()
isinstance(data, WeightData)
data.name
data.dtype
data.shape
data.quantization_encoding
repr(data)  # differs: printed
data.to_buffer()
type(data.to_buffer()).__name__
data.astype(DType.float32) is data
data.__dlpack_device__()
np.from_dlpack(data)

# --- dtypes of files ----------------------------------------------------------------------------------------------------
files = ["layer0.bf16.safetensors", "layer0.f16.safetensors", "layer0.f8e4m3.safetensors", "layer0.f8e5m2.safetensors"]
[{name: w.data() for name, w in load_weights([MODELS / "derived" / file]).items()} for file in files]
odd = {
    "scalar": np.array(2.5, np.float32),
    "empty": np.zeros((0, 3), np.int16),
    "flags": np.array([True, False]),
    "long": np.arange(4, dtype=np.uint64),
}
{name: w.data() for name, w in load_weights([written("odd.safetensors", odd)]).items()}

# --- shards -------------------------------------------------------------------------------------------------------------
shards = sorted((MODELS / "derived" / "sharded").glob("*.safetensors"))
sharded = load_weights(shards)
sorted(name for name, _ in sharded.items())
sharded.encoder.layer[5].output.dense.weight.data()
sharded.pooler.dense.weight.data()
whole = dict(weights.items())
[
    name
    for name, child in sharded.items()
    if not np.array_equal(np.from_dlpack(child.data()), np.from_dlpack(whole[name].data()))
]

# --- names that begin alike ---------------------------------------------------------------------------------------------
alike = load_weights([written("alike.safetensors", {f"layers.{i}.w": np.full(2, i, np.float32) for i in range(12)})])
sorted(name for name, _ in alike.layers[1].items())  # differs: whole-components
one = written("one.safetensors", {"w": np.zeros(2, np.float32)})
two = written("two.safetensors", {"w": np.ones(2, np.float32)})
load_weights([one, two]).w.data()  # differs: same-name-twice
len(load_weights([one]))  # differs: children
[child.name for child, _ in zip(load_weights([one]), range(3), strict=False)]  # differs: no-iteration
