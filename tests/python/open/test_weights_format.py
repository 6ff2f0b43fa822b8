"""`weights_format`: the format by the names of the files."""

import os
from pathlib import Path

import pytest

from max_weights.errors import WeightsError
from max_weights.graph.weights import WeightsFormat, weights_format


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["model.safetensors"], WeightsFormat.safetensors),
        (["a-00001-of-00002.safetensors", Path("b/a-00002-of-00002.SafeTensors")], WeightsFormat.safetensors),
        ([Path("model.Q4_K_M.GGUF")], WeightsFormat.gguf),
        (["a.bin", "b.pt", "c.PTH"], WeightsFormat.pytorch),
        ("model.gguf", WeightsFormat.gguf),
        (Path("model.pt"), WeightsFormat.pytorch),
        (iter(["model.pt"]), WeightsFormat.pytorch),
    ],
)
def test_the_suffix_says_the_format(paths: list[str | os.PathLike[str]], expected: WeightsFormat) -> None:
    assert weights_format(paths) is expected


def test_members_are_texts() -> None:
    assert WeightsFormat.gguf == "gguf"
    assert WeightsFormat("pytorch") is WeightsFormat.pytorch
    assert sorted(kind.value for kind in WeightsFormat) == ["gguf", "pytorch", "safetensors"]


def test_no_paths() -> None:
    with pytest.raises(ValueError, match="no path") as caught:
        weights_format([])
    assert isinstance(caught.value, WeightsError)


@pytest.mark.parametrize("name", ["model.onnx", "model", ".gguf", "model.safetensors.index.json", ""])
def test_unknown_suffixes_name_the_path(name: str) -> None:
    with pytest.raises(ValueError, match="no known suffix") as caught:
        weights_format(["fine.gguf", name])
    assert str(caught.value).endswith(f": {name}")


def test_mixed_formats_name_the_paths() -> None:
    with pytest.raises(ValueError, match=r"gguf: a\.gguf, c\.gguf; pytorch: b\.bin"):
        weights_format(["a.gguf", Path("b.bin"), "c.gguf"])


def test_a_long_list_is_cut_short() -> None:
    with pytest.raises(ValueError, match=r"1\.x, 2\.x, 3\.x, 4\.x, 5\.x and 95 more$"):
        weights_format([f"{number}.x" for number in range(1, 101)])
