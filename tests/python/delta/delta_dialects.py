"""An independent implementation of other libraries' deltas, in NumPy, zstandard, xxhash and zlib."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
import zstandard
from safetensors import safe_open
from safetensors.numpy import save_file

Tensors = dict[str, np.ndarray]

INDEX = "model.safetensors.index.json"


def checksum(kind: str, raw: bytes) -> str:
    """The checksum of all bytes of a tensor."""
    return {"xxh3-128": lambda: xxhash.xxh3_128(raw).hexdigest(), "adler32": lambda: f"{zlib.adler32(raw):08x}"}[kind]()


def flat(tensor: np.ndarray) -> np.ndarray:
    """The bytes of a tensor in C order."""
    return np.frombuffer(tensor.tobytes(), np.uint8)


def encoded(encoding: str, old: np.ndarray, new: np.ndarray) -> bytes:
    """The uncompressed changes."""
    if encoding == "xor":
        return (old ^ new).tobytes()
    places = np.flatnonzero(old != new).astype("<u4")
    return np.array([places.size], "<u4").tobytes() + places.tobytes() + new[places].tobytes()


def publish(
    folder: Path,
    old: Tensors,
    new: Tensors,
    version: object,
    base_version: object,
    encoding: str = "xor",
    *,
    kind: str = "xxh3-128",
    shards: int = 1,
    level: int = 1,
) -> Path:
    """Write what changed as a folder `weight_v000012`."""
    folder.mkdir(parents=True, exist_ok=True)
    frames: Tensors = {}
    sums: dict[str, str] = {}
    for name, tensor in new.items():
        before, after = flat(old[name]), flat(tensor)
        if before.tobytes() != after.tobytes():
            frame = zstandard.ZstdCompressor(level=level).compress(encoded(encoding, before, after))
            frames[name], sums[name] = np.frombuffer(frame, np.uint8), checksum(kind, after.tobytes())
    weight_map: dict[str, str] = {}
    for number in range(shards):
        names = list(frames)[number::shards]
        file = f"model-{number:05}-of-{shards:05}.safetensors"
        if names:
            save_file(
                {name: frames[name] for name in names}, folder / file, metadata={name: sums[name] for name in names}
            )
        weight_map |= dict.fromkeys(names, file)
    write_index(
        folder,
        {
            "version": version,
            "base_version": base_version,
            "delta_encoding": encoding,
            "compression_format": "zstd",
            "checksum_format": kind,
        },
        weight_map,
    )
    return folder


def write_index(folder: Path, metadata: Mapping[str, object], weight_map: Mapping[str, str]) -> None:
    """Write the index, or another one."""
    (folder / INDEX).write_text(json.dumps({"metadata": metadata, "weight_map": weight_map}))


def read_published(folder: Path, base: Tensors) -> Tensors:
    """The version that a folder makes of a base, with the checks of the receivers."""
    index = json.loads((folder / INDEX).read_text())
    message: dict[str, str] = index["metadata"]
    assert message["compression_format"] == "zstd"
    new = dict(base)
    for file in sorted(set(index["weight_map"].values())):
        with safe_open(folder / file, framework="np") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                assert index["weight_map"][name] == file
                raw = zstandard.ZstdDecompressor().decompress(tensors.get_tensor(name).tobytes())
                after = flat(base[name]).copy()
                if message["delta_encoding"] == "xor":
                    after ^= np.frombuffer(raw, np.uint8)
                else:
                    count = int(np.frombuffer(raw, "<u4", 1)[0])
                    places = np.frombuffer(raw, "<u4", count, 4)
                    assert np.all(np.diff(places.astype(np.int64)) > 0)
                    after[places] = np.frombuffer(raw, np.uint8, offset=4 + 4 * count)
                sums: dict[str, str] = tensors.metadata() or {}
                assert checksum(message["checksum_format"], after.tobytes()) == sums[name]
                new[name] = np.frombuffer(after.tobytes(), base[name].dtype).reshape(base[name].shape)
    return new


def changes(old: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The places of the elements that changed, and their new values."""
    codes = np.dtype(f"u{new.itemsize}")
    before, after = (np.ascontiguousarray(tensor).reshape(-1).view(codes) for tensor in (old, new))
    places = np.flatnonzero(before != after)
    return places, np.ascontiguousarray(new).reshape(-1)[places]


def write_trl(
    path: Path, old: Tensors, new: Tensors, version: int, encoding: str = "gap_delta", *, before: int | None = None
) -> Path:
    """Write a sparse patch of TRL; with `before`, in the form of its first version."""
    tensors: Tensors = {}
    for name, tensor in new.items():
        places, values = changes(old[name], tensor)
        if places.size == 0:
            continue
        if before is not None:
            tensors |= {f"{name}.indices": places.astype(np.int32), f"{name}.values": values}
            continue
        gaps = np.diff(places, prepend=-1) - 1
        narrow = np.uint16 if gaps.max() <= 0xFFFF else np.uint32
        tensors[f"{name}.idx"] = places.astype(np.int32) if encoding == "raw" else gaps.astype(narrow)
        tensors[f"{name}.val"] = values
    metadata = {"format": "sparse_weight_patch", "version": "1", "model_version": str(version)}
    metadata |= {"sparse": "True", "encoding": encoding} if before is None else {"prev_model_version": str(before)}
    save_file(tensors, path, metadata=metadata)
    return path


def read_trl(path: Path, base: Tensors) -> Tensors:
    """The version that a sparse patch of TRL makes of a base: all of its places are gaps."""
    new = dict(base)
    with safe_open(path, framework="np") as tensors:
        message: dict[str, str] = tensors.metadata() or {}
        assert (message["format"], message["version"], message["sparse"]) == ("sparse_weight_patch", "1", "True")
        assert message["encoding"] == "gap_delta"
        assert int(message["model_version"]) > int(message["prev_model_version"])
        names = set(tensors.keys())
        if names == {"__empty_delta__"}:
            return new
        assert len(names) % 2 == 0
        for name in (name.removesuffix(".idx") for name in names if name.endswith(".idx")):
            gaps, values = tensors.get_tensor(f"{name}.idx"), tensors.get_tensor(f"{name}.val")
            assert gaps.dtype in (np.uint16, np.uint32)
            assert gaps.dtype == np.uint32 or gaps.max() <= 0xFFFF
            assert values.dtype == base[name].dtype
            after = base[name].reshape(-1).copy()
            after[np.cumsum(gaps.astype(np.int64) + 1) - 1] = values
            new[name] = after.reshape(base[name].shape)
    return new


def hash_tensor(tensor: np.ndarray) -> int:
    """`torch.hash_tensor`: the exclusive or of all elements, as floats or whole numbers of 64 bits."""
    with np.errstate(invalid="ignore"):  # NaN, which readers do not compare
        wide = tensor.astype(np.float64 if tensor.dtype.kind == "f" else np.int64)
    return int(np.bitwise_xor.reduce(wide.view(np.uint64))) if wide.size else 0


def write_prime_rl(folder: Path, old: Tensors, new: Tensors, step: int, base_step: int) -> Path:
    """Write a sparse update of prime-rl."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors: Tensors = {}
    entries: list[dict[str, Any]] = []
    for number, (name, tensor) in enumerate(new.items()):
        places, values = changes(old[name], tensor)
        if places.size == 0:
            continue
        indices = places.astype(np.int32)
        keys = {"indices": f"tensor_{number}.indices", "values": f"tensor_{number}.values"}
        tensors |= {keys["indices"]: indices, keys["values"]: values}
        entries.append(
            {
                "name": name,
                "shape": list(tensor.shape),
                **keys,
                "numel": tensor.size,
                "checksum": hash_tensor(indices) ^ hash_tensor(values),
            }
        )
    save_file(tensors, folder / "sparse_update_patch.safetensors", metadata={"format": "pt"})
    manifest = {
        "format": "prime-rl-sparse-update",
        "version": 1,
        "step": step,
        "base_step": base_step,
        "compressed": False,
        "patch_file": "sparse_update_patch.safetensors",
        "tensors": entries,
    }
    (folder / "sparse_update_manifest.json").write_text(json.dumps(manifest))
    return folder
