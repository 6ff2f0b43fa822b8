"""Bad GGUF files."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from corpora.formats import (
    GGUF_ARRAY,
    GGUF_STRING,
    architecture,
    gguf,
    gguf_key,
    gguf_string,
    gguf_tensor,
)
from corpora.item import CAUGHT, Item

KEYS = [architecture()]


def _tensors(*tensors: bytes, data: int = 64) -> bytes:
    return gguf(KEYS, tensors, bytes(data))


def _keys(*keys: bytes) -> bytes:
    return gguf([*KEYS, *keys])


def _split(number: int, count: int, total: int, name: str = "") -> bytes:
    keys = [gguf_key("split.no", 2, number), gguf_key("split.count", 2, count)]
    keys.append(gguf_key("split.tensors.count", 5, total))
    return gguf([*KEYS, *keys] if number == 0 else keys, [gguf_tensor(name or f"w{number}", [8], 0, 0)], bytes(32))


FILES = {
    "alignment": gguf([*KEYS, gguf_key("general.alignment", 4, 24)]),
    "alignment.zero": gguf([*KEYS, gguf_key("general.alignment", 4, 0)]),
    "alignment-small": gguf([*KEYS, gguf_key("general.alignment", 4, 4)], alignment=4),
    "alignment-type": gguf([*KEYS, gguf_key("general.alignment", 10, 32)]),
    "alignment-type.signed": gguf([*KEYS, gguf_key("general.alignment", 5, 32)]),
    "array-depth": _keys(
        gguf_string("a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 100 + struct.pack("<IQ", 4, 0)
    ),
    "array-length": _keys(gguf_string("a") + struct.pack("<IIQ", GGUF_ARRAY, 4, 1 << 40)),
    "block": _tensors(gguf_tensor("w", [33], 2, 0)),
    "block.k": _tensors(gguf_tensor("w", [128, 2], 12, 0), data=160),
    "bool": _keys(gguf_string("a") + struct.pack("<IB", 7, 2)),
    "duplicate-key": _keys(architecture()),
    "duplicate-key.other-value": _keys(gguf_key("a", 4, 1), gguf_key("a", 4, 2)),
    "duplicate-name": _tensors(gguf_tensor("w", [8], 0, 0), gguf_tensor("w", [8], 0, 32)),
    "fork-type": _tensors(gguf_tensor("w", [256], 39, 0), data=32),
    "hole": _tensors(gguf_tensor("w", [8], 0, 0), gguf_tensor("v", [8], 0, 128), data=160),
    "key-count": gguf(KEYS, counts=(1, 1 << 40)),
    "key-empty": _keys(gguf_key("", 4, 1)),
    "key-utf8": _keys(gguf_key(b"\xff", 4, 1)),
    "magic": gguf(KEYS, magic=b"GGUX"),
    "name-empty": _tensors(gguf_tensor("", [8], 0, 0), data=32),
    "name-long": _tensors(gguf_tensor("w" * 64, [8], 0, 0), data=32),
    "name-nul": _tensors(gguf_tensor("a\0b", [8], 0, 0), data=32),
    "name-utf8": _tensors(gguf_tensor(b"\xff", [8], 0, 0), data=32),
    "offset-unaligned": _tensors(gguf_tensor("w", [10], 0, 0), gguf_tensor("v", [6], 0, 40)),
    "order": _tensors(gguf_tensor("w", [8], 0, 32), gguf_tensor("v", [8], 0, 0)),
    "outside": _tensors(gguf_tensor("w", [8], 0, 1 << 40), data=32),
    "overlap": _tensors(gguf_tensor("w", [16], 0, 0), gguf_tensor("v", [8], 0, 32)),
    "overlap.same": _tensors(gguf_tensor("w", [8], 0, 0), gguf_tensor("v", [8], 0, 0), data=32),
    "rank": _tensors(gguf_tensor("w", [8, 1, 1, 1, 1], 0, 0), data=32),
    "removed-type": _tensors(gguf_tensor("w", [32], 4, 0), data=32),
    "removed-type.interleaved": _tensors(gguf_tensor("w", [32], 31, 0), data=32),
    "shape-overflow": _tensors(gguf_tensor("w", [1 << 40, 1 << 40], 0, 0)),
    "size-overflow": _tensors(gguf_tensor("w", [1 << 62], 0, 0)),
    "string-length": _keys(gguf_string("a") + struct.pack("<IQ", GGUF_STRING, 1 << 40)),
    "tensor-count": gguf(KEYS, counts=(1 << 40, 1)),
    "text-utf8": _keys(gguf_key("a", GGUF_STRING, b"\xff\xfe")),
    "too-short": b"GGUF\x03\0",
    "too-short.magic": b"GGUF",
    "trailing-data": gguf(KEYS, data=bytes(33)),
    "trailing-data.page": gguf(KEYS, data=bytes(32 + 4096)),
    "truncated": gguf(KEYS, data=bytes(24)),
    "truncated.no-data": gguf(KEYS, data=b""),
    "unknown-type": _tensors(gguf_tensor("w", [8], 900, 0), data=32),
    "unknown-types": _tensors(*(gguf_tensor(f"w{n}", [8], 1000 + n, n * 32) for n in range(300)), data=300 * 32),
    "value-type": _keys(gguf_string("a") + struct.pack("<IQ", 99, 0)),
    "value-type.of-array": _keys(gguf_string("a") + struct.pack("<IIQ", GGUF_ARRAY, 13, 1) + bytes(8)),
    "version": gguf(KEYS, version=9),
    "version.zero": gguf(KEYS, version=0),
    "version.one": gguf(KEYS, version=1),
}

FOLDERS = {
    "split-count": {"m-00001-of-00002.gguf": _split(0, 2, 2), "m-00002-of-00002.gguf": _split(1, 3, 2)},
    "split-duplicate": {
        "m-00001-of-00002.gguf": _split(0, 2, 2, "same"),
        "m-00002-of-00002.gguf": _split(1, 2, 2, "same"),
    },
    "split-keys": {"m-00001-of-00002.gguf": _split(0, 2, 2), "m-00002-of-00002.gguf": gguf(KEYS)},
    "split-missing": {"m-00001-of-00002.gguf": _split(0, 2, 2)},
    "split-no": {"m-00001-of-00002.gguf": _split(0, 2, 2), "m-00002-of-00002.gguf": _split(0, 2, 2, "v")},
    "split-total": {"m-00001-of-00002.gguf": _split(0, 2, 5), "m-00002-of-00002.gguf": _split(1, 2, 5)},
}


def items() -> Iterator[Item]:
    """All of them."""
    for name, data in FILES.items():
        yield Item(f"{name}.gguf", {"": data}, "gguf", CAUGHT, "", (f"gguf.{name.split('.')[0]}",))
    for name, files in FOLDERS.items():
        yield Item(name, files, "gguf", CAUGHT, "", (f"gguf.{name}",))
