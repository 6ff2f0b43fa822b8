"""Files for `safetensors_cases`: one of each dtype, one of each fault, and some that are fine."""

import json
import pathlib
import pickle
import struct
from typing import Any

import numpy as np


def file_bytes(header: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A file of a header, or of bytes in place of one."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, Any]:
    """One entry of a header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


DTYPES = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "U16": 16,
    "I16": 16,
    "U32": 32,
    "I32": 32,
    "U64": 64,
    "I64": 64,
    "F16": 16,
    "BF16": 16,
    "F32": 32,
    "F64": 64,
    "C64": 64,
    "F8_E4M3": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E8M0": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}

BROKEN = {
    "empty": b"",
    "seven bytes": b"1234567",
    "a zip": b"PK\x03\x04" + b"\0" * 4 + b"\x33" * 100,
    "a pickle": pickle.dumps({"a": list(range(100))}),
    "a pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
    "gguf": b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + b"\0" * 64,
    "a page": b"<!doctype html><html><body>404</body></html>",
    "header beyond the end": file_bytes(b"{}", length=1000),
    "no header": file_bytes(b""),
    "no json": file_bytes(b"{not json}"),
    "no utf-8": file_bytes(b'{"\xff\xfe": 1}'),
    "a list": file_bytes([1, 2]),
    "truncated": file_bytes({"a": entry("F32", [4], 0, 16)}, b"\0" * 8),
    "trailing": file_bytes({"a": entry("F32", [4], 0, 16)}, b"\0" * 24),
    "hole": file_bytes({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 4, 6)}, b"\0" * 6),
    "overlap": file_bytes({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 2, 6)}, b"\0" * 6),
    "backwards": file_bytes({"a": entry("U8", [4], 4, 0)}, b"\0" * 4),
    "size": file_bytes({"a": entry("F32", [3], 0, 16)}, b"\0" * 16),
    "overflow": file_bytes({"a": entry("F32", [2**62, 2**62], 0, 16)}, b"\0" * 16),
    "half a byte": file_bytes({"a": entry("F4", [3], 0, 2)}, b"\0" * 2),
    "dtype": file_bytes({"a": entry("Q4", [4], 0, 4)}, b"\0" * 4),
    "no dtype": file_bytes({"a": {"shape": [4], "data_offsets": [0, 4]}}, b"\0" * 4),
    "shape": file_bytes({"a": entry("U8", [-4], 0, 4)}, b"\0" * 4),
    "metadata": file_bytes({"__metadata__": {"a": 1}}),
}
FINE = {
    "no tensors": file_bytes({}),
    "only metadata": file_bytes({"__metadata__": {"format": "pt"}}),
    "empty metadata": file_bytes({"__metadata__": {}}),
    "padded": file_bytes(json.dumps({"a": entry("U8", [4], 0, 4)}).encode() + b" " * 13, b"abcd"),
    "leading space": file_bytes(b" \n" + json.dumps({"a": entry("U8", [4], 0, 4)}).encode(), b"abcd"),
    "empty name": file_bytes({"": entry("U8", [4], 0, 4)}, b"abcd"),
    "null metadata": file_bytes({"__metadata__": None, "a": entry("U8", [4], 0, 4)}, b"abcd"),
    "unaligned": file_bytes({"a": entry("U8", [3], 0, 3), "b": entry("F32", [2], 3, 11)}, b"abcdefghijk"),
}


def write_files(folder: pathlib.Path) -> None:
    """The files that the programs read."""
    header, data = {}, b""
    for dtype, bits in DTYPES.items():
        size = 24 * bits // 8
        header[dtype] = entry(dtype, [6, 4], len(data), len(data) + size)
        data += bytes((7 * i + bits) % 2 if dtype == "BOOL" else (31 * i + bits) % 256 for i in range(size))
    (folder / "dtypes.safetensors").write_bytes(file_bytes(header, data))
    header = {
        "__metadata__": {"format": "pt", "é": "ü"},
        "z.last": entry("F32", [10, 5], 0, 200),
        "a.first": entry("I64", [4], 200, 232),
        "scalar": entry("F32", [], 232, 236),
        "none": entry("F32", [0, 3], 236, 236),
        "nothing": entry("I64", [0], 236, 236),
        "Ümlaut": entry("U8", [2, 2], 236, 240),
    }
    values = (
        np.arange(50, dtype="f4").tobytes() + np.arange(4, dtype="i8").tobytes() + np.float32(3.5).tobytes() + b"abcd"
    )
    (folder / "model.safetensors").write_bytes(file_bytes(header, values))
    for name, content in (BROKEN | FINE).items():
        (folder / f"{name}.safetensors").write_bytes(content)
