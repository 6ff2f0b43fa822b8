"""Saving: safetensors, torch and this package read the files, which appear atomically."""

import json
import os
import stat
import threading
from enum import Enum
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

import max_weights
from max_weights import DeviceRef, DType, SafetensorsWriter, load_weights, nn, save_file, save_gguf, save_sharded
from max_weights.errors import ArgumentError, FormatError
from refusals import refuses

TORCH_DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.float8_e4m3fn,
    torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]  # fmt: skip


def state_dict() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(7)
    return {
        f"layers.{i}.{name}": torch.randn(shape, generator=generator).to(dtype)
        for i in range(3)
        for name, shape, dtype in (
            ("weight", (64, 32), torch.bfloat16),
            ("bias", (64,), torch.float32),
            ("scale", (), torch.float16),
            ("nothing", (0, 7), torch.float32),
        )
    }


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and a.contiguous().flatten().view(torch.uint8).equal(b.contiguous().flatten().view(torch.uint8))
    )


def test_what_torch_has_is_read_back_by_safetensors_bit_for_bit(tmp_path: Path) -> None:
    tensors = state_dict() | {
        str(dtype): torch.arange(64, dtype=torch.uint8).repeat(4).view(dtype)
        if dtype is not torch.bool
        else torch.tensor([True, False])
        for dtype in TORCH_DTYPES
    }
    path = tmp_path / "model.safetensors"
    save_file(tensors, path, {"note": "é"})
    found = safetensors.torch.load_file(path)
    assert found.keys() == tensors.keys()
    assert all(same(found[name], tensor) for name, tensor in tensors.items())
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt", "note": "é"}


def test_arrays_of_numpy_and_jax_and_weights_are_saved(tmp_path: Path) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    small = array.astype(ml_dtypes.bfloat16)
    save_file({"a": array, "b": small, "c": jnp.asarray(array), "d": array.astype(">f4"), "e": array.T}, tmp_path / "x")
    found = load_weights(tmp_path / "x")
    for name in "acd":
        np.testing.assert_array_equal(np.asarray(found[name].data()), array)
    np.testing.assert_array_equal(np.asarray(found["e"].data()), array.T)
    assert found["b"].data().dtype is DType.bfloat16
    save_file({"a": found["a"], "b": found["b"].data(), "c": found["c"].data().to_buffer()}, tmp_path / "y")
    assert safetensors.numpy.load_file(tmp_path / "y")["a"].tobytes() == array.tobytes()


def test_modules_and_trees_are_saved_by_their_names(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    save_file(module, tmp_path / "torch.safetensors")
    found = safetensors.torch.load_file(tmp_path / "torch.safetensors")
    assert found.keys() == module.state_dict().keys()
    with load_weights(tmp_path / "torch.safetensors") as weights:
        save_file(weights, tmp_path / "tree.safetensors")
    assert (tmp_path / "tree.safetensors").read_bytes() == (tmp_path / "torch.safetensors").read_bytes()
    layer = nn.Linear(4, 3, DType.float32, DeviceRef.CPU(), has_bias=True)
    layer.load_state_dict({"weight": np.ones((3, 4), np.float32), "bias": np.ones(3, np.float32)}, strict=False)
    save_file(layer, tmp_path / "nn.safetensors")
    assert safetensors.numpy.load_file(tmp_path / "nn.safetensors")["weight"].shape == (3, 4)


def test_weights_of_max_give_tensors_of_max(tmp_path: Path) -> None:
    class MaxWeightData:
        """Like that of MAX: `to_buffer` returns a tensor of MAX, not of this package."""

        def __init__(self, data: torch.Tensor, encoding: Any = None) -> None:
            self.data, self.quantization_encoding = data, encoding

        def to_buffer(self) -> torch.Tensor:
            return self.data

    class MaxModule:
        def state_dict(self) -> dict[str, Any]:
            return {"a": MaxWeightData(torch.arange(6.0).reshape(2, 3)), "b": torch.ones(3, dtype=torch.bfloat16)}

    save_file(MaxModule(), tmp_path / "max.safetensors")
    found = safetensors.torch.load_file(tmp_path / "max.safetensors")
    assert same(found["a"], torch.arange(6.0).reshape(2, 3))
    assert same(found["b"], torch.ones(3, dtype=torch.bfloat16))
    encoding = Enum("QuantizationEncoding", {"Q8_0": "Q8_0"}).Q8_0
    packed = {"a": MaxWeightData(torch.zeros(2, 34, dtype=torch.uint8), encoding)}
    with refuses(ArgumentError, "argument.tensor"):
        save_file(packed, tmp_path / "max.safetensors")
    save_gguf(packed, tmp_path / "max.gguf")
    assert load_weights(tmp_path / "max.gguf")["a"].data().quantization_encoding.value == "Q8_0"


def test_the_same_tensors_are_the_same_bytes_over_100_runs_and_any_order(tmp_path: Path) -> None:
    tensors = state_dict()
    names = list(tensors)
    random = np.random.default_rng(0)
    seen = set()
    for _ in range(100):
        random.shuffle(names)
        save_file({name: tensors[name] for name in names}, tmp_path / "x", {"b": "1", "a": "2"}, sync=False)
        seen.add((tmp_path / "x").read_bytes())
    assert len(seen) == 1


def test_a_file_is_saved_over_while_it_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors = state_dict()
    save_file(tensors, path)
    loaded = safetensors.torch.load_file(path)
    ours = {name: torch.from_dlpack(weight.data()) for name, weight in load_weights(path).items()}
    save_file({name: tensor + 1 if tensor.is_floating_point() else tensor for name, tensor in ours.items()}, path)
    assert all(same(loaded[name], tensors[name]) and same(ours[name], tensors[name]) for name in tensors)
    assert same(safetensors.torch.load_file(path)["layers.0.bias"], tensors["layers.0.bias"] + 1)


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_a_new_file_has_the_mode_of_the_umask_and_a_replaced_one_keeps_its_own(tmp_path: Path, mask: int) -> None:
    path = tmp_path / "model.safetensors"
    before = os.umask(mask)
    try:
        save_file({"a": np.zeros(1)}, path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
        path.chmod(0o640)
        save_file({"a": np.zeros(2)}, path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
    finally:
        os.umask(before)


def test_tied_tensors_are_copied_noted_or_refused(tmp_path: Path) -> None:
    shared = torch.randn(4, 4)
    tensors = {"lm_head": shared, "embed": shared, "part": shared[:2], "other": torch.zeros(2)}
    path = tmp_path / "model.safetensors"
    save_file(tensors, path)
    assert safetensors.torch.load_file(path).keys() == tensors.keys()
    save_file(tensors, path, tied="alias")
    with safetensors.safe_open(path, "pt") as file:
        assert set(file.keys()) == {"embed", "part", "other"}
        assert file.metadata() == {"format": "pt", "lm_head": "embed"}
    with refuses(ArgumentError, "argument.tensor"):
        save_file(tensors, path, tied="refuse")
    model = torch.nn.Linear(4, 4, bias=False)
    model.again = model.weight
    save_file(model, path, tied="alias")
    other = torch.nn.Linear(4, 4, bias=False)
    other.again = other.weight
    assert safetensors.torch.load_model(other, path) == (set(), [])
    assert same(other.weight, model.weight)


def test_what_is_no_tensor_or_has_no_elements_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"old")

    def refused(kind: type[Exception], match: str, tensors: Any, **options: Any) -> None:
        with pytest.raises(kind, match=match):
            save_file(tensors, path, **options)
        assert path.read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["model.safetensors"]

    array = np.zeros((2, 3), np.float32)
    refused(ArgumentError, "'a': it is on the device meta", {"a": torch.zeros(2, device="meta")})
    refused(ArgumentError, "'a': it is torch.sparse_coo", {"a": torch.zeros(2, 2).to_sparse()})
    refused(ArgumentError, "complex128", {"a": torch.zeros(2, dtype=torch.complex128)})
    refused(TypeError, "'a': str is not a tensor", {"a": "text"})
    refused(TypeError, "names of tensors must be strings, not 3", {3: array})
    refused(TypeError, "not list", [array])
    refused(TypeError, "metadata must map strings to strings", {"a": array}, metadata={"step": 3})
    refused(ValueError, "__metadata__", {"__metadata__": array})
    refused(ArgumentError, "'a' is not contiguous", {"a": array.T}, strided="refuse")
    refused(ArgumentError, "tied='maybe'", {"a": array}, tied="maybe")
    refused(ValueError, "power of two", {"a": array}, alignment=3)
    with refuses(IsADirectoryError):
        save_file({"a": array}, tmp_path)
    with refuses(FileNotFoundError):
        save_file({"a": array}, tmp_path / "missing" / "x")


def test_a_file_that_is_read_only_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"old")
    path.chmod(0o444)
    if os.access(path, os.W_OK):  # the superuser may do everything
        save_file({"a": np.zeros(1)}, path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o444
        return
    with pytest.raises(PermissionError, match="read-only"):
        save_file({"a": np.zeros(1)}, path)
    assert path.read_bytes() == b"old"


def test_shards_are_read_by_everybody(tmp_path: Path) -> None:
    tensors = state_dict()
    files = save_sharded(tensors, tmp_path / "model", max_shard_size="6KB")
    assert [file.name for file in files] == [
        *(f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)),
        "model.safetensors.index.json",
    ]
    index = json.loads(files[-1].read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    with load_weights(tmp_path / "model") as weights:
        assert {
            name: same(torch.from_dlpack(weight.data()), tensors[name]) for name, weight in weights.items()
        } == dict.fromkeys(tensors, True)
    found: dict[str, torch.Tensor] = {}
    for file in files[:-1]:
        found |= safetensors.torch.load_file(file)
    assert found.keys() == index["weight_map"].keys() == tensors.keys()
    assert [file.name for file in save_sharded(tensors, tmp_path / "model")] == ["model.safetensors"]
    assert os.listdir(tmp_path / "model") == ["model.safetensors"]
    for size in ("5 GB", "1.5GiB", "10kb", 100, "7"):
        save_sharded({"a": np.zeros(1)}, tmp_path / "sizes", max_shard_size=size)
    for wrong in ("", "GB", "5X", "five", "-"):
        with refuses(ArgumentError, "argument.number"):
            save_sharded({"a": np.zeros(1)}, tmp_path / "sizes", max_shard_size=wrong)


def test_a_writer_takes_parts_from_several_threads(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    big = np.arange(1 << 20, dtype=np.float32).reshape(1024, 1024)
    with SafetensorsWriter(path, {"big": (DType.float32, big.shape), "small": ("float16", [2])}) as writer:
        writer.write("small", np.array([1, 2], np.float16))

        def rows(start: int) -> None:
            for row in range(start, 1024, 4):
                writer.write_part("big", row * 4096, big[row])

        threads = [threading.Thread(target=rows, args=(start,)) for start in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not path.exists()
    np.testing.assert_array_equal(safetensors.numpy.load_file(path)["big"], big)
    with refuses(ValueError):
        writer.write("small", np.zeros(2, np.float16))


def test_a_writer_that_is_given_up_or_not_finished_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"old")
    declared = {"a": (DType.float32, (2,)), "b": (DType.float32, (2,))}

    def breaks() -> None:
        with SafetensorsWriter(path, declared) as writer:
            writer.write("a", np.zeros(2, np.float32))
            raise RuntimeError("mine")

    with refuses(RuntimeError):
        breaks()
    with refuses(ValueError), SafetensorsWriter(path, declared) as writer:
        writer.write("a", np.zeros(2, np.float32))
    with refuses(ValueError), SafetensorsWriter(path, declared) as writer:
        writer.write("a", np.zeros(2))
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["model.safetensors"]


def test_what_was_read_back_is_the_same_file(tmp_path: Path, models: Path) -> None:
    tensors = state_dict()
    with load_weights(models / "minilm.safetensors") as tree:
        saves = {
            "file": lambda path, **options: save_file(tensors, path / "a.safetensors", **options),
            "sharded": lambda path, **options: save_sharded(tensors, path, max_shard_size="1KB", **options),
            "gguf": lambda path, **options: save_gguf(tensors, path / "a.gguf", quantize="q8_0", **options),
            "tree": lambda path, **options: tree.save(path / "a.safetensors", dtype="bfloat16", **options),
        }
        for name, save in saves.items():
            written = []
            for read_back in (False, True):
                folder = tmp_path / f"{name}-{read_back}"
                folder.mkdir()
                save(folder, read_back=read_back)
                written.append({file.name: file.read_bytes() for file in sorted(folder.iterdir())})
            assert written[0] == written[1], name


def test_a_writer_that_reads_back_finds_a_changed_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"what was there")
    writer = SafetensorsWriter(path, {"w": ("float32", (8,))}, read_back=True)
    writer.write("w", np.ones(8, np.float32))
    (unfinished,) = (file for file in tmp_path.iterdir() if file != path)
    spoiled = bytearray(unfinished.read_bytes())
    spoiled[-1] ^= 1
    unfinished.write_bytes(spoiled)
    with refuses(FormatError, "tensor.digest"):
        writer.finish()
    assert path.read_bytes() == b"what was there"
    assert list(tmp_path.iterdir()) == [path]


def test_progress_is_told_and_may_end_the_work(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    reported: list[tuple[int, int]] = []
    save_file({"a": np.zeros(1 << 20)}, path, progress=lambda done, total: reported.append((done, total)))
    assert reported[0] == (0, 8 << 20)
    assert reported[-1] == (8 << 20, 8 << 20)

    def stop(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_file({"a": np.ones(1 << 20)}, path, progress=stop)
    assert not np.frombuffer(path.read_bytes()[-8:]).any()
    assert os.listdir(tmp_path) == ["model.safetensors"]


def test_a_tree_is_saved_converted_renamed_and_in_part(tmp_path: Path, models: Path) -> None:
    source = models / "smollm2-135m.Q4_1.gguf"
    with load_weights(source) as weights:
        files = weights.save(tmp_path / "hf", dtype="bfloat16", rename="hf", max_shard_size="100MB")
        assert len(files) > 2
        assert files[-1].name == "model.safetensors.index.json"
        expected = max_weights.renamed(weights, "hf").load(dtype="bfloat16")
    with load_weights(tmp_path / "hf") as saved:
        found = saved.load()
        assert found.keys() == expected.keys()
        for name, buffer in expected.items():
            assert found[name].dtype == buffer.dtype
            assert found[name].shape == buffer.shape
            assert found[name].view(DType.uint8).to_numpy().tobytes() == buffer.view(DType.uint8).to_numpy().tobytes()


def test_what_is_saved_has_the_digests_of_its_source(tmp_path: Path, models: Path) -> None:
    for name in ("minilm.safetensors", "crepe-tiny.pth"):
        path = next(models.rglob(name), None)
        assert path is not None, name
        with load_weights(path) as weights:
            (saved,) = weights.save(tmp_path / "saved.safetensors")
            infos = {info.name: (info.dtype, info.shape) for info in max_weights.infos(weights)}
            digests = max_weights.fingerprint(weights, digests=True).digests
        with load_weights(saved) as again:
            assert {info.name: (info.dtype, info.shape) for info in max_weights.infos(again)} == infos
            assert max_weights.fingerprint(again, digests=True).digests == digests


@pytest.mark.parametrize("name", ["model.gguf", "MODEL.GGUF"])
def test_a_path_of_gguf_is_no_place_for_safetensors(tmp_path: Path, name: str) -> None:
    save_file({"a": np.zeros(1)}, tmp_path / "x")
    for save in (
        lambda: save_file({"a": np.zeros(1)}, tmp_path / name),
        lambda: save_file(load_weights(tmp_path / "x"), tmp_path / name),
        lambda: SafetensorsWriter(tmp_path / name, {"a": ("float32", (1,))}),
    ):
        with refuses(ArgumentError, "argument.value"):
            save()
    save_sharded({"a": np.zeros(1)}, tmp_path / name)  # a folder may be called so
    assert list(load_weights(tmp_path / name / "model.safetensors").load()) == ["a"]
