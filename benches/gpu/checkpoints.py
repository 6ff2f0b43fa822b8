"""The checkpoints that the GPU benches load, generated: no two blocks of 4 KiB are equal."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import files

BLOCK = 1 << 20
PAGE = 4096
HIDDEN, KV, FEED_FORWARD = 4096, 1024, 14336
LAYER_BYTES = 2 * (2 * HIDDEN * HIDDEN + 2 * KV * HIDDEN + 3 * HIDDEN * FEED_FORWARD)
OVERHEAD_BYTES = 2 * 2 * 32_000 * HIDDEN
Q4_K = 12, 144, 256  # ggml's number, bytes and elements of a block
ROW_BLOCKS, ROWS = 56, 4096


def _content(size: int, first: int) -> Iterator[bytes]:
    """Ordinary bf16 numbers between 0.0078 and 2 of either sign; the first ones of each page count the pages."""
    block = np.frombuffer(bytearray(np.random.default_rng(0).bytes(BLOCK)), np.uint8)
    block[1::2] = 0x3C | block[1::2] & 0x83
    counts = block.view(np.uint64)[:: PAGE // 8]
    for start in range(0, size, BLOCK):
        numbers = np.arange(len(counts), dtype=np.uint64) + (first + start) // PAGE
        counts[:] = 0x3F803F803F803F80
        for part in range(4):  # 28 bits, seven in the mantissa of each number
            counts |= ((numbers >> np.uint64(7 * part)) & np.uint64(127)) << np.uint64(16 * part)
        yield block[: min(BLOCK, size - start)].tobytes()


def safetensors(folder: Path, gigabytes: float) -> Path:
    """Write a file of about `gb` gigabytes: a Llama of hidden size 4096 with as many layers as fit."""
    layers = max(1, round((gigabytes * 1e9 - OVERHEAD_BYTES) / LAYER_BYTES))
    small = gigabytes < 0.5
    entries = list(files.llama(2, 256, 64, 512) if small else files.llama(layers, HIDDEN, KV, FEED_FORWARD))
    path = folder / f"gpu-{gigabytes:g}.safetensors"
    header: dict[str, Any] = {}
    end = 0
    for entry in entries:
        start, end = end, end + entry.size
        header[entry.name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    if not path.exists():
        _write(path, len(text).to_bytes(8, "little") + text, end)
    return path


def gguf(folder: Path, gigabytes: float) -> Path:
    """Write a file of about `gb` gigabytes of Q4_K blocks."""
    kind, block, elements = Q4_K
    size = block * ROW_BLOCKS * ROWS
    count = max(1, round(gigabytes * 1e9 / size))
    header = b"GGUF" + struct.pack("<IQQ", 3, count, 1)
    header += _text("general.architecture") + struct.pack("<I", 8) + _text("llama")
    for number in range(count):
        header += _text(f"blk.{number}.weight")
        header += struct.pack("<IQQIQ", 2, ROW_BLOCKS * elements, ROWS, kind, number * size)
    path = folder / f"gpu-{gigabytes:g}.gguf"
    if not path.exists():
        _write(path, header + bytes(-len(header) % 32), count * size)
    return path


def torch_file(path: Path) -> Path:
    """Write the tensors of a safetensors file with `torch.save`, in the same folder."""
    there = path.with_suffix(".pt")
    if not there.exists():
        import torch

        from max_weights.torch import load_file

        partial = there.with_suffix(".partial")
        torch.save(dict(load_file(path)), partial)
        partial.rename(there)
    return there


def _write(path: Path, header: bytes, size: int) -> None:
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        file.write(header)
        for block in _content(size, 0):
            file.write(block)
    partial.rename(path)


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()
