"""The unchanged examples of the documents that define the API, under this package's name."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import ROOT
from max_weights import nn
from max_weights.driver import DLPackArray
from max_weights.dtype import DType
from max_weights.engine import InferenceSession
from max_weights.graph import DeviceRef, Graph, TensorType, TensorValue, Weight, ops
from max_weights.graph.weights import WeightData, Weights, load_weights
from refusals import refuses

# Every name in the documents, and its module, with `max.` as `max_weights.`; a member after "::".
PATHS = (
    # 000
    "graph.weights.WeightData",
    "graph.weights.WeightData::astype",
    "graph.weights.WeightData::data",
    "graph.weights.WeightData::dtype",
    "graph.weights.WeightData::from_numpy",
    "graph.weights.WeightData::name",
    "graph.weights.WeightData::quantization_encoding",
    "graph.weights.WeightData::shape",
    "graph.weights.WeightData::to_buffer",
    "driver.DLPackArray",
    "driver.Buffer",
    "dtype.DType",
    "graph.Shape",
    "graph.quantization.QuantizationEncoding",
    # 001
    "graph.Graph",
    "graph.Graph::weights",
    "graph.Graph::add_weight",
    "graph.weights.Weights",
    "graph.weights.Weights::allocate",
    "graph.weights.Weights::allocated_weights",
    "graph.weights.Weights::data",
    "graph.weights.Weights::exists",
    "graph.weights.Weights::items",
    "graph.weights.Weights::name",
    "graph.DeviceRef",
    "graph.DeviceRef::GPU",
    "graph.Dim",
    # 002
    "graph.Weight",
    "graph.Weight::align",
    "graph.Weight::device",
    "graph.Weight::dtype",
    "graph.Weight::original_dtype_and_shape",
    "graph.Weight::quantization_encoding",
    "graph.Weight::shape",
    "graph.Weight::shard",
    "graph.Weight::shard_idx",
    "graph.Weight::sharding_strategy",
    "graph.TensorValue",
    "graph.ShardingStrategy",
    "graph.ops.constant",
    # 003
    "pipelines.nn.layer.Layer",
    "pipelines.nn.layer.LayerList",
    "pipelines.nn.layer.LayerList::append",
    "pipelines.nn.layer.LayerList::extend",
    "pipelines.nn.layer.LayerList::insert",
    "pipelines.nn.layer.LayerList::sublayers",
    "pipelines.nn.layer.LayerV2",
    "pipelines.nn.layer.LayerV2::layer_weights",
    "pipelines.nn.layer.LayerV2::load_state_dict",
    "pipelines.nn.layer.LayerV2::raw_state_dict",
    "pipelines.nn.layer.LayerV2::set_shared_weight",
    "pipelines.nn.layer.LayerV2::state_dict",
    "pipelines.nn.layer.LayerV2::sublayers",
    "pipelines.nn.layer.LayerV2::to",
    "pipelines.nn.layer.add_layer_hook",
    "pipelines.nn.layer.clear_hooks",
    "pipelines.nn.layer.recursive_named_layers",
    "graph.weight.Weight",
    "graph.TensorValue::print",
    "graph.Graph::output",
    "driver.Tensor",
    "driver.tensor.DLPackArray",
    # 004
    "nn.Module",
    "nn.Module::build_subgraph",
    "nn.Module::layer_weights",
    "nn.Module::load_state_dict",
    "nn.Module::raw_state_dict",
    "nn.Module::set_shared_weight",
    "nn.Module::state_dict",
    "nn.Module::sublayers",
    "graph.TensorValue::T",
    "graph.TensorValue::tensor",
    "graph.TensorValue::type",
    "graph.Type",
    "graph.ops.call",
    "graph.ops.silu",
    # Additions of api.md.
    "driver.CPU",
    "driver.Device",
    "graph.Segment",
    "graph.TensorType",
    "graph.TensorValue::broadcast_to",
    "graph.TensorValue::cast",
    "graph.TensorValue::permute",
    "graph.TensorValue::rank",
    "graph.TensorValue::reshape",
    "graph.TensorValue::transpose",
    "graph.Graph::add_subgraph",
    "graph.Graph::inputs",
    "graph.onnx.save",
    "graph.onnx.to_model",
    "graph.quantization.QuantizationConfig",
    "graph.weights.GGUFWeights",
    "graph.weights.PytorchWeights",
    "graph.weights.SafetensorWeights",
    "graph.weights.WeightsAdapter",
    "graph.weights.WeightsFormat",
    "graph.weights.load_weights",
    "graph.weights.weights_format",
    "nn.Layer",
    "nn.LayerList",
    "nn.LayerV2",
    "nn.Module::compile",
    "nn.Module::load",
    "nn.Module::named_modules",
    "nn.Module::replace_module",
    "nn.Module::summary",
    "nn.Module::to",
    "nn.Module::trace",
    "nn.layer.Layer",
    "nn.layer.LayerList",
    "nn.layer.Module",
)


@pytest.mark.parametrize("path", PATHS)
def test_every_dotted_path_of_the_documents_imports(path: str) -> None:
    full, _, member = path.partition("::")
    module, name = f"max_weights.{full}".rsplit(".", 1)
    found = getattr(importlib.import_module(module), name)
    assert not member or hasattr(found, member) or member in inspect.get_annotations(found)


@pytest.mark.parametrize("module", sorted({path.partition("::")[0].rpartition(".")[0] for path in PATHS}))
def test_modules_of_the_documents_are_imported_first_and_alone(module: str) -> None:
    names = sorted({path.partition("::")[0].rpartition(".")[2] for path in PATHS if is_in(module, path)})
    script = f"from max_weights.{module} import {', '.join(names)}"
    subprocess.run([sys.executable, "-c", script], check=True)


def is_in(module: str, path: str) -> bool:
    return path.partition("::")[0].rpartition(".")[0] == module


def test_aliases_are_the_same_objects() -> None:
    import max_weights.nn as nn
    from max_weights.pipelines.nn import layer

    for name in ("Layer", "LayerList", "LayerV2", "add_layer_hook", "clear_hooks", "recursive_named_layers"):
        assert getattr(layer, name) is getattr(nn, name)


@pytest.fixture
def weights(make_file: Callable[..., Path]) -> Any:
    """A checkpoint with the names of the examples of documents 000 and 001; one file serves the models of both."""
    square, row = np.full((768, 768), 1.5, np.float32), np.ones(4, np.float32)
    names = ("model.layer.weight", "model.embeddings.weight", "transformer.layers.0.norm", "transformer.layers.00")
    return load_weights(make_file({"model.layers.0.weight": square, **dict.fromkeys(names, row)}))


def test_the_example_of_document_000(weights: Any) -> None:
    weight_data = weights.model.layer.weight.data()
    fp16_data = weight_data.astype(DType.float16)
    assert type(fp16_data) is WeightData
    assert (fp16_data.dtype, fp16_data.shape, fp16_data.name) == (DType.float16, [4], "model.layer.weight")
    assert np.asarray(fp16_data).tolist() == [1, 1, 1, 1]


def test_the_example_of_allocate_of_document_001_on_a_checkpoint(weights: Any) -> None:
    """test_graph.py has it for `graph.weights()`."""
    graph = Graph("my_model")
    # Allocate a weight with specific configuration
    weight = weights.model.layers[0].weight.allocate(
        dtype=DType.float16,  # Convert to half precision
        shape=(768, 768),
        device=DeviceRef.GPU(0),  # Place on first GPU
    )

    # Add to graph
    with graph:
        weight_tensor = graph.add_weight(weight)
    assert weight_tensor.type == TensorType(DType.float16, [768, 768], DeviceRef.GPU(0))
    value = np.asarray(weights.allocated_weights["model.layers.0.weight"])
    assert value.dtype == np.float16
    assert (value == 1.5).all()


def test_the_examples_of_data_exists_and_items_of_document_001(
    weights: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    weight_data = weights.model.embeddings.weight.data()
    print(f"Shape: {weight_data.shape}")
    print(f"Dtype: {weight_data.dtype}")
    # Convert to different dtype
    fp16_data = weight_data.astype(DType.float16)
    assert fp16_data.dtype is DType.float16

    if weights.model.classifier.weight.exists():
        classifier = weights.model.classifier.weight.allocate(...)
        del classifier
    else:
        print("Classifier weight not found")

    # Iterate through all weights in a specific layer
    for name, weight in weights.transformer.layers[0].items():
        print(f"Found weight: {name}")
        assert weight.name == name
    assert capsys.readouterr().out.splitlines() == [
        "Shape: [Dim(4)]",
        "Dtype: DType.float32",
        "Classifier weight not found",
        "Found weight: transformer.layers.0.norm",
    ]
    with pytest.raises(KeyError):
        weights.model.classifier.weight.data()


def test_the_mlp_of_the_document_up_to_where_it_is_run() -> None:
    """The document has two mistakes: it names its parameters in_dims and out_dims, and writes in_dim and out_dim; and
    its weight is (in_dims, out_dims), which `x @ self.weight.T` does not fit.
    """

    class Linear(nn.Module):
        def __init__(self, in_dims, out_dims):  # type: ignore[no-untyped-def]
            super().__init__()
            self.weight = Weight("weight", DType.float32, (in_dims, out_dims), DeviceRef.CPU())

        def __call__(self, x):  # type: ignore[no-untyped-def]
            return x @ self.weight.T

    class MLP(nn.Module):
        def __init__(self):  # type: ignore[no-untyped-def]
            self.up = Linear(5, 10)
            self.gate = Linear(5, 10)
            self.down = Linear(10, 5)

        def __call__(self, x):  # type: ignore[no-untyped-def]
            return self.down(ops.silu(self.gate(x)) + self.up(x))

    model = MLP()
    assert str(model.state_dict()) == (
        "{'up.weight': Buffer([5, 10]), 'gate.weight': Buffer([5, 10]), 'down.weight': Buffer([10, 5])}"
    )
    model.load_state_dict({name: np.ones(value.shape, np.float32) for name, value in model.state_dict().items()})
    assert [weight.name for weight in model.raw_state_dict().values()] == ["up.weight", "gate.weight", "down.weight"]

    types = [TensorType(DType.float32, ("batch", 5), DeviceRef.CPU())]
    with Graph("mlp", input_types=types) as graph, refuses(ValueError, "graph.invalid"):
        model(*graph.inputs)

    class Corrected(Linear):
        def __call__(self, x):  # type: ignore[no-untyped-def]
            return x @ self.weight  # (in_dims, out_dims), so that nothing has to be transposed

    model.up, model.gate, model.down = Corrected(5, 10), Corrected(5, 10), Corrected(10, 5)
    model.state_dict()
    with Graph("mlp", input_types=types) as graph:
        (x,) = graph.inputs
        result = model(x)
        graph.output(result)
    assert result.shape == ("batch", 5)
    assert all(f"weight('{name}')" in str(graph) for name in model.state_dict())


def test_the_subgraph_of_document_004() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            self.weight = Weight("weight", DType.float32, (5, 5), DeviceRef.CPU())

        def __call__(self, x: TensorValue) -> TensorValue:
            return x @ self.weight.T

    class Model(nn.Module):
        def __init__(self) -> None:
            self.layers = nn.LayerList([Block(), Block(), Block()])

        def __call__(self, *h: Any) -> Any:
            input_types = [hidden.type for hidden in h]
            subgraph = self.layers[0].build_subgraph(
                "transformer_block",
                input_types=input_types,
                weight_prefix="layers.0.",
            )
            # Call it once per layer with the correct weight prefix.
            for idx in range(len(self.layers)):
                outputs = ops.call(subgraph, *h, prefix=f"layers.{idx}.")
                h = [x.tensor for x in outputs]  # type: ignore[assignment]
            return h

    model = Model()
    state = {f"layers.{i}.weight": (np.arange(25, dtype=np.float32).reshape(5, 5) - 7 * i) / 9 for i in range(3)}
    model.load_state_dict(state)
    with Graph("model", input_types=[TensorType(DType.float32, ("n", 5), DeviceRef.CPU())]) as graph:
        graph.output(*model(*graph.inputs))
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    (made,) = InferenceSession().load(graph, weights_registry=state).execute(x)
    for weight in state.values():
        x = x @ weight.T
    assert np.allclose(made.to_numpy(), x, rtol=1e-5)


def test_the_hook_of_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    from max_weights.pipelines.nn.layer import Layer, add_layer_hook, clear_hooks

    def print_info(layer, args, kwargs, outputs):  # type: ignore[no-untyped-def]
        print("Layer:", type(layer).__name__)
        print("Input args:", args)
        print("Input kwargs:", kwargs)
        print("Outputs:", outputs)
        return outputs

    class Double(Layer):
        def __call__(self, x: int) -> int:
            return 2 * x

    add_layer_hook(print_info)
    try:
        assert Double()(x=4) == 8
    finally:
        clear_hooks()
    assert capsys.readouterr().out == "Layer: Double\nInput args: (4,)\nInput kwargs: {}\nOutputs: 8\n"


def test_a_hook_may_print_values_of_a_graph_or_make_them_outputs() -> None:
    """Document 003: inputs and outputs are values, whose elements `value.print` and `graph.output` show."""

    class Scale(nn.Module):
        def __init__(self) -> None:
            self.weight = Weight("weight", DType.float32, (4,), DeviceRef.CPU())

        def __call__(self, x: Any) -> Any:
            return x * self.weight

    seen = []

    def show(layer: nn.Layer, args: tuple[Any, ...], _kwargs: dict[str, Any], outputs: Any) -> None:
        outputs.print(type(layer).__name__)
        seen.extend([*args, outputs])

    nn.add_layer_hook(show)
    try:
        with Graph("g", input_types=[TensorType(DType.float32, ("n", 4), DeviceRef.CPU())]) as graph:
            result = Scale()(graph.inputs[0])
            graph.output(*seen)
    finally:
        nn.clear_hooks()
    assert seen[0] is graph.inputs[0]
    assert seen[1] is result
    assert [(node.op, node.attributes["label"]) for node in graph.nodes if node.op == "print"] == [("print", "Scale")]
    assert len(graph.outputs) == 2


# The signatures in the documents, verbatim.
DOCUMENTED: dict[str, str] = {
    # 000
    "graph.weights.WeightData": "(data, name, dtype, shape, quantization_encoding=None)",
    "graph.weights.WeightData.astype": "(self, dtype)",
    "graph.weights.WeightData.from_numpy": "(arr, name)",
    "graph.weights.WeightData.to_buffer": "(self)",
    # 001, for the protocol and for its implementations
    "graph.weights.Weights": "(*args, **kwargs)",
    **{
        f"{tree}.{method}": signature
        for tree in ("graph.weights.Weights", "graph.weights.SafetensorWeights", "graph._declared.DeclaredWeights")
        for method, signature in {
            "allocate": "(self, dtype=None, shape=None, quantization_encoding=None, device='cpu:0')",
            "data": "(self)",
            "exists": "(self)",
            "items": "(self)",
        }.items()
    },
    # 002
    "graph.Weight": "(*args, **kwargs)",
    "graph.Weight.shard": "(self, devices)",
    # 003
    "pipelines.nn.layer.Layer": "()",
    "pipelines.nn.layer.LayerList": "(layers)",
    "pipelines.nn.layer.LayerList.append": "(self, layer)",
    "pipelines.nn.layer.LayerList.extend": "(self, layer)",
    "pipelines.nn.layer.LayerList.insert": "(self, i, layer)",
    "pipelines.nn.layer.LayerV2": "()",
    "pipelines.nn.layer.LayerV2.load_state_dict": "(self, state_dict, *, override_quantization_encoding=False)",
    "pipelines.nn.layer.LayerV2.raw_state_dict": "(self)",
    "pipelines.nn.layer.LayerV2.set_shared_weight": "(self, name, weight)",
    "pipelines.nn.layer.LayerV2.state_dict": "(self, auto_initialize=True)",
    "pipelines.nn.layer.LayerV2.to": "(self, *devices, sharding_strategy=None)",
    "pipelines.nn.layer.add_layer_hook": "(fn)",
    "pipelines.nn.layer.clear_hooks": "()",
    "pipelines.nn.layer.recursive_named_layers": "(parent, prefix='')",
    # 004
    "nn.Module": "()",
    "nn.Module.build_subgraph": "(self, name, input_types, weight_prefix='')",
    "nn.Module.load_state_dict": (
        "(self, state_dict, *, override_quantization_encoding=False, weight_alignment=None, strict=True)"
    ),
    "nn.Module.raw_state_dict": "(self)",
    "nn.Module.set_shared_weight": "(self, name, weight)",
    "nn.Module.state_dict": "(self, auto_initialize=True)",
}
_ALLOCATE = "(self, dtype=None, shape=None, quantization_encoding=None, device=None)"
_LOAD_STATE_DICT = (
    "(self, state_dict, *, override_quantization_encoding=False, weight_alignment=None, strict=True, "
    "copy_if_misaligned=False)"
)
# Deliberate differences: the signature, and its entry on the page of differences.
ON_PURPOSE: dict[str, tuple[str, str]] = {
    "graph.weights.WeightData": (
        "(data, name, dtype, shape, quantization_encoding=None, *, refusal=None)",
        "`WeightData(…, refusal=None)`",
    ),
    "graph.weights.WeightData.astype": ("(self, dtype, *, saturate=False, out=None)", "`astype(…, saturate=False, out"),
    "graph.weights.Weights.allocate": (_ALLOCATE, "`allocate(device=None)`"),
    "graph.weights.SafetensorWeights.allocate": (_ALLOCATE, "`allocate(device=None)`"),
    "graph._declared.DeclaredWeights.allocate": (_ALLOCATE, "`allocate(device=None)`"),
    "pipelines.nn.layer.LayerList": ("(layers=())", "`LayerList()` may be empty"),
    "pipelines.nn.layer.LayerList.extend": ("(self, layers)", "`extend(layers)` takes several layers"),
    "pipelines.nn.layer.LayerV2.load_state_dict": (_LOAD_STATE_DICT, "that of `LayerV2` has `strict`"),
    # Type checkers require one of the two.
    "nn.Module.build_subgraph": (
        "(self, name, input_types=None, weight_prefix='', *, inputs=None)",
        "`build_subgraph(inputs=…)`",
    ),
    "nn.Module.load_state_dict": (_LOAD_STATE_DICT, "`load_state_dict(…, copy_if_misaligned=False)`"),
}
# Signatures outside the five documents that should not change unnoticed.
SIGNATURES: dict[str, str] = {
    "graph.Weight.__init__": (
        "(self, name, dtype, shape, device, quantization_encoding=None, align=None, sharding_strategy=None)"
    ),
    "graph.ShardingStrategy.rowwise": "(num_devices)",
    "graph.ShardingStrategy.columnwise": "(num_devices)",
    "graph.ShardingStrategy.axiswise": "(axis, num_devices)",
    "graph.ShardingStrategy.replicate": "(num_devices)",
    "graph.ShardingStrategy.stacked_qkv": "(num_devices, num_heads, head_dim, *, num_kv_heads=None)",
    "graph.ShardingStrategy.head_aware_columnwise": "(num_devices, num_heads, head_dim)",
    "graph.ShardingStrategy.gate_up": "(num_devices, axis=2)",
    "graph.ShardingStrategy.segmented": "(num_devices, axis, segments)",
    "graph.ShardingStrategy.tensor_parallel": "(num_devices)",
    "graph.ShardingStrategy.expert_parallel": "(num_devices)",
    "nn.Module.to": "(self, *devices, sharding_strategy=None)",
    "nn.Module.replace_module": "(self, name, module)",
}


def bare_signature(path: str) -> str:
    """The names, kinds and defaults of the parameters."""
    parts = path.split(".")
    length = next(
        length for length in range(len(parts), 0, -1) if is_module(".".join(["max_weights", *parts[:length]]))
    )
    found: Any = importlib.import_module(".".join(["max_weights", *parts[:length]]))
    for name in parts[length:]:
        found = getattr(found, name)
    parameters = [
        one.replace(annotation=inspect.Parameter.empty) for one in inspect.signature(found).parameters.values()
    ]
    # A compiled method takes `self` by position, as in all calls.
    bound = [
        one.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD) if one.name == "self" else one for one in parameters
    ]
    return str(inspect.Signature(bound))


def is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is a class
        return False


@pytest.mark.parametrize("path", DOCUMENTED)
def test_signatures_are_those_of_the_documents(path: str) -> None:
    ours, sentence = ON_PURPOSE.get(path, (DOCUMENTED[path], ""))
    assert bare_signature(path) == ours
    assert sentence in (ROOT / "docs" / "max_differences.md").read_text()


def test_a_signature_that_differs_on_purpose_is_documented_and_differs() -> None:
    assert [path for path, (ours, _) in ON_PURPOSE.items() if DOCUMENTED[path] == ours] == []


@pytest.mark.parametrize("path", SIGNATURES)
def test_signatures_stay(path: str) -> None:
    assert bare_signature(path) == SIGNATURES[path]


def test_the_bases_of_the_documents_are_those_here(weights: Any) -> None:
    assert isinstance(weights.model.layer.weight.data(), DLPackArray)
    assert isinstance(weights, Weights)
    assert isinstance(Graph("g").weights(), Weights)
    assert issubclass(Weight, TensorValue)
    assert issubclass(nn.Module, nn.Layer)
    assert issubclass(nn.LayerV2, nn.Layer)
    # 003: the elements of lists, and lists themselves
    assert issubclass(nn.LayerList, nn.LayerV2)
    assert issubclass(nn.Linear, nn.LayerV2)
    layers = nn.LayerList([nn.Identity(), nn.LayerList()])
    assert all(isinstance(layer, nn.LayerV2) for layer in layers.sublayers.values())


OPERATIONS = """constant add sub mul div neg abs pow sqrt rsqrt exp log sin cos erf tanh sigmoid silu gelu relu softmax
logsoftmax max min mean sum argmax argmin matmul outer reshape transpose permute squeeze unsqueeze concat stack split
slice_tensor gather tile broadcast_to where cast range layer_norm rms_norm transfer_to print call"""


def test_every_operation_of_the_list_is_there() -> None:
    assert set(OPERATIONS.split()) <= set(ops.__all__)
    assert all(callable(getattr(ops, name)) for name in OPERATIONS.split())
