"""Manifests: a tensor has the same hash in files of torch, safetensors and GGUF, equal to that of hashlib."""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from command_line import run

TENSORS = {
    "float": torch.arange(-3000, 3000, dtype=torch.float32).reshape(60, 100),
    "half": torch.linspace(-1, 1, 64, dtype=torch.float16),
    "bf16": torch.linspace(-1, 1, 4096, dtype=torch.bfloat16).reshape(64, 64),
    "fp8": torch.linspace(-1, 1, 64).to(torch.float8_e4m3fn),
    "long": torch.arange(5),
    "bool": torch.tensor([True, False, True]),
    "scalar": torch.tensor(3.5, dtype=torch.float64),
    "empty": torch.zeros(0, 3),
    "größe": torch.ones(7, dtype=torch.uint8),
}
DTYPES = {torch.float32: "float32", torch.float8_e4m3fn: "float8_e4m3fn", torch.bool: "bool"}


def manifest(path: Path) -> dict[str, Any]:
    done = run("manifest", "create", path)
    assert (done.status, done.stderr) == (0, "")
    made: dict[str, Any] = json.loads(done.stdout)
    return made


def elements(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def content(name: str, dtype: str, shape: list[int], data: bytes) -> str:
    """The hash of a tensor as specified in docs/cli.md."""
    number = struct.Struct("<Q").pack
    texts = [number(len(text.encode())) + text.encode() for text in (name, dtype)]
    dims = number(len(shape)) + b"".join(map(number, shape))
    parts = [b"max-weights.tensor/1\n", *texts, dims, hashlib.sha256(data).digest()]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def test_a_tensor_has_the_hash_of_the_page_in_files_of_torch_and_of_safetensors(tmp_path: Path) -> None:
    safetensors.torch.save_file(TENSORS, tmp_path / "a.safetensors")
    torch.save(TENSORS, tmp_path / "a.pt")
    torch.save(TENSORS, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    strided = {**TENSORS, "float": TENSORS["float"].t().contiguous().t()}
    assert not strided["float"].is_contiguous()
    torch.save(strided, tmp_path / "strided.pt")
    made = {name: manifest(tmp_path / name) for name in ("a.safetensors", "a.pt", "old.pt", "strided.pt")}
    assert len({found["content"] for found in made.values()}) == 1
    for found in made.values():
        by_name = {tensor["name"]: tensor for tensor in found["tensors"]}
        assert set(by_name) == set(TENSORS)
        for name, tensor in TENSORS.items():
            record, data = by_name[name], elements(tensor)
            assert record["shape"] == list(tensor.shape)
            assert record["sha256"] == hashlib.sha256(data).hexdigest()
            assert record["content"] == content(name, record["dtype"], record["shape"], data)
            assert record["dtype"] == DTYPES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
        (file,) = found["files"]
        assert file["sha256"] == hashlib.sha256((tmp_path / file["path"]).read_bytes()).hexdigest()
    everything = sorted(bytes.fromhex(tensor["content"]) for tensor in made["a.pt"]["tensors"])
    assert made["a.pt"]["content"] == hashlib.sha256(b"max-weights.tensors/1\n" + b"".join(everything)).hexdigest()


def test_dtypes_that_only_torch_has_are_hashed_as_their_bytes(tmp_path: Path) -> None:
    value = torch.complex(torch.arange(60.0), -torch.arange(60.0)).to(torch.complex128).reshape(6, 10)
    torch.save({"plain": value, "strided": value.t()}, tmp_path / "a.pt")
    by_name = {tensor["name"]: tensor for tensor in manifest(tmp_path / "a.pt")["tensors"]}
    assert by_name["plain"]["sha256"] == hashlib.sha256(value.numpy().tobytes()).hexdigest()
    assert by_name["strided"]["sha256"] == hashlib.sha256(value.t().numpy().tobytes()).hexdigest()


def test_a_checkpoint_that_was_cut_and_converted_is_the_same(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    safetensors.torch.save_file(TENSORS, whole / "model.safetensors")
    names = sorted(TENSORS)
    torch.save({name: TENSORS[name] for name in names[:4]}, cut / "one.bin")
    safetensors.torch.save_file({name: TENSORS[name] for name in names[4:]}, cut / "two.safetensors")
    assert run("manifest", "create", whole, "-o", tmp_path / "manifest.json").status == 0
    done = run("manifest", "check", "--json", "--tensors", tmp_path / "manifest.json", cut)
    assert done.status == 0
    assert json.loads(done.stdout)["tensors"] == {"same": 0, "moved": 9, "changed": 0, "missing": 0, "new": 0}
    changed = TENSORS["float"].clone()
    changed[3, 4] += 1
    torch.save({**{name: TENSORS[name] for name in names[:4]}, "float": changed}, cut / "one.bin")
    done = run("manifest", "check", "--json", "--tensors", tmp_path / "manifest.json", cut)
    found = json.loads(done.stdout)
    assert (done.status, found["tensors"]["changed"]) == (1, 1)
    assert [item["tensor"] for item in found["findings"] if item["rule"] == "manifest.changed-tensor"] == ["float"]


def test_packed_blocks_are_hashed_as_they_lie_in_the_file(tmp_path: Path) -> None:
    import gguf

    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    values = np.linspace(-1, 1, 512, dtype=np.float32).reshape(2, 256)
    packed = gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("w", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (record,) = manifest(path)["tensors"]
    assert (record["dtype"], record["shape"]) == ("Q8_0", [2, 256])
    assert record["sha256"] == hashlib.sha256(packed.tobytes()).hexdigest()
