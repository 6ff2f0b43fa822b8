"""Checkpoints in GGUF: names, packed blocks, encodings."""

from given import MODELS
from max.dtype import DType
from max.graph.quantization import QuantizationEncoding
from max.graph.weights import GGUFWeights, Weights, load_weights

weights = load_weights([MODELS / "smollm2-135m.Q4_1.gguf"])
isinstance(weights, GGUFWeights)
isinstance(weights, Weights)
weights.name
weights.blk[0].attn_norm.weight.name
weights.blk[0].attn_norm.weight.exists()
weights.blk[0].exists()
[name for name, _ in weights.items()]
sorted(name for name, _ in weights.blk[3].items())
weights.blk[0].attn_norm.weight.data()
weights.output_norm.weight.data()
weights.absent.data()
weights.blk[0].attn_q.weight.data()  # differs: encodings
weights.token_embd.weight.data()  # differs: encodings
{name: w.data() for name, w in weights.items() if name.endswith("norm.weight")}

norm = weights.blk[1].attn_norm.weight.allocate()
norm
norm.quantization_encoding
norm.original_dtype_and_shape
weights.blk[1].attn_norm.weight.allocate(DType.float16)  # differs: allocate-dtype
weights.blk[1].attn_norm.weight.allocate(DType.float32, [576])
weights.blk[1].attn_norm.weight.allocate(DType.float32, [575])
weights.blk[1].attn_norm.weight.allocate(quantization_encoding=QuantizationEncoding.Q4_K)
weights.absent.allocate()
sorted(weights.allocated_weights)

# --- a file with one tensor of each encoding ----------------------------------------------------------------------------
quants = load_weights([MODELS / "derived" / "minilm-ffn-allquants.gguf"])
known = ("Q4_0", "Q4_K", "Q5_K", "Q6_K")
in_both = {name: node for name, node in quants.items() if name.split(".")[2] in known}
for name, node in in_both.items():
    node.data().quantization_encoding
    node.data()
    node.allocate()
    node.allocate().original_dtype_and_shape
for name in [name for name, _ in quants.items() if name not in in_both]:
    quants[name].data()  # differs: encodings
    quants[name].allocate()  # differs: encodings
names = [name for name, _ in quants.items()]
q6 = next((name for name in names if "q6" in name.lower()), names[0])
quants[q6].allocate(quantization_encoding=QuantizationEncoding.Q4_K)
quants[q6].allocate(dtype=DType.float32)  # differs: allocate-dtype
quants[q6].allocate(dtype=DType.uint8)
