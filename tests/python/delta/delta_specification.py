"""An independent implementation of docs/delta.md, in NumPy and xxhash."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import xxhash
from safetensors.numpy import load_file as read_tensors
from safetensors.numpy import save_file as write_tensors

BLOCK = 65_536
NAMES = {
    "F16": np.float16,
    "F32": np.float32,
    "F64": np.float64,
    "U8": np.uint8,
    "I8": np.int8,
    "I64": np.int64,
    "U64": np.uint64,
}
KEY = "max_weights.delta"
DIGEST = "max_weights.delta.digest"
PREFIX = "max_weights.delta/"
FIELDS = {
    "version", "base", "target", "folded", "base_tensors", "samples", "removed", "changed", "whole", "unchanged",
}  # fmt: skip


def _header(path: Path) -> tuple[dict[str, object], int]:
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), 8 + length


def metadata(path: Path) -> dict[str, object]:
    """The description in a delta's metadata, if the digest of its header is right."""
    header, data = _header(path)
    pairs = header.pop("__metadata__")
    assert isinstance(pairs, dict)
    assert set(pairs) == {KEY, DIGEST}
    assert pairs[DIGEST] == header_digest(pairs[KEY], header, data)
    message: dict[str, object] = json.loads(pairs[KEY])
    assert message["version"] == 2
    assert set(message) == FIELDS
    return message


def header_digest(text: str, tensors: Mapping[str, object], data: int) -> str:
    """The digest of a header: its description, and the tensors, whose bytes begin at `data` of the file."""
    hashed = xxhash.xxh3_128()
    _add_text(hashed, text)
    for name, entry in sorted(tensors.items(), key=lambda item: item[0].encode()):
        assert isinstance(entry, dict)
        _add_tensor(hashed, name, entry["dtype"], entry["shape"])
        for offset in entry["data_offsets"]:
            hashed.update((data + offset).to_bytes(8, "little"))
    return hashed.hexdigest()


def _add_text(hashed: xxhash.xxh3_128, text: str) -> None:
    hashed.update(len(text.encode()).to_bytes(8, "little"))
    hashed.update(text.encode())


def _add_tensor(hashed: xxhash.xxh3_128, name: str, dtype: str, shape: Sequence[int]) -> None:
    _add_text(hashed, name)
    _add_text(hashed, dtype)
    for number in (len(shape), *shape):
        hashed.update(int(number).to_bytes(8, "little"))


def _dtype(tensor: np.ndarray) -> str:
    return next(text for text, own in NAMES.items() if own == tensor.dtype)


def hash_of(raw: bytes) -> str:
    """A digest of 64 bits."""
    return f"{xxhash.xxh3_64(raw).intdigest():016x}"


def tensors_digest(tensors: Mapping[str, np.ndarray]) -> str:
    """The digest of names, dtypes and shapes."""
    total = 0
    for name, tensor in tensors.items():
        hashed = xxhash.xxh3_128()
        _add_tensor(hashed, name, _dtype(tensor), tensor.shape)
        total += hashed.intdigest()
    return f"{total % (1 << 128):032x}"


def unchanged(names: Iterable[str]) -> np.ndarray:
    """The names of the unchanged tensors."""
    return np.array(sorted(xxhash.xxh3_64(name.encode()).intdigest() for name in names), np.uint64)


def sealed(tensors: Mapping[str, np.ndarray], message: Mapping[str, object], to: Path) -> Path:
    """Write a delta of these tensors and this description, with the digest of its header."""
    pairs = {KEY: json.dumps(message), DIGEST: "0" * 32}
    write_tensors(dict(tensors), to, pairs)
    header, data = _header(to)
    del header["__metadata__"]
    digest = header_digest(pairs[KEY], header, data)
    front = f'"{DIGEST}":"'
    raw = to.read_bytes()
    assert raw.count((front + pairs[DIGEST]).encode()) == 1
    to.write_bytes(raw.replace((front + pairs[DIGEST]).encode(), (front + digest).encode()))
    return to


def width(dtype: np.dtype) -> int:
    """Bytes that are replaced together."""
    return min(dtype.itemsize, 8)


def identity(tensors: Mapping[str, np.ndarray]) -> str:
    """The identity of a version."""
    hashed = xxhash.xxh3_128()
    for name, tensor in sorted(tensors.items(), key=lambda item: item[0].encode()):
        _add_tensor(hashed, name, _dtype(tensor), tensor.shape)
        raw, step = tensor.tobytes(), BLOCK * width(tensor.dtype)
        for start in range(0, len(raw), step):
            hashed.update(xxhash.xxh3_64(raw[start : start + step]).intdigest().to_bytes(8, "little"))
    return hashed.hexdigest()


def apply(base: Mapping[str, np.ndarray], path: Path) -> dict[str, np.ndarray]:
    """The version that a delta makes of a base."""
    message, stored = metadata(path), read_tensors(path)
    changed, removed, whole, samples = (message[name] for name in ("changed", "removed", "whole", "samples"))
    assert isinstance(changed, dict)
    assert isinstance(removed, list)
    assert isinstance(whole, dict)
    assert isinstance(samples, list)
    assert identity(base) == message["base"]
    assert tensors_digest(base) == message["base_tensors"]
    for name, number, digest in samples:
        step = BLOCK * width(base[name].dtype)
        assert hash_of(base[name].tobytes()[number * step : (number + 1) * step]) == digest
    names = stored.pop(f"{PREFIX}unchanged")
    assert hash_of(names.tobytes()) == message["unchanged"]
    assert np.array_equal(names, unchanged(set(base) - {*removed, *changed, *whole}))
    new = {name: tensor.copy() for name, tensor in base.items() if name not in removed}
    for name, (dtype, shape, digest) in changed.items():
        assert (dtype, shape) == (_dtype(new[name]), list(new[name].shape))
        records, rows = stored.pop(f"{PREFIX}changes/{name}").tobytes(), stored.pop(f"{PREFIX}blocks/{name}")
        assert hash_of(rows.tobytes()) == digest
        size = width(new[name].dtype)
        elements = new[name].reshape(-1).view(np.uint8).reshape(-1, size)
        ends = [*map(int, rows[1:, 1]), len(records)]
        for (number, start, *counts, places, before, after, record), end in zip(rows.tolist(), ends, strict=True):
            block = elements[number * BLOCK : (number + 1) * BLOCK]
            assert xxhash.xxh3_64(block.tobytes()).intdigest() == before
            assert xxhash.xxh3_64(records[start:end]).intdigest() == record
            change(block, records[start:end], counts, places)
            assert xxhash.xxh3_64(block.tobytes()).intdigest() == after
    for name, digest in whole.items():
        new[name], rows = stored.pop(f"{PREFIX}values/{name}"), stored.pop(f"{PREFIX}blocks/{name}")
        assert hash_of(rows.tobytes()) == digest
        assert np.array_equal(rows, rows_of(new[name]))
    assert not stored
    assert identity(new) == message["target"]
    return new


def rows_of(tensor: np.ndarray) -> np.ndarray:
    """The rows of a tensor that is stored completely."""
    raw, step = tensor.tobytes(), BLOCK * width(tensor.dtype)
    hashes = [xxhash.xxh3_64(raw[start : start + step]).intdigest() for start in range(0, len(raw), step)]
    nothing = xxhash.xxh3_64(b"").intdigest()
    rows = [(number, 0, 0, 0, 0, own, own, nothing) for number, own in enumerate(hashes)]
    return np.array(rows, np.uint64).reshape(-1, 8)


def change(block: np.ndarray, record: bytes, counts: list[int], places: int) -> None:
    """Apply a record: replace the lower halves of some elements, and other elements completely."""
    size = block.shape[1]
    at = 0
    values = []
    for count, length in zip(counts, (size // 2, size), strict=True):
        values.append(np.frombuffer(record, np.uint8, count * length, at).reshape(count, length))
        at += count * length
    for which, (count, value) in enumerate(zip(counts, values, strict=True)):
        if places >> which & 1:
            numbers = np.frombuffer(record, "<u2", count, at).astype(np.int64)
            at += 2 * count
        else:
            numbers, at = gaps(record, at, count)
        block[numbers, : value.shape[1]] = value
    assert at == len(record)


def gaps(record: bytes, at: int, count: int) -> tuple[np.ndarray, int]:
    """The positions of `count` elements, and the offset of the next list."""
    numbers: list[int] = []
    after = 0
    while len(numbers) < count:
        byte, at = record[at], at + 1
        if byte == 255:
            after += 254
        elif byte == 254:
            run, at = record[at], at + 1
            numbers += range(after, after + run)
            after += run
        else:
            numbers.append(after + byte)
            after += byte + 1
    assert len(numbers) == count
    return np.array(numbers, np.int64), at


__all__ = ["PREFIX", "apply", "hash_of", "header_digest", "identity", "metadata", "rows_of", "sealed", "unchanged"]
