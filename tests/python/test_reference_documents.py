"""The examples of the documents that define the API, as they are written, under this package's name."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import numpy as np
import pytest

PATHS = (
    "pipelines.nn.layer.Layer",
    "pipelines.nn.layer.LayerList",
    "pipelines.nn.layer.LayerV2",
    "pipelines.nn.layer.add_layer_hook",
    "pipelines.nn.layer.clear_hooks",
    "pipelines.nn.layer.recursive_named_layers",
    "nn.Module",
    "nn.layer.Layer",
    "nn.layer.LayerList",
    "nn.layer.Module",
    "graph.weight.Weight",
    "graph.Weight",
    "graph.DeviceRef",
    "dtype.DType",
    "driver.Tensor",
    "driver.tensor.DLPackArray",
)


@pytest.mark.parametrize("path", PATHS)
def test_dotted_paths_import(path: str) -> None:
    module, name = path.rsplit(".", 1)
    assert hasattr(importlib.import_module(f"max_weights.{module}"), name)


def test_aliases_are_the_same_objects() -> None:
    import max_weights.nn as nn
    from max_weights.pipelines.nn import layer

    for name in ("Layer", "LayerList", "LayerV2", "add_layer_hook", "clear_hooks", "recursive_named_layers"):
        assert getattr(layer, name) is getattr(nn, name)


def test_the_mlp_of_the_document_up_to_where_it_is_run() -> None:
    from max_weights import nn
    from max_weights.dtype import DType
    from max_weights.graph import DeviceRef, Graph, TensorType, Weight

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
            from max_weights.graph import ops

            return self.down(ops.silu(self.gate(x)) + self.up(x))

    model = MLP()
    assert str(model.state_dict()) == (
        "{'up.weight': Buffer([5, 10]), 'gate.weight': Buffer([5, 10]), 'down.weight': Buffer([10, 5])}"
    )
    model.load_state_dict({name: np.ones(value.shape, np.float32) for name, value in model.state_dict().items()})
    assert [weight.name for weight in model.raw_state_dict().values()] == ["up.weight", "gate.weight", "down.weight"]

    class Corrected(Linear):
        def __call__(self, x):  # type: ignore[no-untyped-def]
            return x @ self.weight  # (in_dims, out_dims), so that nothing is to be transposed

    model.up, model.gate, model.down = Corrected(5, 10), Corrected(5, 10), Corrected(10, 5)
    model.state_dict()
    with Graph("mlp", input_types=[TensorType(DType.float32, ("batch", 5), DeviceRef.CPU())]) as graph:
        (x,) = graph.inputs
        result = model(x)
        graph.output(result)
    assert result.shape == ("batch", 5)
    assert all(f"weight('{name}')" in str(graph) for name in model.state_dict())


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


SIGNATURES: dict[str, str] = {
    "nn.Module.build_subgraph": "(self, name, input_types, weight_prefix='')",
    "nn.Module.load_state_dict": (
        "(self, state_dict, *, override_quantization_encoding=False, weight_alignment=None, strict=True, "
        "copy_if_misaligned=False)"
    ),
    "nn.Module.raw_state_dict": "(self)",
    "nn.Module.set_shared_weight": "(self, name, weight)",
    "nn.Module.state_dict": "(self, auto_initialize=True)",
    "nn.LayerV2.to": "(self, *devices, sharding_strategy=None)",
    "nn.recursive_named_layers": "(parent, prefix='')",
    "nn.add_layer_hook": "(fn)",
    "nn.clear_hooks": "()",
}


@pytest.mark.parametrize("path", SIGNATURES)
def test_signatures_are_those_of_the_documents(path: str) -> None:
    module, *names = path.split(".")
    found: Any = importlib.import_module(f"max_weights.{module}")
    for name in names:
        found = getattr(found, name)
    signature = inspect.signature(found)
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    assert str(inspect.Signature(bare)) == SIGNATURES[path]
