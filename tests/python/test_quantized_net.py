"""Every scheme of quantized weights by every verb that takes a dtype: decoded right, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import max_weights
import max_weights.jax
import max_weights.numpy
import max_weights.torch
from max_weights import lazy_state_dict, load_weights
from max_weights.errors import ArgumentError
from max_weights.sharding import Shard
from quantized_schemes import EXPERTS, NORM, SCHEMES, UP, Checkpoint, fp8_of_rows, gptq_of

Loaded = dict[str, torch.Tensor]
BOTH = ("float32", "bfloat16")


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Bit for bit, but that zeros have no sign."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    return torch.equal(found + 0.0, expected + 0.0)


def as_torch(array: Any) -> torch.Tensor:
    return torch.from_dlpack(array) if not isinstance(array, np.ndarray) else of_numpy(array)


def of_numpy(array: np.ndarray[Any, Any]) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def by_load(folder: Path, dtype: str) -> Loaded:
    return load_weights(folder).load(dtype=dtype, framework="torch")


def by_load_file(folder: Path, dtype: str) -> Loaded:
    return max_weights.torch.load_file(folder, dtype=dtype)


def by_numpy(folder: Path, dtype: str) -> Loaded:
    return {name: of_numpy(one) for name, one in max_weights.numpy.load_file(folder, dtype=dtype).items()}


def by_jax(folder: Path, dtype: str) -> Loaded:
    return {name: torch.from_dlpack(one) for name, one in max_weights.jax.load_file(folder, dtype=dtype).items()}


def by_stream(folder: Path, dtype: str) -> Loaded:
    return dict(load_weights(folder).stream(dtype=dtype, framework="torch"))


def by_lazy(folder: Path, dtype: str) -> Loaded:
    return {name: one[...] for name, one in lazy_state_dict(load_weights(folder), dtype=dtype).items()}


def by_lazy_rows(folder: Path, dtype: str) -> Loaded:
    lazy = lazy_state_dict(load_weights(folder), dtype=dtype)
    return {name: torch.cat([one[:3], one[3:]]) for name, one in lazy.items()}


def by_out(folder: Path, dtype: str) -> Loaded:
    weights = load_weights(folder)
    shapes = {name: one.shape for name, one in lazy_state_dict(weights, dtype=dtype).items()}
    out = {name: torch.empty(shape, dtype=getattr(torch, dtype)) for name, shape in shapes.items()}
    weights.load(dtype=dtype, out=out)
    return out


def by_shards(folder: Path, dtype: str) -> Loaded:
    weights = load_weights(folder)
    whole = lazy_state_dict(weights, dtype=dtype)
    parts = [weights.load(dtype=dtype, shard=Shard(rank, 2, "llama"), framework="torch") for rank in range(2)]
    joined: Loaded = {}
    for name, one in parts[0].items():
        axis = next((axis for axis in range(one.ndim) if one.shape[axis] != whole[name].shape[axis]), None)
        joined[name] = one if axis is None else torch.cat([part[name] for part in parts], axis)
    return joined


def by_save(folder: Path, dtype: str) -> Loaded:
    out = folder.with_name("saved.safetensors")
    load_weights(folder).save(out, dtype=dtype)
    return load_file(out)


def by_nodes(folder: Path, dtype: str) -> Loaded:
    weights = load_weights(folder)
    return weights.model.layers.load(dtype=dtype, framework="torch") | weights.model.norm.load(
        dtype=dtype, framework="torch"
    )


def by_plan(folder: Path, dtype: str) -> Loaded:
    """The plan has the names of what `load` gives."""
    planned = max_weights.plan(load_weights(folder), dtype=dtype)
    return {name: one for name, one in by_load(folder, dtype).items() if name in planned.names}


VERBS: dict[str, Callable[[Path, str], Loaded]] = {
    name.removeprefix("by_"): verb for name, verb in list(globals().items()) if name.startswith("by_")
}


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_dtype_gives_what_the_weight_is(scheme: str, verb: str, dtype: str, tmp_path: Path) -> None:
    made = SCHEMES[scheme]()
    if verb == "shards" and scheme in ("mxfp4-gpt-oss", "int8-bitsandbytes"):
        pytest.skip("the strategy of llama has no rule for these shapes")
    folder = made.written(tmp_path / "model")
    found = VERBS[verb](folder, dtype)
    assert set(found) == {*made.decoded, NORM}
    for name, expected in {**made.decoded, NORM: made.tensors[NORM]}.items():
        assert same(found[name], expected.to(getattr(torch, dtype))), name


@pytest.mark.parametrize("scheme", SCHEMES)
def test_kept_tensors_are_those_of_the_file_and_others_get_the_dtype(scheme: str, tmp_path: Path) -> None:
    made = SCHEMES[scheme]()
    folder = made.written(tmp_path / "model")
    for packed in ("keep", True):
        found = load_weights(folder).load(dtype="float16", packed=packed, framework="torch")
        assert set(found) == set(made.tensors)
        assert all(bits(found[name]) == bits(made.tensors[name]) for name in made.parts)
        assert same(found[NORM], made.tensors[NORM].half())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_without_a_dtype_all_is_as_it_is_stored(scheme: str, tmp_path: Path) -> None:
    made = SCHEMES[scheme]()
    found = load_weights(made.written(tmp_path / "model")).load(framework="torch")
    assert {name: bits(one) for name, one in found.items()} == {name: bits(one) for name, one in made.tensors.items()}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_dequantize_gives_bfloat16_and_leaves_the_others(scheme: str, tmp_path: Path) -> None:
    made = SCHEMES[scheme]()
    folder = made.written(tmp_path / "model")
    for found in (
        max_weights.torch.load_file(folder, dequantize=True),
        {name: of_numpy(one) for name, one in max_weights.numpy.load_file(folder, dequantize=True).items()},
        {name: torch.from_dlpack(one) for name, one in max_weights.jax.load_file(folder, dequantize=True).items()},
        dict(load_weights(folder).stream(dequantize=True, framework="torch")),
    ):
        assert set(found) == {*made.decoded, NORM}
        assert same(found[NORM], made.tensors[NORM])
        assert all(same(found[name], one.bfloat16()) for name, one in made.decoded.items())


def bits(tensor: torch.Tensor) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    return tensor.dtype, tuple(tensor.shape), tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
