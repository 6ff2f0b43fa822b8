"""`max_weights.torch.load` returns what `torch.load(weights_only=True)` returns: values, strides, sharing."""

import io
import warnings
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import max_weights
from max_weights._core import buffers
from max_weights.errors import FormatError, UnsupportedError
from max_weights.torch import load, load_file
from refusals import refuses
from torch_same import assert_same

REAL = [
    "crepe-tiny.pth",
    "crepe-full.pth",
    "lpips-v0.0-alex.legacy.pth",
    "lpips-v0.0-squeeze.legacy.pth",
    "lpips-v0.0-vgg.legacy.pth",
    "lpips-v0.1-alex.legacy.pth",
    "lpips-v0.1-squeeze.legacy.pth",
    "lpips-v0.1-vgg.legacy.pth",
    "derived/layer0.bf16.pt",
    "derived/layer0.bf16.legacy.pt",
]
DTYPES = [
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
]


def reference(path: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(path, weights_only=True, map_location="cpu")


def some(dtype: str, *shape: int) -> torch.Tensor:
    """A tensor of different bits, whatever the dtype."""
    kind = getattr(torch, dtype)
    if dtype == "bool":
        return torch.arange(int(np.prod(shape))).reshape(shape) % 2 == 0
    size = int(np.prod(shape)) * kind.itemsize
    return (torch.arange(size, dtype=torch.int64) * 37 % 251).to(torch.uint8).view(kind).reshape(shape)


@pytest.fixture(params=["zip", "legacy"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    def save(value: Any, **options: Any) -> Path:
        path = tmp_path / "value.pt"
        torch.save(value, path, _use_new_zipfile_serialization=request.param == "zip", **options)
        return path

    return save


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("mmap", [True, False])
def test_real_files_load_as_torch_loads_them(models: Path, name: str, mmap: bool) -> None:
    assert_same(load(models / name, mmap=mmap), reference(models / name))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_every_dtype_that_torch_stores(saved: Any, dtype: str, mmap: bool) -> None:
    tensor = some(dtype, 6, 4)
    value = {"a": tensor, "b": tensor.T, "c": tensor[1::2, 1:3], "d": some(dtype), "e": some(dtype, 0, 3)}
    # torch cannot always load files of its older function itself: then the saved value is expected.
    path = saved(value)
    try:
        expected = reference(path)
    except AttributeError:
        expected = value
    assert_same(load(path, mmap=mmap), expected)


def test_tied_weights_are_views_of_one_storage(saved: Any) -> None:
    embedding = torch.nn.Parameter(torch.randn(8, 4))
    path = saved({"embed": embedding, "head": embedding, "part": embedding.data[2:5].T, "other": torch.ones(3)})
    found = load(path)
    assert_same(found, reference(path))
    assert found["embed"] is found["head"]
    found["part"][0, 0] = 42
    assert found["embed"][2, 0] == 42
    assert load(path)["embed"][2, 0] != 42


def test_structures_come_back_as_they_are(saved: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    shared = [1, 2]
    value = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "plain": [
            None,
            True,
            -1,
            2**40,
            -(2**70),
            1.5,
            float("inf"),
            "text \u00e4 \U0001f600",
            b"bytes",
            bytearray(b"x"),
        ],
        "nested": ({"a": [(), [], {}]}, set(), {1, "two"}, 1 + 2j),
        "torch": [torch.Size([2, 3]), torch.float32, torch.bfloat16, torch.device("cpu"), torch.device("cuda", 1)],
        "ordered": OrderedDict(a=1, b=2),
        "counter": Counter("abca"),
        "shared": [shared, shared],
        3: torch.ones(2),
        "parameter": torch.nn.Parameter(torch.zeros(2), requires_grad=False),
        "grad": torch.zeros(2, requires_grad=True),
    }
    path = saved(value)
    found = load(path)
    assert_same(found, reference(path))
    assert found["shared"][0] is found["shared"][1]


def test_values_of_numpy_come_as_numpy_has_them(saved: Any) -> None:
    value = {"scalar": np.float64(1.5), "int": np.int64(-3), "array": np.arange(6, dtype=np.int32).reshape(2, 3)}
    found = load(saved(value))
    assert (found["scalar"], type(found["scalar"])) == (1.5, np.float64)
    assert (found["int"], type(found["int"])) == (-3, np.int64)
    np.testing.assert_array_equal(found["array"], value["array"])


@pytest.mark.filterwarnings("ignore")
def test_tensors_that_are_no_arrays_are_built_as_torch_builds_them(saved: Any) -> None:
    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    value = {
        "coo": dense.to_sparse(),
        "csr": dense.to_sparse_csr(),
        "bsc": dense.to_sparse_bsc((1, 1)),
        "quantized": torch.quantize_per_tensor(dense, 0.5, 1, torch.quint8),
        "channels": torch.quantize_per_channel(
            dense, torch.tensor([0.5, 0.25], dtype=torch.float64), torch.tensor([0, 1]), 0, torch.qint8
        ),
        "meta": torch.empty(3, 4, device="meta"),
        "conjugate": torch.tensor([1 + 2j, 3 - 4j]).conj(),
    }
    path = saved(value)
    assert_same(load(path), reference(path))


@pytest.mark.filterwarnings("ignore:TypedStorage")
def test_a_tensor_alone_and_a_storage_alone(saved: Any) -> None:
    path = saved(torch.arange(6.0).reshape(2, 3).T)
    assert_same(load(path), reference(path))
    path = saved(torch.arange(3)._typed_storage())
    assert_same(load(path), reference(path))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol(saved: Any, protocol: int) -> None:
    value = {"a": torch.ones(2), "b": {"c": [1, "x", b"y", {2}]}}
    path = saved(value, pickle_protocol=protocol)
    found = load(path)
    assert torch.equal(found["a"], value["a"])
    assert found["b"] == value["b"]


def rewritten(path: Path, method: int, changed: dict[str, bytes] | None = None) -> Path:
    """The archive written again by Python's zipfile: compressed, or with other contents."""
    target = path.with_name("rewritten.pt")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w", method) as archive:
        for name in source.namelist():
            data = source.read(name)
            if changed is not None and name.split("/", 1)[1] in changed:
                data = changed[name.split("/", 1)[1]]
            archive.writestr(name, data)
    return target


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_archives_that_zipfile_wrote_again(tmp_path: Path, method: int) -> None:
    path = tmp_path / "a.pt"
    base = torch.arange(5000.0)
    torch.save({"a": base, "b": base[10:20], "c": torch.zeros(3, dtype=torch.int8), "d": torch.randn(7, 3).T}, path)
    again = rewritten(path, method)
    assert_same(load(again), reference(path))
    weights = max_weights.load_weights(again)
    together = dict(buffers(weights))
    a, b = together["a"], together["b"]
    assert b._data_ptr() - a._data_ptr() == 40
    np.testing.assert_array_equal(b.to_numpy(), np.arange(10, 20, dtype=np.float32))


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_big_endian_files(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    tensors = {dtype: some(dtype, 4, 2) for dtype in DTYPES}
    tensors["tied"] = tensors["float32"][1:]
    torch.save(tensors, path)
    with zipfile.ZipFile(path) as archive:
        names = [name.split("/", 1)[1] for name in archive.namelist() if "/data/" in name]
        storages = {name: archive.read(next(n for n in archive.namelist() if n.endswith("/" + name))) for name in names}
    changed: dict[str, bytes] = {"byteorder": b"big"}
    kinds = [tensor.dtype for key, tensor in tensors.items() if key != "tied"]
    for name, kind in zip(sorted(storages, key=lambda name: int(name.split("/")[1])), kinds, strict=True):
        unit = kind.itemsize // (2 if kind.is_complex else 1)
        changed[name] = np.frombuffer(storages[name], np.uint8).reshape(-1, unit)[:, ::-1].tobytes()
    again = rewritten(path, zipfile.ZIP_STORED, changed)
    found = load(again)
    assert_same(found, tensors)
    weights = max_weights.load_weights(again)
    assert weights.metadata["byteorder"] == "big"
    np.testing.assert_array_equal(np.asarray(weights["int32"].data()), tensors["int32"].numpy())
    assert max_weights.infos(weights).aliases == [["float32", "tied"]]
    together = dict(buffers(weights))
    assert together["tied"]._data_ptr() - together["float32"]._data_ptr() == 8


def test_map_location(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"a": torch.ones(2, 3), "b": torch.zeros(1)}, path)
    assert_same(load(path, map_location=None), reference(path))
    assert_same(load(path, map_location=torch.device("cpu")), reference(path))
    assert_same(load(path, map_location={"cuda:0": "cpu"}), reference(path))
    assert_same(load(path, map_location="meta"), torch.load(path, weights_only=True, map_location="meta"))
    seen = []
    assert_same(load(path, map_location=lambda _, location: seen.append(location)), reference(path))
    assert seen == ["cpu", "cpu"]
    with pytest.raises(UnsupportedError, match="cuda"):
        load(path, map_location="cuda:0")


def test_what_is_written_to_a_tensor_never_reaches_the_file(models: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes((models / "crepe-tiny.pth").read_bytes())
    before = path.read_bytes()
    for tensor in load(path).values():
        tensor.zero_()
    for tensor in load_file(path).values():
        tensor.zero_()
    assert path.read_bytes() == before


def test_files_of_other_formats_are_refused_by_name(models: Path) -> None:
    with (
        (models / "minilm.safetensors").open("rb") as file,
        refuses(UnsupportedError, "torch.format") as caught,
    ):
        load(file)
    assert caught.value.rule == "torch.format"
    with refuses(UnsupportedError, "torch-zip.torchscript"):
        load(models / "silero_vad.jit")


def test_names_that_collide_when_they_are_joined_stop_weights_but_not_load(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    value = {"a.b": torch.ones(1), "a": {"b": torch.zeros(1)}}
    torch.save(value, path)
    assert_same(load(path), reference(path))
    with refuses(FormatError, "pickle.same-name"):
        max_weights.load_weights(path)


KEYS = st.one_of(st.text(max_size=5), st.integers(-5, 300))
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=20),
    st.binary(min_size=1, max_size=20),  # torch refuses the empty one, which pickles as a call of `bytes`
    st.complex_numbers(allow_nan=False),
    st.builds(torch.Size, st.lists(st.integers(0, 9), max_size=3)),
    st.sampled_from([torch.float32, torch.int64, torch.device("cpu")]),
)


@st.composite
def values(draw: st.DrawFn) -> Any:
    """Nested values with tensors, some of which share storages and have strides."""
    bases = [some(draw(st.sampled_from(DTYPES)), 4, 3, 2) for _ in range(draw(st.integers(1, 3)))]

    def tensor() -> Any:
        base = draw(st.sampled_from(bases))
        view = base[draw(st.integers(0, 3)) :].permute(draw(st.permutations(range(3))))
        view = view[:: draw(st.integers(1, 2))] if draw(st.booleans()) else view
        return torch.nn.Parameter(view, False) if draw(st.booleans()) else view

    def nested(depth: int) -> Any:
        kind = draw(st.sampled_from(["tensor", "tensor", "leaf", "dict", "ordered", "list", "tuple"]))
        if kind == "tensor":
            return tensor()
        if kind == "leaf" or depth == 0:
            return draw(LEAVES)
        if kind in ("dict", "ordered"):
            pairs = [(key, nested(depth - 1)) for key in draw(st.lists(KEYS, max_size=4))]
            return dict(pairs) if kind == "dict" else OrderedDict(pairs)
        parts = [nested(depth - 1) for _ in range(draw(st.integers(0, 3)))]
        return parts if kind == "list" else tuple(parts)

    return {key: nested(3) for key in draw(st.lists(KEYS, min_size=1, max_size=4))}


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(value=values(), new=st.booleans(), mmap=st.booleans())
def test_random_values_load_as_torch_loads_them(
    tmp_path_factory: pytest.TempPathFactory, value: Any, new: bool, mmap: bool
) -> None:
    path = tmp_path_factory.mktemp("value") / "a.pt"
    torch.save(value, path, _use_new_zipfile_serialization=new)
    try:
        expected = reference(path)
    except AttributeError:  # some dtypes that torch saves by its older function, it cannot load
        expected = load(path, mmap=not mmap)
    assert_same(load(path, mmap=mmap), expected)


def overwritten(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))


def test_what_is_loaded_is_in_memory_of_its_own_unless_the_file_is_to_be_mapped(tmp_path: Path) -> None:
    path = tmp_path / "value.pt"
    torch.save({"a": torch.arange(1000.0)}, path)
    found, mapped = load(path), load(path, mmap=True)
    overwritten(path)
    assert found["a"].tolist() == list(range(1000))
    assert not mapped["a"].any()


def test_what_torch_is_told_to_map_by_default_is_mapped_here(tmp_path: Path) -> None:
    from torch.utils.serialization import config

    path = tmp_path / "value.pt"
    torch.save({"a": torch.arange(1000.0)}, path)
    with config.patch({"load.mmap": True}):
        found, read = load(path), load(path, mmap=False)
    overwritten(path)
    assert not found["a"].any()
    assert read["a"].tolist() == list(range(1000))


def test_several_values_in_an_open_file_are_loaded_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "several.pt"
    with path.open("wb") as file:
        for number in (3, 5, 7):
            torch.save(torch.arange(number), file, _use_new_zipfile_serialization=False)
    for open_it in (lambda: path.open("rb"), lambda: io.BytesIO(path.read_bytes())):
        with open_it() as ours, open_it() as theirs:
            for number in (3, 5, 7):
                assert load(ours).tolist() == torch.load(theirs).tolist() == list(range(number))
                assert ours.tell() == theirs.tell()


def test_a_safetensors_file_gives_what_torch_gives(models: Path) -> None:
    path = models / "minilm.safetensors"
    for where in (None, "cpu", torch.device("cpu")):
        assert_same(load(path, where), torch.load(path, where))
    for elsewhere in ({"cpu": "cpu"}, lambda storage, _place: storage):
        with refuses(RuntimeError):
            torch.load(path, elsewhere)
        with refuses(ValueError, "argument.conflict"):
            load(path, elsewhere)
