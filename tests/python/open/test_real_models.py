"""The real files: every tensor equals what the safetensors package reads, bit for bit, in NumPy, torch and JAX."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

import max_weights
import max_weights.jax
import max_weights.numpy
import max_weights.torch

FILES = [
    "minilm.safetensors",
    "silero_vad_16k.safetensors",
    "derived/layer0.f16.safetensors",
    "derived/layer0.bf16.safetensors",
    "derived/layer0.f8e4m3.safetensors",
    "derived/layer0.f8e5m2.safetensors",
]


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("name", FILES)
def test_every_tensor_equals_the_safetensors_package_in_torch(models: Path, name: str) -> None:
    ours = max_weights.torch.load_file(models / name)
    with safe_open(models / name, "pt") as theirs:
        assert set(ours) == set(theirs.keys())
        for key, tensor in ours.items():
            expected = theirs.get_tensor(key)
            assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.shape)
            assert bits(tensor) == bits(expected), key


@pytest.mark.parametrize("name", FILES)
def test_every_tensor_equals_the_safetensors_package_in_numpy(models: Path, name: str) -> None:
    ours = max_weights.numpy.load_file(models / name)
    with safe_open(models / name, "pt") as theirs:
        assert set(ours) == set(theirs.keys())
        for key, array in ours.items():
            assert array.shape == tuple(theirs.get_slice(key).get_shape())
            assert array.tobytes() == bits(theirs.get_tensor(key)), key
            assert array.flags.writeable


@pytest.mark.parametrize("name", FILES)
def test_every_tensor_equals_the_safetensors_package_in_jax(models: Path, name: str) -> None:
    ours = max_weights.jax.load_file(models / name)
    with safe_open(models / name, "pt") as theirs:
        for key, array in ours.items():
            expected = theirs.get_tensor(key)
            if expected.dtype == torch.int64:
                expected = expected.to(torch.int32)  # JAX narrows it unless its x64 mode is on
            assert np.asarray(array).tobytes() == bits(expected), key


@pytest.mark.parametrize("backend", ["mmap", "read"])
def test_both_backends_give_the_same_bytes(models: Path, backend: str) -> None:
    weights = max_weights.load_weights(models / "silero_vad_16k.safetensors", backend=backend)
    with safe_open(models / "silero_vad_16k.safetensors", "np") as theirs:
        for name, weight in weights.items():
            value = weight.data()
            assert value.data.is_mapped == (backend == "mmap")
            assert np.array_equal(np.asarray(value), theirs.get_tensor(name)), name


def test_file_order_is_kept_where_it_is_not_name_order(models: Path) -> None:
    weights = max_weights.load_weights(models / "silero_vad_16k.safetensors")
    infos = max_weights.infos(weights)
    offsets = [info.offset for info in infos]
    names = [name for name, _ in weights.items()]
    assert offsets == sorted(offsets)
    assert names == [info.name for info in infos]
    assert names != sorted(names)


def test_the_tree_of_the_real_file(models: Path) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    assert len(weights) == 104
    layer = weights.encoder.layer[0]
    assert layer.name == "encoder.layer.0"
    assert layer.attention.self.query.weight.exists()
    assert not layer.attention.self.query.exists()
    assert {name for name, _ in layer.items()} == {
        info.name for info in max_weights.infos(weights) if info.name.startswith("encoder.layer.0.")
    }
    shown = str(weights)
    assert "104 weights, 90.9 MB" in shown
    assert "0–5 (6 alike)" in shown
    assert "float32" in shown
    assert "<details" in weights._repr_html_()
