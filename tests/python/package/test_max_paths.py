"""The import paths of programs for MAX: existing names, and errors with reasons for the others."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from max_weights._weights import load_weights
from max_weights.dtype import DType
from refusals import refuses

HERE = {
    "_core.safetensors": ("safe_open",),
    "driver": (
        "Accelerator",
        "Buffer",
        "CPU",
        "DLPackArray",
        "Device",
        "DeviceSpec",
        "__version__",
        "accelerator_api",
        "accelerator_count",
        "devices_exist",
        "is_virtual_device_mode",
        "load_devices",
        "scan_available_devices",
    ),
    "engine": ("InferenceSession", "Model", "TensorSpec"),
    "graph": (
        "BufferType",
        "DeviceKind",
        "DimLike",
        "Graph",
        "Segment",
        "ShapeLike",
        "ShardingStrategy",
        "TensorType",
        "TensorValue",
        "Weight",
        "buffer_utils",
        "ops",
    ),
    "graph.buffer_utils": ("cast_dlpack_to", "cast_tensor_to", "cast_tensors_to"),
    "graph.dim": ("AlgebraicDim", "Dim", "DimLike", "StaticDim", "SymbolicDim"),
    "graph.quantization": ("BlockParameters", "QuantizationConfig", "QuantizationEncoding"),
    "graph.shape": ("Shape", "ShapeLike"),
    "graph.type": ("BufferType", "ConvInputLayout", "DeviceRef", "FilterLayout", "Shape", "TensorType", "Type"),
    "graph.value": ("TensorValue", "TensorValueLike", "Value"),
    "graph.weight": (
        "Segment",
        "ShardingStrategy",
        "Weight",
        "axiswise_sharding_strategy",
        "col_sharding_strategy",
        "expert_parallel_sharding_strategy",
        "gate_up_sharding_strategy",
        "head_aware_col_sharding_strategy",
        "replicate_sharding_strategy",
        "row_sharding_strategy",
        "segmented_sharding_strategy",
        "stacked_qkv_sharding_strategy",
        "tensor_parallel_sharding_strategy",
    ),
    "graph.weights": (
        "GGUFWeights",
        "SafetensorWeights",
        "WeightData",
        "Weights",
        "WeightsAdapter",
        "WeightsFormat",
        "load_weights",
        "weights_format",
    ),
    "graph.weights.weights": ("Shape", "ShapeLike", "WeightData", "Weights", "WeightsAdapter"),
    "nn": (
        "MLP",
        "ConstantLayerNorm",
        "Conv1D",
        "Conv2d",
        "Embedding",
        "Layer",
        "LayerList",
        "LayerNorm",
        "Linear",
        "Llama3RopeScalingParams",
        "Llama3RotaryEmbedding",
        "Module",
        "MultiheadAttention",
        "RMSNorm",
        "RotaryEmbedding",
        "Sequential",
        "clamp",
    ),
    "nn.activation": ("activation_function_from_name",),
    "nn.attention": ("MultiheadAttention", "num_heads_for_device"),
    "nn.conv": ("Conv1D", "Conv2d"),
    "nn.embedding": ("Embedding",),
    "nn.identity": ("Identity",),
    "nn.linear": ("MLP", "Linear"),
    "nn.norm": ("ConstantLayerNorm", "GroupNorm", "LayerNorm", "RMSNorm"),
    "nn.rotary_embedding": ("Llama3RopeScalingParams", "Llama3RotaryEmbedding", "RotaryEmbedding"),
    "nn.hooks": ("PrintHook",),
    "nn.hooks.print_hook": ("PrintHook",),
    "nn.layer": ("Layer", "LayerList", "MissingLayer", "Module", "Shardable", "add_layer_hook", "clear_hooks"),
    "nn.layer.layer": ("Layer", "Module", "Shardable", "add_layer_hook", "clear_hooks"),
    "nn.sequential": ("Sequential",),
}
ABSENT = {
    "engine.CompiledModel": "InferenceSession",
    "graph.Module": "Graph",
    "graph.weights.RandomWeights": "load_state_dict",
    "nn.AttentionWithRope": "Attention",
    "nn.ColumnParallelLinear": "shard",
    "nn.GPTQLinear": "floats",
    "nn.KVCacheParams": "cache",
    "nn.MinPSampler": "serving",
    "nn.StackedLinear": "stacked_qkv",
    "nn.attention.RaggedAttention": "cache",
    "nn.conv.Conv3D": "Conv1D and Conv2d",
    "nn.embedding.VocabParallelEmbedding": "collectives",
    "nn.linear.ColumnParallelLinear": "collectives",
    "nn.quant_config.QuantConfig": "floats",
    "graph.dtype_promotion": "promote",
    "nn.rotary_embedding.LongRoPERotaryEmbedding": "_freqs_cis",
    "nn.YarnRotaryEmbedding": "_freqs_cis",
}


@pytest.mark.parametrize("path", [f"{module}:{name}" for module, names in HERE.items() for name in (*names, "")])
def test_names_that_programs_for_max_import_are_there(path: str) -> None:
    module, _, name = path.partition(":")
    exec(f"from max_weights.{module} import {name or '__name__'}")


@pytest.mark.parametrize("module", HERE)
def test_a_module_of_max_can_be_imported_first(module: str) -> None:
    names = ", ".join(HERE[module]) or "__name__"
    subprocess.run([sys.executable, "-c", f"from max_weights.{module} import {names}"], check=True)


@pytest.mark.parametrize("path", ABSENT)
def test_names_that_are_not_here_say_what_to_do_instead(path: str) -> None:
    module, _, name = path.rpartition(".")
    with pytest.raises(ImportError, match=ABSENT[path]) as caught:
        exec(f"from max_weights.{module} import {name}")
    assert name in str(caught.value)


@pytest.mark.parametrize("path", ABSENT)
def test_asking_whether_a_name_is_here_answers_no(path: str) -> None:
    module, _, name = path.rpartition(".")
    found = importlib.import_module(f"max_weights.{module}")
    assert not hasattr(found, name)
    assert getattr(found, name, None) is None
    with pytest.raises(AttributeError, match=ABSENT[path]):
        getattr(found, name)


def test_asking_for_a_entry_point_whose_library_is_missing_answers_no() -> None:
    program = """
import sys
for library in ("jax", "numpy", "torch"):
    sys.modules[library] = None
import max_weights
for library in ("jax", "numpy", "torch"):
    assert not hasattr(max_weights, library), library
    try:
        exec(f"from max_weights import {library}")
    except ImportError as error:
        assert library in str(error), error
    else:
        raise AssertionError(library)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("module", sorted({path.rpartition(".")[0] for path in ABSENT}))
def test_other_names_are_missing_as_usual(module: str) -> None:
    found = importlib.import_module(f"max_weights.{module}")
    assert not hasattr(found, "no_such_name")
    with pytest.raises(ImportError, match="cannot import name"):
        exec(f"from max_weights.{module} import no_such_name")


def test_safe_open_of_core_safetensors_reads_a_file(models: Path) -> None:
    from max_weights._core.safetensors import safe_open

    with safe_open(models / "minilm.safetensors") as file:
        assert len(file.keys()) == 104
        assert file.metadata() == {"format": "pt"}
        bias = file.get_buffer("pooler.dense.bias")
        with refuses(LookupError, "weight.not-found"):
            file.get_buffer("pooler.dense.bais")
    assert bias.shape == (384,)
    expected = load_weights(models / "minilm.safetensors").pooler.dense.bias.data().to_buffer().to_numpy()
    assert bias.to_numpy().tobytes() == expected.tobytes()


def test_buffer_utils_cast_without_a_session() -> None:
    from max_weights.driver import CPU, Buffer
    from max_weights.graph.buffer_utils import cast_dlpack_to, cast_tensor_to, cast_tensors_to

    ones = np.ones(3, np.float32)
    cast = cast_dlpack_to(ones, DType.float32, DType.bfloat16, CPU())
    assert (cast.dtype, cast.shape) == (DType.bfloat16, (3,))
    as_bytes = np.array([0x38, 0xB8], np.uint8)
    assert cast_dlpack_to(as_bytes, DType.float8_e4m3fn, DType.float32, CPU()).to_numpy().tolist() == [1, -1]
    buffer = Buffer.from_numpy(ones)
    assert cast_tensor_to(buffer, DType.float32) is buffer
    assert [tensor.dtype for tensor in cast_tensors_to([buffer, buffer], DType.float16)] == [DType.float16] * 2
    assert cast_tensors_to(None, DType.float16) == []
