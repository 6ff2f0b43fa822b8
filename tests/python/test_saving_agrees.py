"""`weights.save`, `save_file` and `save_sharded` do the same with the same weights: the files, and the errors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import max_weights
from max_weights import load_weights, save_file, save_gguf, save_sharded
from max_weights._weights import WeightsNode
from max_weights.errors import ArgumentError, UnsupportedError


def pytorch(folder: Path) -> WeightsNode:
    base = torch.arange(60, dtype=torch.float32).reshape(6, 10)
    torch.save(
        {"b": base, "tied": base, "turned": base.t(), "part": base[1:4, ::2], "n": torch.ones(3).bool()},
        folder / "a.pt",
    )
    return load_weights(folder / "a.pt")


def gguf_of_floats(folder: Path) -> WeightsNode:
    """Under the names of Hugging Face, with a tensor that llama.cpp alone has."""
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
    for save in (weights.save, lambda path: save_file(weights, path)):
        with pytest.raises(ValueError, match="it is one of several files of the checkpoint"):
            save(path)
