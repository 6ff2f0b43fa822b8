"""Deltas once more, as docs/delta.md specifies them, in NumPy and xxhash alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import xxhash
from safetensors.numpy import load_file as read_tensors

BLOCK = 65_536
NAMES = {"F16": np.float16, "F32": np.float32, "F64": np.float64, "U8": np.uint8, "I8": np.int8, "I64": np.int64}


def metadata(path: Path) -> dict[str, object]:
    """What the metadata of a delta say."""
    raw = path.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    said: dict[str, object] = json.loads(header["__metadata__"]["max_weights.delta"])
    return said


def width(dtype: np.dtype) -> int:
    """Bytes that are replaced as one."""
    return min(dtype.itemsize, 8)


def identity(tensors: Mapping[str, np.ndarray]) -> str:
    """What tells a version from others."""
    hashed = xxhash.xxh3_128()
    number = lambda value: hashed.update(int(value).to_bytes(8, "little"))  # noqa: E731
    for name, tensor in sorted(tensors.items()):
        dtype = next(text for text, own in NAMES.items() if own == tensor.dtype)
        for text in (name.encode(), dtype.encode()):
            number(len(text))
            hashed.update(text)
        number(tensor.ndim)
        for dim in tensor.shape:
            number(dim)
        raw, step = tensor.tobytes(), BLOCK * width(tensor.dtype)
        for start in range(0, len(raw), step):
            number(xxhash.xxh3_64(raw[start : start + step]).intdigest())
    return hashed.hexdigest()


def apply(base: Mapping[str, np.ndarray], path: Path) -> dict[str, np.ndarray]:
    """The version that a delta makes of a base."""
    said, stored = metadata(path), read_tensors(path)
    changed, removed = said.get("changed", {}), said.get("removed", [])
    assert isinstance(changed, dict)
    assert isinstance(removed, list)
    assert identity(base) == said["base"]
    new = {name: tensor.copy() for name, tensor in base.items() if name not in removed}
    for name in changed:
        records, rows = stored.pop(f"{name}.changes").tobytes(), stored.pop(f"{name}.blocks")
        size = width(new[name].dtype)
        elements = new[name].reshape(-1).view(np.uint8).reshape(-1, size)
        ends = [*map(int, rows[1:, 1]), len(records)]
        for (number, start, *counts, places, before, after), end in zip(rows.tolist(), ends, strict=True):
            block = elements[number * BLOCK : (number + 1) * BLOCK]
            assert xxhash.xxh3_64(block.tobytes()).intdigest() == before
            change(block, records[start:end], counts, places)
            assert xxhash.xxh3_64(block.tobytes()).intdigest() == after
    new.update(stored)
    assert identity(new) == said["target"]
    return new


def change(block: np.ndarray, record: bytes, counts: list[int], places: int) -> None:
    """Replaces what a record says: the lower halves of some elements, and others as a whole."""
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
    """The places of so many elements, and where those of the next list begin."""
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


__all__ = ["apply", "identity", "metadata"]
