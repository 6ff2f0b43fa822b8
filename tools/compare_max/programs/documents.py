"""The examples of the documents of the API, as far as they compile no graph."""

import numpy as np
from given import written
from max import nn
from max.dtype import DType
from max.graph import DeviceRef, Graph, TensorType, Weight, ops
from max.graph.weights import load_weights
from max.nn.layer import add_layer_hook, clear_hooks

# --- weights ------------------------------------------------------------------------------------------------------------
tensors = {
    "model.layer.weight": np.ones((4, 4), np.float32),
    "model.embeddings.weight": np.ones((8, 4), np.float32),
    "transformer.layers.0.attention.weight": np.ones((768, 768), np.float32),
    "transformer.layers.0.norm": np.ones(4, np.float32),
    "transformer.layers.1.norm": np.ones(4, np.float32),
}
weights = load_weights([written("documents.safetensors", tensors)])
weight_data = weights.model.embeddings.weight.data()

str(weight_data.shape)
str(weight_data.dtype)
weights.transformer.layers[0].mlp.weight.exists()
weights.model.classifier.weight.exists()
[name for name, _ in weights.transformer.layers[0].items()]
attention = weights.transformer.layers[0].attention.weight.allocate(dtype=DType.float32, shape=(768, 768))
attention
sorted(weights.allocated_weights)
placed = weights.transformer.layers[0].attention.weight.allocate(shape=(768, 768), device=DeviceRef.GPU(0))
placed.device
graph = Graph("my_model")
with graph:
    weight_tensor = graph.add_weight(placed)
    weight_tensor.shape
    weight_tensor.dtype
    weight_tensor.device
type(Graph("weights").weights()).__name__  # differs: graph-weights

# --- values -------------------------------------------------------------------------------------------------------------
matrix = np.array([[1, 2], [3, 4]], dtype=np.float32)
with Graph("dtype_demo") as graph:
    tensor = ops.constant(matrix, dtype=DType.float32, device=DeviceRef.CPU())
    tensor.dtype
    tensor.shape
    str(tensor.dtype)
    str(tensor.shape)
    tensor.device
    tensor.rank
    (tensor @ tensor.T).type


# --- modules ------------------------------------------------------------------------------------------------------------
class Linear(nn.Module):
    """One matrix."""

    def __init__(self, in_dims, out_dims):
        super().__init__()
        self.weight = Weight("weight", DType.float32, (in_dims, out_dims), DeviceRef.CPU())

    def __call__(self, x):
        return x @ self.weight.T


class MLP(nn.Module):
    """Two of them multiplied, and a third."""

    def __init__(self):
        self.up = Linear(10, 5)
        self.gate = Linear(10, 5)
        self.down = Linear(5, 10)

    def __call__(self, x):
        return self.down(ops.silu(self.gate(x)) + self.up(x))


model = MLP()
model.state_dict()
sorted(model.raw_state_dict())
with Graph("mlp", input_types=[TensorType(DType.float32, ("batch", 5), DeviceRef.CPU())]) as graph:
    model(graph.inputs[0]).type
    graph.output(model(graph.inputs[0]))
wrong = MLP()
with Graph("wrong", input_types=[TensorType(DType.float32, ("batch", 3), DeviceRef.CPU())]) as graph:
    wrong(graph.inputs[0]).type

shown = []


def print_info(layer, args, kwargs, outputs):
    """A hook that gives back what it was given."""
    shown.append(type(layer).__name__)
    return outputs


add_layer_hook(print_info)
with Graph("hooks", input_types=[TensorType(DType.float32, ("batch", 5), DeviceRef.CPU())]) as graph:
    model(graph.inputs[0]).type
clear_hooks()
shown
