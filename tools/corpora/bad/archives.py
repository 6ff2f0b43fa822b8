"""Bad zip archives of PyTorch."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from corpora.archives import DEFLATED, Member, zipped
from corpora.assembler import call, pickled, value
from corpora.formats import FLOATS, state_dict, tensor, torch_members, torch_zip
from corpora.item import CAUGHT, Item

PICKLE = pickled(state_dict())
GOOD = torch_members(PICKLE)


def _changed(number: int, **changes: object) -> bytes:
    members = list(GOOD)
    old = members[number]
    members[number] = Member(old.name, old.data, **changes)  # type: ignore[arg-type]
    return zipped(members)


def _more(*members: Member) -> bytes:
    return zipped([*GOOD, *members])


def _patched(data: bytes, find: bytes, offset: int, new: bytes) -> bytes:
    at = data.rindex(find) + offset
    return data[:at] + new + data[at + len(new) :]


_END, _ENTRY = b"PK\x05\x06", b"PK\x01\x02"
_FINE = zipped(GOOD)
FILES: dict[str, bytes] = {
    "bomb": zipped([*GOOD[:2], Member("archive/data/0", bytes(64 << 20), DEFLATED), GOOD[3]]),
    "byteorder": zipped([GOOD[0], Member("archive/byteorder", b"middle"), *GOOD[2:]]),
    "case": _more(Member("archive/DATA/0", FLOATS), Member("archive/Data/0", FLOATS)),
    "comment": zipped(GOOD, comment=b"a comment"),
    "count": zipped(GOOD, count=len(GOOD) + 3),
    "crc": _changed(2, crc=0x12345678),
    "deflate": _changed(2, method=DEFLATED, body=b"\xff\xff\xff\xff"),
    "directory": _patched(_FINE, _ENTRY, 0, b"AAAA"),
    "directory-place": _patched(_FINE, _END, 16, struct.pack("<I", 10)),
    "duplicate-name": _more(Member("archive/data/0", FLOATS)),
    "encrypted": _changed(2, flags=1),
    "extra": _patched(_changed(2, extra=struct.pack("<HH", 0x5555, 0)), _ENTRY, 0, _ENTRY),
    "extra.too-long": _changed(2, extra=struct.pack("<HH", 0x5555, 500)),
    "flags": _changed(2, flags=0x40),
    "folder": _more(Member("archive/folder/", b"abc")),
    "gap": zipped([GOOD[0], Member("x", b"abc", hidden=True), *GOOD[1:]]),
    "header": _patched(_FINE, b"PK\x03\x04", 0, b"AAAA"),
    "local-crc": _changed(2, local_crc=1),
    "local-flags": _changed(2, local_flags=2),
    "local-method": _changed(2, local_method=8),
    "local-name": _changed(2, local_name="archive/data/1"),
    "method": _changed(2, method=99),
    "method.bzip2": _changed(2, method=12),
    "name": _more(Member("../x", b"abc")),
    "name.absolute": _more(Member("/x", b"abc")),
    "no-pickle": zipped({"archive/version": b"3\n", "archive/data/0": FLOATS}),
    "outside": _patched(_FINE, _ENTRY, 42, struct.pack("<I", len(_FINE) - 40)),
    "outside-prefix": _more(Member("other/x", b"abc")),
    "overlap": zipped([*GOOD, Member("archive/data/1", FLOATS, only_central=10)]),
    "prepended": zipped(GOOD, before=b"#!/bin/sh\n"),
    "ratio": _changed(2, method=DEFLATED, size=1 << 30),
    "size": _changed(2, size=4),
    "split": _patched(_FINE, _END, 4, b"\x01\0"),
    "stranger": zipped({"word/document.xml": b"<x/>", "[Content_Types].xml": b"<x/>"}),
    "trailing-data": zipped(GOOD, after=b"abc"),
    "truncated": _FINE[:-30],
    "truncated.half": _FINE[: len(_FINE) // 2],
    "two-ends": zipped(GOOD, comment=zipped({"x": b"y"})),
    "zip64": _patched(zipped(GOOD, zip64=True), b"PK\x06\x06", 24, struct.pack("<Q", 99)),
}


def order() -> bytes:
    """An archive whose directory has another order than its members."""
    entries = [_FINE.index(_ENTRY)]
    while (at := _FINE.find(_ENTRY, entries[-1] + 1)) != -1:
        entries.append(at)
    end = _FINE.index(_END)
    records = [_FINE[a:b] for a, b in zip(entries, [*entries[1:], end], strict=True)]
    return _FINE[: entries[0]] + b"".join([records[0], records[2], records[1], *records[3:]]) + _FINE[end:]


MAKERS: dict[str, Callable[[], bytes]] = {"order": order}
CONTENTS = {
    "torch.missing-storage": torch_zip(PICKLE, {}),
    "torch.storage-size": torch_zip(PICKLE, {"0": FLOATS[:8]}),
    "torch.outside-storage": torch_zip(pickled(value({"w": tensor(shape=(100,))}))),
    "pickle.extent": torch_zip(pickled(value({"w": tensor(offset=3)}))),
    "pickle.negative": torch_zip(pickled(value({"w": tensor(strides=(-1,))}))),
    "pickle.rank": torch_zip(pickled(value({"w": tensor(shape=(4,), strides=(1, 1))}))),
    "pickle.storage-conflict": torch_zip(pickled(value({"a": tensor(), "b": tensor(count=2, shape=(2,))}))),
    "pickle.same-name": torch_zip(pickled(value({"a": {"b": tensor()}, "a.b": tensor()}))),
    "pickle.truncated": torch_zip(PICKLE[:-20]),
    "pickle.trailing-data": torch_zip(PICKLE + b"abc"),
    "pickle.opcode": torch_zip(PICKLE[:-1] + b"\xff."),
    "pickle.memo": torch_zip(PICKLE[:-1] + b"h\x63."),
    "pickle.stack": torch_zip(pickled(b"00")),
    "pickle.protocol": torch_zip(b"\x80\x09" + PICKLE[2:]),
    "pickle.call": torch_zip(pickled(value({"w": call("torch._utils", "_rebuild_tensor_v2", 1)}))),
}


def items() -> Iterator[Item]:
    """All of them."""
    made = {**FILES, **{name: make() for name, make in MAKERS.items()}}
    for name, data in made.items():
        yield Item(f"{name}.pt", {"": data}, "torch-zip", CAUGHT, "", (f"torch-zip.{name.split('.')[0]}",))
    for name, data in CONTENTS.items():
        yield Item(f"{name}.pt", {"": data}, "torch", CAUGHT, "", (name,))
    yield Item("distributed-without-metadata", {"__0_0.distcp": torch_zip(PICKLE)}, "torch", CAUGHT)
