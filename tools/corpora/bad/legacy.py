"""Bad files of PyTorch from before 1.6."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator

from corpora.archives import tarred
from corpora.assembler import pickled, value
from corpora.formats import FLOATS, SYSTEM_INFORMATION, tensor, torch_legacy
from corpora.item import CAUGHT, Item


def _object(number: int, thing: object) -> bytes:
    return torch_legacy({number: pickle.dumps(thing, 2)})


FILES = {
    "byteorder": _object(2, {**SYSTEM_INFORMATION, "little_endian": False}),
    "count": torch_legacy(tail=struct.pack("<q", 5) + bytes(20)),
    "count.negative": torch_legacy(tail=struct.pack("<q", -1) + FLOATS),
    "duplicate-key": _object(4, ["0", "0"]),
    "keys": _object(4, {"0": 1}),
    "keys.numbers": _object(4, [0]),
    "machine": _object(2, [1, 2]),
    "machine.empty": _object(2, {}),
    "magic": _object(0, 0x1950A86A20F9469CFC6D),
    "missing-storage": _object(4, []),
    "protocol": _object(1, 1002),
    "trailing-data": torch_legacy(tail=struct.pack("<q", 4) + FLOATS + b"abc"),
    "truncated": torch_legacy(tail=struct.pack("<q", 4) + FLOATS[:8]),
    "truncated.before-storages": torch_legacy(tail=b""),
    "unknown-storage": torch_legacy(
        {4: pickle.dumps(["0", "1"], 2)}, struct.pack("<q", 4) + FLOATS + struct.pack("<q", 4) + FLOATS
    ),
}


def items() -> Iterator[Item]:
    """All of them."""
    for name, data in FILES.items():
        yield Item(f"{name}.pth", {"": data}, "torch-legacy", CAUGHT, "", (f"torch-legacy.{name.split('.')[0]}",))
    outside = torch_legacy({3: pickled(value({"w": tensor(shape=(100,), legacy=True)}))})
    yield Item("outside-storage.pth", {"": outside}, "torch-legacy", CAUGHT, "", ())
    empty = pickle.dumps({}, 2)
    tar = tarred({"sys_info": empty, "pickle": empty, "storages": pickle.dumps(0, 2), "tensors": pickle.dumps(0, 2)})
    yield Item("torch.tar.pth", {"": tar}, "torch-legacy", CAUGHT, "", ("torch.tar",))
