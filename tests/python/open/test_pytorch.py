"""PyTorch files as weights: names, strides, sharing, objects, surrounding files, all without torch."""

import pickle
import subprocess
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import max_weights
from max_weights._core import buffers, torch_globals
from max_weights.dtype import DType
from max_weights.errors import FormatError, UnsupportedError
from max_weights.graph.weights import PytorchWeights
from max_weights.torch import load_file
from refusals import refuses


class Config:
    """A user-defined class, which a checkpoint may hold."""

    def __init__(self, width: int) -> None:
        self.width = width


@pytest.fixture(params=["zip", "legacy"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    def save(value: Any) -> Path:
        path = tmp_path / "value.pt"
        torch.save(value, path, _use_new_zipfile_serialization=request.param == "zip")
        return path

    return save


def bits(tensor: Any) -> bytes:
    return bytes(np.ascontiguousarray(np.asarray(tensor)).tobytes())


@pytest.mark.parametrize("name", ["layer0.bf16.pt", "layer0.bf16.legacy.pt"])
def test_a_pytorch_file_equals_the_safetensors_file_of_the_same_weights(models: Path, name: str) -> None:
    ours = max_weights.load_weights(models / "derived" / name)
    other = max_weights.load_weights(models / "derived" / "layer0.bf16.safetensors")
    assert {n for n, _ in ours.items()} == {n for n, _ in other.items()}
    for key, node in other.items():
        mine, theirs = ours[key].data(), node.data()
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        assert bits(mine.to_buffer()) == bits(theirs.to_buffer())


def test_listing_and_taking_need_neither_torch_nor_numpy(models: Path) -> None:
    script = f"""
import sys, max_weights
for name in ("crepe-full.pth", "lpips-v0.1-vgg.legacy.pth", "derived/layer0.bf16.pt"):
    weights = max_weights.load_weights({str(models)!r} + "/" + name)
    infos = [tuple(info) for info in max_weights.infos(weights)]
    repr(weights), max_weights.infos(weights).aliases, dict(max_weights.infos(weights).objects), weights.metadata
    assert all(node.data().to_buffer().nbytes == info[3] for (_, node), info in zip(weights.items(), infos))
print(sorted({{"torch", "numpy", "pickle"}} & set(sys.modules)))"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_stored_tensor_is_a_view_of_the_mapped_file(models: Path) -> None:
    path = models / "crepe-tiny.pth"
    weights = max_weights.load_weights(path)
    assert isinstance(weights, PytorchWeights)
    content = path.read_bytes()
    expected = torch.load(path, weights_only=True)
    for info, (name, node) in zip(max_weights.infos(weights), weights.items(), strict=True):
        buffer = node.data().to_buffer()
        assert buffer.is_mapped == info.aligned
        assert content[info.offset : info.offset + info.bytes] == bits(buffer) == bits(expected[name])
        assert info.dtype == DType.from_torch(expected[name].dtype)
        assert (info.name, info.shape, info.bytes) == (name, tuple(expected[name].shape), expected[name].nbytes)


@pytest.mark.parametrize("backend", ["auto", "read"])
def test_strides_offsets_and_sharing_are_those_of_the_file(saved: Any, backend: Any) -> None:
    base = torch.arange(60, dtype=torch.float32).reshape(3, 4, 5)
    views = {
        "base": base,
        "turned": base.permute(2, 0, 1),
        "part": base[1:, ::2, 1:3],
        "wide": base[0, 0, 0].expand(7),
        "empty": base[:0],
        "scalar": base[2, 3, 4],
        "alone": torch.ones(2),
    }
    weights = max_weights.load_weights(saved(views), backend=backend)
    together = dict(buffers(weights))
    assert set(together) == set(views)
    start = together["base"]._data_ptr()
    for name, view in views.items():
        alone, buffer = weights[name].data().to_buffer(), together[name]
        np.testing.assert_array_equal(alone.to_numpy(), view.numpy(), name)
        assert alone.strides == view.stride()
        np.testing.assert_array_equal(buffer.to_numpy(), view.numpy(), name)
        assert buffer.strides == view.stride()
        assert buffer.nbytes == view.nbytes
        if name not in ("alone", "empty"):
            assert buffer._data_ptr() - start == view.data_ptr() - base.data_ptr()
        copied = buffer.contiguous()
        np.testing.assert_array_equal(copied.to_numpy(), view.numpy())
    assert sorted(max_weights.infos(weights).aliases[0]) == ["base", "part", "scalar", "turned", "wide"]
    assert len(max_weights.infos(weights).aliases) == 1
    assert max_weights.infos(weights.part).aliases == []


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_part_of_a_storage_that_is_taken_alone_holds_its_own_bytes(tmp_path: Path, method: int) -> None:
    path, again = tmp_path / "a.pt", tmp_path / "again.pt"
    base = torch.arange(100_000, dtype=torch.float32)
    torch.save({"base": base, "part": base[70_000:70_008], "turned": base[64:128].view(8, 8).T}, path)
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(again, "w", method) as archive:
        for name in source.namelist():
            archive.writestr(name, source.read(name))
    weights = max_weights.load_weights(again, backend="read")
    part, turned = weights.part.data().to_buffer(), weights.turned.data().to_buffer()
    np.testing.assert_array_equal(part.to_numpy(), np.arange(70_000, 70_008))
    np.testing.assert_array_equal(turned.to_numpy(), np.arange(64, 128).reshape(8, 8).T)
    assert part._memory()[0].nbytes <= 32 + 64
    assert turned._memory()[0].nbytes <= 256 + 64
    of_part, of_base = (dict(buffers(weights))[name]._memory()[0] for name in ("part", "base"))
    assert of_part.nbytes == of_base.nbytes == base.nbytes, "together they share the whole"


def test_tied_are_weights_whose_bytes_overlap_and_not_all_of_one_storage(saved: Any) -> None:
    flat = torch.zeros(10)
    weights = max_weights.load_weights(
        saved({"q": flat[:4], "k": flat[4:8], "head": flat[2:4], "x": OrderedDict(tied=flat[4:8])})
    )
    assert max_weights.infos(weights).aliases == [["q", "head"], ["k", "x.tied"]]


def test_views_and_nodes_pickle_by_reference(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    base = torch.arange(6.0).reshape(2, 3)
    torch.save({"a": {"t": base.T}, "big": torch.zeros(100_000)}, path)
    weights = max_weights.load_weights(path)
    text = pickle.dumps((weights.a.t, weights.a.t.data().to_buffer(), weights.big.data().to_buffer()))
    assert len(text) < 2000
    node, buffer, big = pickle.loads(text)
    assert isinstance(node, PytorchWeights)
    assert buffer.strides == (1, 3)
    np.testing.assert_array_equal(buffer.to_numpy(), base.T.numpy())
    np.testing.assert_array_equal(node.data().to_buffer().to_numpy(), base.T.numpy())
    assert big.is_mapped


def test_what_is_not_a_tensor_is_an_object(saved: Any) -> None:
    value = {
        "epoch": 3,
        "model": {"w": torch.ones(1), "scale": 0.5},
        "optimizer": {
            "state": {0: {"step": torch.tensor(4.0), "exp_avg": torch.zeros(2)}},
            "param_groups": [{"lr": 0.1}],
        },
        "name": "text",
        "none": None,
        "shape": torch.Size([1, 2]),
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
        "scalar": np.float32(1.5),
        "array": np.arange(3),
        "empty": {},
        "config": Config(7),
        "class": Config,
    }
    path = saved(value)
    weights = max_weights.load_weights(path)
    assert sorted(name for name, _ in weights.items()) == [
        "model.w",
        "optimizer.state.0.exp_avg",
        "optimizer.state.0.step",
    ]
    objects = max_weights.infos(weights).objects
    assert objects["epoch"] == 3
    assert objects["model.scale"] == 0.5
    assert objects["optimizer.param_groups"] == [{"lr": 0.1}]
    assert (objects["name"], objects["none"], objects["shape"]) == ("text", None, (1, 2))
    assert (objects["dtype"], objects["device"], objects["scalar"]) == (DType.bfloat16, "cpu", 1.5)
    np.testing.assert_array_equal(objects["array"], np.arange(3))
    assert objects["empty"] == {}
    assert dict(max_weights.infos(weights.model).objects) == {"model.scale": 0.5}
    placeholder = objects["config"]
    assert placeholder.global_name == f"{__name__}.Config"
    assert placeholder.states == [{"width": 7}]
    assert repr(placeholder) == f"<{__name__}.Config at byte {placeholder.position}, not built>"
    assert objects["class"].global_name == f"{__name__}.Config"
    assert "nothing" not in objects
    assert objects.get("nothing", 5) == 5
    with pytest.raises(KeyError):
        objects["nothing"]
    weights.close()
    assert objects["epoch"] == 3
    verdicts = {name: verdict for _, name, _, verdict in torch_globals(weights)}
    assert verdicts[f"{__name__}.Config"] == "needs-trust"
    assert verdicts["torch._utils._rebuild_tensor_v2"] == "harmless"


@pytest.mark.filterwarnings("ignore")
def test_what_is_no_array_is_listed_and_its_parts_are_weights(saved: Any) -> None:
    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    quantized = torch.quantize_per_tensor(dense, 0.5, 1, torch.quint8)
    weights = max_weights.load_weights(
        saved(
            {"s": dense.to_sparse(), "q": quantized, "m": torch.empty(2, 3, device="meta"), "c": dense.to_sparse_csr()}
        )
    )
    listed = {info.name: (info.dtype, info.shape) for info in max_weights.infos(weights)}
    assert listed["s"] == ("sparse_coo float32", (2, 2))
    assert listed["q"] == ("quantized quint8", (2, 2))
    assert listed["m"] == ("meta float32", (2, 3))
    for name in ("s", "q", "m", "c"):
        with refuses(UnsupportedError, "torch.no-array"):
            weights[name].data()
    np.testing.assert_array_equal(weights["s.indices"].data().to_buffer().to_numpy(), [[0, 1], [1, 0]])
    np.testing.assert_array_equal(weights["s.values"].data().to_buffer().to_numpy(), [1, 2])
    np.testing.assert_array_equal(weights["c.compressed_indices"].data().to_buffer().to_numpy(), [0, 1, 2])
    np.testing.assert_array_equal(weights["q.int_repr"].data().to_buffer().to_numpy(), quantized.int_repr().numpy())
    assert (max_weights.infos(weights).objects["q.scale"], max_weights.infos(weights).objects["q.zero_point"]) == (
        0.5,
        1,
    )


def test_elements_that_only_torch_has_come_as_bytes(saved: Any) -> None:
    tensor = torch.tensor([[1 + 2j, 3 - 4j]], dtype=torch.complex128)
    weights = max_weights.load_weights(saved({"a": tensor, "t": tensor.T}))
    assert [(info.dtype, info.shape, info.bytes) for info in max_weights.infos(weights)] == [
        ("complex128", (1, 2), 32),
        ("complex128", (2, 1), 32),
    ]
    for name in "at":
        found = weights[name].data().to_buffer()
        assert found.dtype == DType.uint8
        again = np.ascontiguousarray(found.to_numpy()).view(np.complex128)[..., 0]
        np.testing.assert_array_equal(again, getattr(tensor, "T" if name == "t" else "data").numpy())


def test_a_sharded_index_of_bin_files(tmp_path: Path) -> None:
    shards = [{"a": torch.ones(2, 3), "b": torch.arange(4)}, {"c.d": torch.zeros(5, dtype=torch.bfloat16)}]
    names = [f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)]
    for name, tensors in zip(names, shards, strict=True):
        torch.save(tensors, tmp_path / name)
    index = '{"metadata": {"total_size": 66}, "weight_map": {"a": "%s", "b": "%s", "c.d": "%s"}}'
    (tmp_path / "pytorch_model.bin.index.json").write_text(index % (names[0], names[0], names[1]))
    for path in (tmp_path, tmp_path / "pytorch_model.bin.index.json"):
        found = load_file(path)
        assert set(found) == {"a", "b", "c.d"}
        assert torch.equal(found["b"], torch.arange(4))
    (tmp_path / "pytorch_model.bin.index.json").unlink()
    assert len(max_weights.load_weights(tmp_path)) == 3
    (tmp_path / names[1]).unlink()
    with refuses(FormatError, "directory.missing-shards"):
        max_weights.load_weights(tmp_path)
    weights = max_weights.load_weights(tmp_path / names[0])
    with refuses(KeyError, "weight.not-found"):
        weights["c.d"].data()


def test_tied_weights_count_once_in_the_total_size_of_an_index(tmp_path: Path) -> None:
    tied = torch.ones(4)
    torch.save({"a": tied, "b": tied}, tmp_path / "pytorch_model-00001-of-00001.bin")
    for total in (16, 32):
        (tmp_path / "pytorch_model.bin.index.json").write_text(
            f'{{"metadata": {{"total_size": {total}}}, "weight_map": '
            '{"a": "pytorch_model-00001-of-00001.bin", "b": "pytorch_model-00001-of-00001.bin"}}'
        )
        assert len(max_weights.load_weights(tmp_path)) == 2
    (tmp_path / "pytorch_model.bin.index.json").write_text(
        '{"metadata": {"total_size": 17}, "weight_map": '
        '{"a": "pytorch_model-00001-of-00001.bin", "b": "pytorch_model-00001-of-00001.bin"}}'
    )
    with refuses(FormatError, "index.total-size"):
        max_weights.load_weights(tmp_path)


def test_torchscript_tar_and_bare_pickles_are_told_by_name(models: Path, tmp_path: Path) -> None:
    with refuses(UnsupportedError, "torch-zip.torchscript"):
        max_weights.load_weights(models / "silero_vad.jit")
    import io
    import tarfile

    with tarfile.open(tmp_path / "a.pt", "w") as archive:
        archive.addfile(tarfile.TarInfo("storages"), io.BytesIO(b""))
    with refuses(UnsupportedError, "torch.tar"):
        max_weights.load_weights(tmp_path / "a.pt")
    (tmp_path / "b.pt").write_bytes(pickle.dumps({"a": 1}))
    with refuses(FormatError, "format.pickle"):
        max_weights.load_weights(tmp_path / "b.pt")


def test_files_of_older_versions_without_a_byte_order_are_little_endian(models: Path) -> None:
    with zipfile.ZipFile(models / "crepe-tiny.pth") as archive:
        assert not any(name.endswith("byteorder") for name in archive.namelist())
    assert max_weights.load_weights(models / "crepe-tiny.pth").metadata["byteorder"] == "little"


def test_the_class_opens_files_too_and_closes_them(models: Path) -> None:
    with PytorchWeights(models / "crepe-tiny.pth") as weights:
        data = weights.conv1.weight.data()
    with pytest.raises(max_weights.ClosedError):
        weights.conv1.weight.data()
    assert data.shape == (128, 1, 512, 1)
    weight = PytorchWeights(models / "crepe-tiny.pth").conv1.bias.allocate(dtype=DType.bfloat16)
    assert weight.dtype == DType.bfloat16
