"""Archives written byte by byte: zip files whose two views disagree, and tar files."""

from __future__ import annotations

import io
import struct
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

STORED, DEFLATED = 0, 8


@dataclass(frozen=True)
class Member:
    """A member of a zip file; a field that is None gets its correct value."""

    name: str
    data: bytes
    method: int = STORED
    flags: int = 0
    local_name: str | None = None
    local_flags: int | None = None
    local_method: int | None = None
    crc: int | None = None
    local_crc: int | None = None
    size: int | None = None
    """The size in both views."""
    body: bytes | None = None
    """The bytes in the file instead of the packed data."""
    extra: bytes = b""
    attributes: int = 0
    hidden: bool = False
    """Missing from the central directory."""
    only_central: int | None = None
    """Has no body: its offset is that of another member."""


def zipped(
    members: Sequence[Member] | Mapping[str, bytes],
    *,
    before: bytes = b"",
    comment: bytes = b"",
    after: bytes = b"",
    offsets_from_zip: bool = False,
    zip64: bool = False,
    count: int | None = None,
) -> bytes:
    """Write a zip file. Offsets count from the start of the file, or from where the archive begins."""
    if isinstance(members, Mapping):
        members = [Member(name, data) for name, data in members.items()]
    out, central, entries = bytearray(before), bytearray(), 0
    base = len(before) if offsets_from_zip else 0
    for member in members:
        name = member.name.encode("utf-8")
        packed = member.body
        if packed is None:
            packed = member.data
            if member.method == DEFLATED:
                worker = zlib.compressobj(9, zlib.DEFLATED, -15)
                packed = worker.compress(member.data) + worker.flush()
        crc = zlib.crc32(member.data) if member.crc is None else member.crc
        size = len(member.data) if member.size is None else member.size
        packed_size = len(packed) if member.size is None or member.method == DEFLATED else size
        offset = len(out) - base
        if member.only_central is None:
            local = (member.name if member.local_name is None else member.local_name).encode("utf-8")
            out += struct.pack(
                "<IHHHHHIIIHH",
                0x04034B50,
                20,
                member.flags if member.local_flags is None else member.local_flags,
                member.method if member.local_method is None else member.local_method,
                0,
                0x21,
                crc if member.local_crc is None else member.local_crc,
                packed_size,
                size,
                len(local),
                len(member.extra),
            )
            out += local + member.extra + packed
        else:
            offset = member.only_central
        if member.hidden:
            continue
        extra, shown = member.extra, (packed_size, size, offset)
        if zip64:
            extra += struct.pack("<HHQQQ", 1, 24, size, packed_size, offset)
            shown = (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
        central += struct.pack("<IHHHHHHI", 0x02014B50, 0x031E, 20, member.flags, member.method, 0, 0x21, crc)
        central += struct.pack("<II", *shown[:2])
        central += struct.pack("<HHHHHII", len(name), len(extra), 0, 0, 0, member.attributes, shown[2])
        central += name + extra
        entries += 1
    start, entries = len(out) - base, entries if count is None else count
    out += central
    if zip64:
        end = len(out) - base
        out += struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, entries, entries, len(central), start)
        out += struct.pack("<IIQI", 0x07064B50, 0, end, 1)
        start = 0xFFFFFFFF
    out += struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, entries, entries, len(central), start, len(comment))
    return bytes(out + comment + after)


def tarred(members: Mapping[str, bytes], mode: str = "w", links: Mapping[str, str] | None = None) -> bytes:
    """Write a tar file; `mode` as `tarfile.open` has it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    return buffer.getvalue()
