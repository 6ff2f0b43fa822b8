"""`weights.save`, `save_file` and `save_sharded` give the same files and errors for the same weights."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import max_weights
from max_weights import load_weights, save, save_file, save_gguf, save_sharded
from max_weights._weights import WeightsNode
from max_weights.errors import ArgumentError, UnsupportedError
from refusals import refuses


def pytorch(folder: Path) -> WeightsNode:
    base = torch.arange(60, dtype=torch.float32).reshape(6, 10)
    torch.save(
        {"b": base, "tied": base, "turned": base.t(), "part": base[1:4, ::2], "n": torch.ones(3).bool()},
        folder / "a.pt",
    )
    return load_weights(folder / "a.pt")


def gguf_of_floats(folder: Path) -> WeightsNode:
    """With Hugging Face's names, and a tensor that only llama.cpp has."""
    tensors = {
        "blk.0.attn_q.weight": np.arange(64, dtype=np.float16).reshape(8, 8),
        "rope_freqs.weight": np.ones(4, np.float32),
    }
    metadata = {
        "general.architecture": "llama",
        "llama.attention.head_count": np.uint32(2),
        "llama.block_count": np.uint32(1),
    }
    save_gguf(tensors, folder / "a.gguf", metadata)
    return max_weights.renamed(load_weights(folder / "a.gguf"), "hf")


def packed(folder: Path) -> WeightsNode:
    save_gguf({"w.weight": np.ones((2, 64), np.float32)}, folder / "p.gguf", quantize={"w.weight": "q8_0"})
    return load_weights(folder / "p.gguf")


def unknown(folder: Path) -> WeightsNode:
    torch.save({"a": torch.ones(3, dtype=torch.complex128)}, folder / "u.pt")
    return load_weights(folder / "u.pt")


def several(folder: Path) -> WeightsNode:
    save_sharded({"a": np.ones(8, np.float32), "b": np.zeros(8, np.float32)}, folder / "set", max_shard_size=32)
    return load_weights(folder / "set")


def branch(folder: Path) -> WeightsNode:
    save_file({"x.a": np.ones(3, np.float32), "x.b": np.ones(2), "y": np.ones(1)}, folder / "b.safetensors", {"k": "v"})
    return load_weights(folder / "b.safetensors").x


def outcome(save: Callable[..., object], folder: Path, name: str, *arguments: Any, **options: Any) -> Any:
    """The bytes of the files, or the class and the text of the error."""
    try:
        save(*arguments, folder / name, **options)
    except (ArgumentError, UnsupportedError, TypeError) as error:
        return type(error), str(error).replace(str(folder), "")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")}


@pytest.mark.parametrize("options", [{}, {"metadata": {"k": "w"}}, {"metadata": {"k": 1}}, {"alignment": 8}], ids=str)
@pytest.mark.parametrize("make", [pytorch, gguf_of_floats, packed, unknown, several, branch])
def test_a_tree_is_saved_alike(tmp_path: Path, make: Callable[[Path], WeightsNode], options: dict[str, Any]) -> None:
    weights = make(tmp_path)
    (one := tmp_path / "one").mkdir()
    (other := tmp_path / "other").mkdir()
    found = outcome(weights.save, one, "model.safetensors", **options)
    assert found == outcome(save_file, other, "model.safetensors", weights, **options)
    for size in ("32", "1MB"):
        found = outcome(weights.save, one, size, max_shard_size=size, **options)
        assert found == outcome(save_sharded, other, size, weights, max_shard_size=size, **options)
        assert isinstance(found, tuple) == (make in (packed, unknown) or options.get("metadata") == {"k": 1})


def test_what_only_llama_cpp_has_is_left_out_by_both(tmp_path: Path) -> None:
    weights = gguf_of_floats(tmp_path)
    assert "rope_freqs.weight" in weights
    for tied in ("copy", "refuse"):
        save_file(weights, tmp_path / "out", tied=tied)
        assert [info.name for info in max_weights.infos(load_weights(tmp_path / "out"))] == [
            "model.layers.0.self_attn.q_proj.weight"
        ]


def test_one_of_several_files_is_not_written_over_by_either(tmp_path: Path) -> None:
    weights = several(tmp_path)
    path = max_weights.infos(weights)[0].file
    for write in (weights.save, lambda path: save_file(weights, path)):
        with refuses(ValueError):
            write(path)


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")}


def test_the_path_says_what_is_saved(tmp_path: Path) -> None:
    arrays = {"a.w": np.ones((4, 32), np.float32), "b": np.zeros(3, np.float32)}
    module = torch.nn.Linear(2, 2)
    source = tmp_path / "source.safetensors"
    assert save(arrays, source) == [source]
    (one := tmp_path / "one").mkdir()
    (other := tmp_path / "other").mkdir()
    for tensors in (arrays, module, source, os.fspath(source), [source], load_weights(source)):
        for name, habit in (("x.safetensors", save_file), ("x.gguf", save_gguf), ("x", save_sharded)):
            paths = save(tensors, one / name)
            assert [path.relative_to(one) for path in paths] == [
                path.relative_to(other) for path in habit(tensors, other / name)
            ]
        assert content(one) == content(other)
    files = save(arrays, tmp_path / "set", max_shard_size=400)
    assert [file.name for file in files][-1] == "model.safetensors.index.json"
    (tmp_path / "a.gguf").mkdir()  # a folder that is there
    assert save(arrays, tmp_path / "a.gguf") == [tmp_path / "a.gguf" / "model.safetensors"]


def test_tensors_and_modules_are_converted_as_a_checkpoint_is(tmp_path: Path) -> None:
    module = torch.nn.Linear(4, 4)
    save(module, tmp_path / "whole.safetensors")
    save(tmp_path / "whole.safetensors", tmp_path / "a.safetensors", select="weight", dtype="float16")
    save(module, tmp_path / "b.safetensors", select="weight", dtype="float16")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("x.gguf", {"dtype": "float16"}),
        ("x.gguf", {"tied": "alias"}),
        ("x", {"quantize": "q8_0"}),
        ("x.safetensors", {"name": "y"}),
        ("x.safetensors", {"max_shard_size": "1GB"}),
        ("x", {"tied": "alias", "dtype": "float16"}),
        ("x.bin", {}),
    ],
)
def test_an_option_that_a_kind_of_file_does_not_have_is_named(
    tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    with refuses(ArgumentError):
        save({"a": np.ones((4, 32), np.float32)}, tmp_path / name, **options)
    assert not list(tmp_path.iterdir())
