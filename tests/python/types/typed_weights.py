"""The static types after each hop from a path to a tensor. Checked by mypy and basedpyright, never run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, assert_type

import jax
import numpy as np
import numpy.typing as npt
import torch

import max_weights
from max_weights import DType, WeightData, load_ranks
from max_weights._core import WeightInfo
from max_weights._quantized_weights import QuantizedWeight, QuantizedWeights
from max_weights._streaming import WeightStream
from max_weights._weights import WeightsNode
from max_weights._weights_format import WeightsFormat
from max_weights.driver import Buffer, Device
from max_weights.graph import DeviceRef, Shape, Weight
from max_weights.graph.quantization import QuantizationEncoding
from max_weights.graph.weights import GGUFWeights, SafetensorWeights, Weights, load_weights, weights_format
from max_weights.sharding import Shard
from max_weights.types import Finding


def hops(path: Path) -> None:
    """From a path to an array."""
    weights = load_weights(path)
    node = weights.model.layers[0]["mlp.up"].weight
    assert_type(node.name, str)
    assert_type(node.exists(), bool)
    assert_type(node.data(), WeightData)
    assert_type(node.data().dtype, DType)
    assert_type(node.data().shape, Shape)
    assert_type(node.data().quantization_encoding, QuantizationEncoding | None)
    assert_type(node.data().astype(DType.float32), WeightData)
    assert_type(node.data().to_buffer(), Buffer)
    array: npt.NDArray[np.float32] = node.data().to_buffer().to_numpy()
    assert_type(array.shape, tuple[Any, ...])
    assert_type(node.allocate(), Weight)
    assert_type(len(node), int)
    for name, child in weights.model.items():
        assert_type(name, str)
        assert_type(child.data(), WeightData)
    for info in max_weights.infos(weights):
        assert_type(info, WeightInfo)
        assert_type(info.name, str)
        assert_type(info.bytes, int)
    with load_weights([path]) as opened:
        assert_type(opened.a.b[0].c.data().to_buffer().shape, tuple[int, ...])
    assert_type(max_weights.load_weights("model.gguf").output.weight.data(), WeightData)
    assert_type(weights_format([path]), WeightsFormat)


def tensors(path: Path, framework: str) -> None:
    """The type of loaded tensors is that of the framework."""
    weights = load_weights(path)
    assert_type(weights.load(), dict[str, Buffer])
    assert_type(weights.load("a", dtype="float16", copy=True), dict[str, Buffer])
    assert_type(weights.load(framework="numpy"), dict[str, npt.NDArray[Any]])
    assert_type(weights.load(framework="torch", device="cuda"), dict[str, torch.Tensor])
    assert_type(weights.load(framework="jax"), dict[str, jax.Array])
    assert_type(weights.load(framework=framework), dict[str, Any])
    assert_type(weights.stream(), WeightStream[Buffer])
    assert_type(weights.stream(framework="jax", max_memory="1GB"), WeightStream[jax.Array])
    assert_type(weights.stream(framework=framework), WeightStream[Any])
    with weights.stream("a", framework="numpy", reuse=True) as stream:
        assert_type(dict(stream), dict[str, npt.NDArray[Any]])
    for name, tensor in weights.stream(framework="torch", dtype="bfloat16"):
        assert_type(name, str)
        assert_type(tensor, torch.Tensor)
    ranks = load_ranks(weights, [Shard(rank, 2, "llama") for rank in range(2)], ["cuda:0", "cuda:1"], framework="torch")
    assert_type(ranks, list[dict[str, torch.Tensor]])
    lazy = max_weights.lazy_state_dict(weights, "a")
    assert_type(lazy["a"][:1], torch.Tensor)
    assert_type(max_weights.fingerprint(weights, digests=True).digests, dict[str, str])
    assert_type(max_weights.quantized(weights), QuantizedWeights)
    assert_type(max_weights.quantized(weights, "a"), QuantizedWeight)
    assert_type(max_weights.renamed(weights, "hf").a, WeightsNode)
    assert_type(weights.a.torch(), torch.Tensor)
    assert_type(weights.a.numpy(), npt.NDArray[Any])
    assert_type(weights.a.data().torch(), torch.Tensor)
    assert_type(weights.a.data().to_buffer().torch(), torch.Tensor)


def results(path: Path, module: torch.nn.Module) -> None:
    """The results of all verbs have one protocol, and keep their own types."""
    assert_type(max_weights.diff(path, module).raise_if_not_ok(), max_weights.Difference)
    assert_type(max_weights.validate(path, [path], load_weights(path)).raise_if_not_ok("error"), max_weights.Report)
    assert_type(max_weights.torch.verify_loaded(module, path).unused, tuple[str, ...])
    compared = max_weights.fingerprint(path).compare(max_weights.fingerprint({"a": torch.ones(2)}))
    for result in (compared, max_weights.torch.load_into(module, path), max_weights.diff({}, {})):
        assert_type(result.ok, bool)
        assert_type(result.findings, tuple[Finding, ...])


def indices(path: Path) -> None:
    """An integer or a name is a child, and every other index a part of the tensor."""
    weight = load_weights(path).a
    assert_type(weight[1], WeightsNode)
    assert_type(weight["b.c"], WeightsNode)
    assert_type(weight[1:2], Buffer)
    assert_type(weight[...], Buffer)
    assert_type(weight[0, None, ::2], Buffer)
    assert_type(weight.data()[1], Buffer)
    assert_type(weight.children(), list[WeightsNode])


def formats(path: Path) -> None:
    """The classes of the formats keep their own type at each hop."""
    safetensors = SafetensorWeights([path])
    assert_type(safetensors, SafetensorWeights)
    assert_type(safetensors.model.layers[0], SafetensorWeights)
    gguf = GGUFWeights(path)
    assert_type(gguf.blk[0].attn_q.weight, GGUFWeights)
    assert_type(gguf.blk[0].attn_q.weight.data(), WeightData)


def protocol(weights: Weights) -> None:
    """Code for any weights uses the protocol."""
    assert_type(weights.a, Weights)
    assert_type(weights.a[0].b, Weights)
    assert_type(weights.items(), Iterator[tuple[str, Weights]])
    assert_type(weights.data(), WeightData)
    assert_type(weights.allocate(DType.float16, [2, "n"], device=DeviceRef.CPU()), Weight)


def nodes_are_weights(path: Path) -> Weights:
    """The result of `load_weights` satisfies the protocol."""
    return load_weights(path)


def buffers(array: npt.NDArray[np.float32]) -> None:
    """Tensors."""
    buffer = Buffer.from_numpy(array)
    assert_type(buffer, Buffer)
    assert_type(buffer.dtype, DType)
    assert_type(buffer.device, Device)
    assert_type(buffer[0], Buffer)
    assert_type(buffer[..., 1:3], Buffer)
    assert_type(buffer.view(DType.uint8).copy().contiguous(), Buffer)
    assert_type(float(buffer), float)
    assert_type(WeightData.from_numpy(array, "w"), WeightData)
