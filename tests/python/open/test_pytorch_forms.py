"""Rare forms of PyTorch files: distributed tensors, views of legacy storages, torch-only dtypes, file names."""

import os
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import max_weights
from max_weights import numpy as max_weights_numpy
from max_weights.dtype import DType
from max_weights.errors import FormatError, UnsupportedError, WeightsError
from max_weights.torch import load, load_file
from refusals import refuses

DISTRIBUTED = """
import sys, torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
mesh = init_device_mesh("cpu", (2,))
shard = DTensor.from_local(torch.arange(6.0).reshape(2, 3), mesh, [Shard(0)], run_check=False)
torch.save({"a.w": shard, "p": torch.nn.Parameter(shard), "b": torch.ones(2)}, sys.argv[1])
"""


def test_the_local_shard_of_a_distributed_tensor_is_a_weight(tmp_path: Path) -> None:
    path = tmp_path / "rank0.pt"
    subprocess.run([sys.executable, "-W", "ignore", "-c", DISTRIBUTED, os.fspath(path)], check=True, timeout=300)
    weights = max_weights.load_weights(path)
    listed = {info.name: (info.dtype, info.shape) for info in max_weights.infos(weights)}
    assert listed == {
        "a.w": ("wrapper float32", (4, 3)),
        "p": ("wrapper float32", (4, 3)),
        "a.w._local_tensor": (DType.float32, (2, 3)),
        "p._local_tensor": (DType.float32, (2, 3)),
        "b": (DType.float32, (2,)),
    }
    expected = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(np.asarray(weights["a.w._local_tensor"].data()), expected)
    assert max_weights.infos(weights).aliases == [["a.w._local_tensor", "p._local_tensor"]]
    with refuses(UnsupportedError, "torch.no-array") as caught:
        weights["a.w"].data()
    assert "torch.load" not in str(caught.value)
    with refuses(UnsupportedError, "torch.global"):
        load(path)


def legacy(path: Path, storages: list[tuple[str, bytes, int]], tensors: dict[str, bytes]) -> Path:
    """A stream of these storages (key, bytes, elements) and tensors (the instructions for them)."""
    parts = [0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}]
    head = b"".join(pickle.dumps(part, 2) for part in parts)
    state = b"\x80\x02}(" + b"".join(text(name) + tensor for name, tensor in tensors.items()) + b"u."
    keys = pickle.dumps([key for key, *_ in storages], 2)
    body = b"".join(struct.pack("<q", count) + data for _, data, count in storages)
    path.write_bytes(head + state + keys + body)
    return path


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def viewed(view: tuple[str, int, int] | None, offset: int, count: int, storage: str = "FloatStorage") -> bytes:
    """A tensor of a legacy storage "7" of eight elements, or of a view (key, offset, elements) of it."""
    part = b"N" if view is None else text(view[0]) + b"K%cK%c\x87" % view[1:]
    reference = b"(" + text("storage") + f"ctorch\n{storage}\n".encode() + text("7") + text("cpu") + b"K\x08" + part
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n("
        + (reference + b"tQ")
        + b"K%cK%c\x85K\x01\x85" % (offset, count)
        + b"\x89ccollections\nOrderedDict\n)RtR"
    )


def test_views_of_legacy_storages_lie_in_the_whole(tmp_path: Path) -> None:
    data = np.arange(8, dtype=np.float32)
    tensors = {"whole": viewed(None, 0, 8), "part": viewed(("8", 2, 4), 1, 3), "other": viewed(("9", 6, 2), 0, 2)}
    path = legacy(tmp_path / "a.pt", [("7", data.tobytes(), 8)], tensors)
    found, reference = load(path), torch.load(path, weights_only=True)
    for name, tensor in reference.items():
        assert torch.equal(found[name], tensor), name
        assert found[name].data_ptr() - found["whole"].data_ptr() == tensor.data_ptr() - reference["whole"].data_ptr()
    weights = max_weights.load_weights(path)
    np.testing.assert_array_equal(np.asarray(weights["part"].data()), [3, 4, 5])
    np.testing.assert_array_equal(np.asarray(weights["other"].data()), [6, 7])
    assert max_weights.infos(weights).aliases == [["whole", "part", "other"]]
    for view, offset, count in [(("8", 2, 7), 0, 1), (("8", 2, 4), 2, 3)]:
        broken = legacy(tmp_path / "b.pt", [("7", data.tobytes(), 8)], {"t": viewed(view, offset, count)})
        for opened in (max_weights.load_weights, load):
            with pytest.raises(FormatError):
                opened(broken)


def test_a_view_that_begins_within_an_element_is_read_and_not_built(tmp_path: Path) -> None:
    tensor = viewed(("8", 1, 4), 0, 1, "ByteStorage").replace(b"_rebuild_tensor_v2", b"_rebuild_tensor_v3")
    assert tensor.endswith(b")RtR")
    path = legacy(tmp_path / "a.pt", [("7", bytes(8), 8)], {"t": tensor[:-2] + b"ctorch\nfloat32\ntR"})
    assert np.asarray(max_weights.load_weights(path)["t"].data()) == [0]
    with refuses(FormatError, "torch.view-place") as caught:
        load(path)
    assert caught.value.rule == "torch.view-place"


def test_the_name_of_the_file_says_nothing(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(4.0)}
    for number, name in enumerate(["model.ckpt", "model.pt", "model.pth", "model.pkl", "pytorch_model.bin", "weights"]):
        path = tmp_path / name
        torch.save(tensors, path, _use_new_zipfile_serialization=number % 2 == 0)
        assert torch.equal(load_file(path)["a"], tensors["a"])


def test_a_ckpt_of_a_trainer_has_its_state_dict_and_the_rest_as_objects(tmp_path: Path) -> None:
    module = torch.nn.Linear(3, 2)
    value = {"state_dict": module.state_dict(), "epoch": 4, "pytorch-lightning_version": "2.5", "callbacks": {}}
    torch.save(value, tmp_path / "last.ckpt")
    weights = max_weights.load_weights(tmp_path / "last.ckpt")
    np.testing.assert_array_equal(np.asarray(weights.state_dict.weight.data()), module.weight.detach().numpy())
    assert dict(max_weights.infos(weights).objects) == {"epoch": 4, "pytorch-lightning_version": "2.5", "callbacks": {}}


@pytest.mark.parametrize("kind", ["sparse", "quantized", "meta"])
@pytest.mark.filterwarnings("ignore")
def test_load_file_refuses_what_is_no_array_by_name(tmp_path: Path, kind: str) -> None:
    made: Any = {
        "sparse": lambda: torch.eye(2).to_sparse(),
        "quantized": lambda: torch.quantize_per_tensor(torch.eye(2), 0.5, 1, torch.quint8),
        "meta": lambda: torch.empty(2, 2, device="meta"),
    }[kind]()
    torch.save({"dense": torch.ones(2), "odd": made}, tmp_path / "a.pt")
    for opened in (load_file, max_weights_numpy.load_file):
        with refuses(UnsupportedError, "torch.no-array") as caught:
            opened(tmp_path / "a.pt")
        assert (caught.value.rule, caught.value.tensor) == ("torch.no-array", "odd")


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", [torch.complex128, torch.complex32])
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_dtype_that_only_torch_has(tmp_path: Path, dtype: torch.dtype, method: int) -> None:
    base = torch.complex(torch.arange(6.0), -torch.arange(6.0)).reshape(2, 3).to(dtype)
    tensors = {"a": base, "turned": base.T, "part": base[1:, ::2], "scalar": base[1, 1], "empty": base[:0]}
    torch.save(tensors, tmp_path / "plain.pt")
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(tmp_path / "plain.pt") as old, zipfile.ZipFile(path, "w", method) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    found = load_file(path)
    for name, tensor in tensors.items():
        assert found[name].dtype == dtype
        assert torch.equal(torch.view_as_real(found[name]), torch.view_as_real(tensor)), name
    arrays = max_weights_numpy.load_file(path)
    assert arrays["a"].dtype == np.uint8
    assert arrays["a"].shape == (2, 3, dtype.itemsize)
    assert arrays["turned"].tobytes() == tensors["turned"].contiguous().view(torch.uint8).numpy().tobytes()
    with refuses(UnsupportedError, "tensor.unknown-type") as caught:
        max_weights.load_weights(path)["a"].allocate(dtype=DType.float32)
    assert (caught.value.rule, caught.value.tensor) == ("tensor.unknown-type", "a")


def test_dates_of_numpy_are_placeholders_as_their_unit_is_not_kept(tmp_path: Path) -> None:
    date = np.datetime64("2020-01-02", "D")
    torch.save({"t": torch.ones(1), "date": date, "dates": np.array([date]), "n": np.arange(2)}, tmp_path / "a.pt")
    objects = max_weights.infos(max_weights.load_weights(tmp_path / "a.pt")).objects
    assert "not built" in repr(objects["date"])
    assert "not built" in repr(objects["dates"])
    np.testing.assert_array_equal(objects["n"], [0, 1])
    with refuses(WeightsError, "torch.global"):
        load(tmp_path / "a.pt")
