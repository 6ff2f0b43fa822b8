"""Lazy slices: `weights.x[…]` and `WeightData[…]` index as NumPy does, in files of every format."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import max_weights
from conftest import safetensors_bytes
from max_weights import DType, load_weights
from max_weights._weights import WeightsNode
from refusals import refuses

FILES = [
    "minilm.safetensors",
    "derived/layer0.bf16.safetensors",
    "derived/sharded",
    "derived/minilm-ffn-allquants.gguf",
    "smollm2-135m.Q4_1.gguf",
    "derived/layer0.bf16.pt",
    "derived/layer0.bf16.legacy.pt",
    "strided.pt",
    "deflated.pt",
    "swapped.pt",
    "misaligned.safetensors",
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rare files: strided views, compressed entries, the other byte order, no alignment."""
    import torch

    folder = tmp_path_factory.mktemp("slices")
    base = torch.arange(24 * 35 * 4, dtype=torch.float32).reshape(24, 35, 4)
    tensors = {
        "base": base.clone(),
        "turned": base.permute(2, 0, 1),
        "every": base[::3, 1:, 2],
        "expanded": base[:, :1].expand(24, 6, 4),
        "halves": base[0].half(),
        "complex": base[0].to(torch.complex128),
    }
    torch.save(tensors, folder / "strided.pt")
    with zipfile.ZipFile(folder / "strided.pt") as archive:
        entries = {info.filename: archive.read(info) for info in archive.infolist()}
    for name, method in (("deflated.pt", zipfile.ZIP_DEFLATED), ("swapped.pt", zipfile.ZIP_STORED)):
        with zipfile.ZipFile(folder / name, "w", method) as archive:
            for entry, content in entries.items():
                swapped = name == "swapped.pt" and entry.endswith("byteorder")
                archive.writestr(entry, b"big" if swapped else content)
    values = np.arange(3000, dtype=np.float32)
    content = safetensors_bytes({"pad": ("U8", [1], b"0"), "w": ("F32", [60, 50], values.tobytes())})
    (folder / "misaligned.safetensors").write_bytes(content)
    return folder


def indices(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    return hnp.basic_indices(shape, min_dims=0, max_dims=len(shape) + 2, allow_newaxis=True)


@settings(max_examples=60)
@given(data=st.data(), backend=st.sampled_from(["mmap", "read"]))
@pytest.mark.parametrize("file", FILES)
def test_any_basic_index_gives_what_numpy_gives(models: Path, made: Path, file: str, data: Any, backend: Any) -> None:
    weights = opened(made / file if (made / file).exists() else models / file, backend)
    names = [info.name for info in max_weights.infos(weights)]
    name = data.draw(st.sampled_from(names[:8] + names[-8:]))
    whole = weights[name].data().to_buffer()
    bits = whole if whole.dtype is not DType.bfloat16 else whole.view("uint16")
    expected = bits.to_numpy()
    key = data.draw(indices(expected.shape))
    parts = [weights[name].data()[key]]
    if isinstance(key, tuple | slice) or key is None or key is ...:  # an integer is a child
        parts.append(weights[name][key])
    for part in parts:
        assert part.dtype is whole.dtype
        assert tuple(part.shape) == expected[key].shape
        part = part.copy()
        found = (part.view("uint16") if part.dtype is DType.bfloat16 else part).to_numpy()
        np.testing.assert_array_equal(found, expected[key])


_OPEN: dict[tuple[Path, str], WeightsNode] = {}


def opened(path: Path, backend: Literal["mmap", "read"]) -> WeightsNode:
    """The tree, opened once for all examples."""
    return _OPEN.setdefault((path, backend), load_weights(path, backend=backend))


def test_a_part_is_what_safetensors_gives(models: Path) -> None:
    import torch

    path = models / "derived" / "layer0.bf16.safetensors"
    weights = load_weights(path)
    with safetensors.safe_open(path, "pt") as theirs:
        for name in theirs.keys():  # noqa: SIM118
            assert torch.equal(weights[name][1:3].torch(), theirs.get_slice(name)[1:3])


def test_a_part_of_a_closed_checkpoint_is_an_error(models: Path) -> None:
    weights = load_weights(models / "minilm.safetensors")
    bias = weights.pooler.dense.bias
    weights.close()
    with pytest.raises(max_weights.ClosedError):
        bias[:2]


@pytest.mark.parametrize(
    "key",
    [
        (0, 0, 0),
        (0, 4),
        (-4,),
        (..., 0, ...),
    ],
)
def test_indices_that_are_none_are_numpys_errors(make_file: Callable[..., Path], key: Any) -> None:
    array = np.zeros((3, 4), np.float32)
    weights = load_weights(make_file({"w": array}))
    for indexed in (array, weights.w, weights.w.data()):
        with refuses(IndexError):
            indexed[key]
    for indexed in (weights.w, weights.w.data()):
        with refuses(ValueError):
            indexed[::0]


@pytest.mark.parametrize("key", [True, np.True_, (0, False), [0, 1], np.array([0]), 1.0, (0, "x")], ids=str)
def test_bools_lists_and_arrays_are_no_basic_indices(make_file: Callable[..., Path], key: Any) -> None:
    weights = load_weights(make_file({"w": np.zeros((3, 4), np.float32), "v.1": np.zeros(1, np.float32)}))
    with refuses(TypeError):
        weights.w.data()[key]
    if isinstance(key, list | np.ndarray):
        assert weights.w[key].shape == (len(key), 4)  # rows of the file: test_rows.py
    else:
        with refuses(TypeError):
            weights.w[key]
    with refuses(TypeError):
        weights.v[True]  # not the child '1'


def test_what_a_slice_of_a_file_that_is_read_takes_in_memory_is_its_own(make_file: Callable[..., Path]) -> None:
    array = np.arange(1 << 20, dtype=np.float32).reshape(1024, 1024)
    node = load_weights(make_file({"w": array}), backend="read").w
    for key in (np.s_[:, 3], np.s_[::-100, :8], np.s_[10:20]):
        part = node[key]
        np.testing.assert_array_equal(part.to_numpy(), array[key])
        assert part._memory()[0].nbytes <= array[key].nbytes + 64
