"""Shared by the tests of layers: running a layer or a function of values, and random values of its weights."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

import numpy as np
import torch

from max_weights import DeviceRef
from max_weights.dtype import DType
from max_weights.engine import InferenceSession
from max_weights.graph import Graph, TensorType
from max_weights.nn import Module

CPU = DeviceRef.CPU()
NEAR = {"rtol": 1e-5, "atol": 1e-5}


def types(inputs: Sequence[torch.Tensor], sizes: Container[int]) -> list[TensorType]:
    """The types of inputs: the axes in `sizes` are static, and each other axis is a separate symbol."""
    made = []
    for number, tensor in enumerate(inputs):
        rank = tensor.ndim
        shape = [
            size if axis in sizes or axis - rank in sizes else f"n{number}_{axis}"
            for axis, size in enumerate(tensor.shape)
        ]
        made.append(TensorType(DType.from_numpy(tensor.numpy().dtype), shape, CPU))
    return made


def filled(layer: Any, seed: int = 0) -> dict[str, torch.Tensor]:
    """Give the weights of a layer random values; these by name."""
    torch.manual_seed(seed)
    values = {
        name: torch.randn([int(dim) for dim in weight.shape]).to(getattr(torch, weight.dtype.name)) / 3
        for name, weight in layer.raw_state_dict().items()
    }
    layer.load_state_dict(values)
    return values


def called(forward: Callable[..., Any], *inputs: torch.Tensor, sizes: Container[int] = (-1,)) -> torch.Tensor:
    """The result of a function of values, or of a layer with values for its weights, for these inputs; see `types`."""
    if isinstance(forward, Module):
        forward.state_dict(auto_initialize=False)  # which gives the weights their full names
    graph = Graph("test", forward, types(inputs, sizes))
    (output,) = InferenceSession().load(graph).execute(*inputs)
    return torch.from_dlpack(output)


def near(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Both are the same to 1e-5."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.detach().float(), expected.detach().float(), **NEAR)
