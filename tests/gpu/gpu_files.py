"""The checkpoints that the tests load, written by hand where no library is sure to be there."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

PIECE = 4 << 20
SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
SIZES |= {"F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "U32": 4, "U64": 8}
ENTRIES: list[tuple[str, str, tuple[int, ...]]] = [
    ("odd", "U8", (3,)),  # what follows is not aligned in the file
    *((f"kind.{dtype}", dtype, (7, 13)) for dtype in SIZES),
    ("scalar", "F32", ()),
    ("empty", "F16", (0, 5)),
    *((f"small.{number}", "BF16", (number % 5 + 1, 3)) for number in range(300)),
    *((f"around.{more}", "BF16", ((PIECE + more) // 2,)) for more in (-2, 0, 2)),
    ("large", "BF16", (3, 1 << 21)),
    ("large.f32", "F32", (1 << 21,)),
    ("last", "F8_E4M3", (1001,)),
]
BLOCKS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
BLOCKS += ["IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4"]
GGML_TYPES = dict(zip(BLOCKS, (2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 23, 39, 40), strict=True))
ALIGNED = 32


def payload(dtype: str, shape: tuple[int, ...], seed: int) -> bytes:
    """Random bits, of which BOOL gets the last."""
    size = SIZES[dtype] * int(np.prod(shape))
    found = np.random.default_rng(seed).integers(0, 2 if dtype == "BOOL" else 256, size, dtype=np.uint8)
    return found.tobytes()


def safetensors(path: Path, entries: list[tuple[str, str, tuple[int, ...]]] = ENTRIES) -> Path:
    """A file of `entries`: (name, dtype, shape)."""
    header: dict[str, Any] = {}
    data = bytearray()
    for number, (name, dtype, shape) in enumerate(entries):
        start = len(data)
        data += payload(dtype, shape, number)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def large(path: Path, mebibytes: int) -> Path:
    """A file of bf16 tensors of 8 MiB."""
    return safetensors(path, [(f"layer.{n}.weight", "BF16", (4096, 1024)) for n in range(mebibytes // 8)])


def sharded(folder: Path) -> Path:
    """The same tensors in three files with their index."""
    folder.mkdir()
    weight_map: dict[str, str] = {}
    for number in range(3):
        name = f"model-{number + 1:05}-of-00003.safetensors"
        weight_map |= {entry[0]: name for entry in ENTRIES[number::3]}
        safetensors(folder / name, ENTRIES[number::3])
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def blocks(encoding: str, count: int) -> bytes:
    """Blocks of random bits: among them are scales that are infinite, or no numbers."""
    from max_weights.graph.quantization import QuantizationEncoding

    size = count * QuantizationEncoding(encoding).block_size
    return np.random.default_rng(count).integers(0, 256, size, dtype=np.uint8).tobytes()


def gguf(path: Path, count: int = 96) -> Path:
    """A file with a tensor of `count` blocks of each encoding, one of many, and two of numbers."""
    from max_weights.graph.quantization import QuantizationEncoding

    tensors: list[tuple[str, int, tuple[int, int], bytes]] = []
    for encoding in BLOCKS:
        for name, rows in ((f"{encoding}.weight", 3), (f"{encoding}.many", 3 * 512)):
            width = QuantizationEncoding(encoding).elements_per_block * (count // 3 if rows == 3 else 1)
            tensors.append((name, GGML_TYPES[encoding], (rows, width), blocks(encoding, rows if rows > 3 else count)))
    tensors.append(("float32", 0, (2, 64), payload("F32", (2, 64), 1)))
    tensors.append(("bfloat16", 30, (2, 64), payload("BF16", (2, 64), 2)))
    header, data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 1), bytearray()
    header += _text("general.architecture") + struct.pack("<I", 8) + _text("llama")
    for name, kind, (rows, width), content in tensors:
        header += _text(name) + struct.pack("<IQQIQ", 2, width, rows, kind, len(data))
        data += content + bytes(-len(content) % ALIGNED)
    path.write_bytes(header + bytes(-len(header) % ALIGNED) + data)
    return path


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def torch_zip(path: Path) -> Path:
    """What `torch.save` writes: tensors of its dtypes, some of which share memory."""
    import torch

    whole = torch.arange(3 << 20, dtype=torch.float32)
    tensors = {"whole": whole, "rows": whole[1000:4000].view(3, 1000), "turned": whole[:6].view(2, 3).T, "tied": whole}
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool):
        tensors[str(dtype)] = torch.arange(1001).to(dtype)
    torch.save(tensors, path)
    return path
