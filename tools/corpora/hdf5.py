"""HDF5 files by the byte: a root group with links, attributes and one dataset."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

NOWHERE = 0xFFFFFFFFFFFFFFFF
_WORD = 0xFFFFFFFF
_DATASPACE, _LINK_INFO, _DATATYPE, _FILL, _LINK = 1, 2, 3, 5, 6
_EXTERNAL_FILES, _LAYOUT, _GROUP, _ATTRIBUTE = 7, 8, 10, 12


def _rotated(number: int, by: int) -> int:
    return (number << by | number >> (32 - by)) & _WORD


def _three(data: bytes) -> tuple[int, int, int]:
    x, y, z = struct.unpack_from("<III", data)
    return int(x), int(y), int(z)


def checksum(data: bytes) -> int:
    """Jenkins' lookup3, the checksum of HDF5's headers."""
    a = b = c = (0xDEADBEEF + len(data)) & _WORD
    while len(data) > 12:
        x, y, z = _three(data)
        a, b, c = (a + x) & _WORD, (b + y) & _WORD, (c + z) & _WORD
        for first, by in ((0, 4), (1, 6), (2, 8), (0, 16), (1, 19), (2, 4)):
            if first == 0:
                a = (a - c & _WORD) ^ _rotated(c, by)
                c = c + b & _WORD
            elif first == 1:
                b = (b - a & _WORD) ^ _rotated(a, by)
                a = a + c & _WORD
            else:
                c = (c - b & _WORD) ^ _rotated(b, by)
                b = b + a & _WORD
        data = data[12:]
    if not data:
        return c
    x, y, z = _three(data.ljust(12, b"\0"))
    a, b, c = (a + x) & _WORD, (b + y) & _WORD, (c + z) & _WORD
    c = (c ^ b) - _rotated(b, 14) & _WORD
    a = (a ^ c) - _rotated(c, 11) & _WORD
    b = (b ^ a) - _rotated(a, 25) & _WORD
    c = (c ^ b) - _rotated(b, 16) & _WORD
    a = (a ^ c) - _rotated(c, 4) & _WORD
    b = (b ^ a) - _rotated(a, 14) & _WORD
    return (c ^ b) - _rotated(b, 24) & _WORD


def _message(kind: int, body: bytes) -> bytes:
    return struct.pack("<BHB", kind, len(body), 0) + body


def _header(messages: Sequence[bytes]) -> bytes:
    body = b"".join(messages)
    head = b"OHDR\x02\x02" + struct.pack("<I", len(body)) + body
    return head + struct.pack("<I", checksum(head))


def _link(name: str, kind: int, target: bytes) -> bytes:
    if kind == 0:
        return _message(_LINK, struct.pack("<BBB", 1, 0, len(name)) + name.encode() + target)
    length = struct.pack("<H", len(target))
    return _message(_LINK, struct.pack("<BBBB", 1, 8, kind, len(name)) + name.encode() + length + target)


def _attribute(name: str, text: str) -> bytes:
    data = text.encode()
    kind = struct.pack("<BBBBI", 0x13, 0, 0, 0, len(data))
    space = struct.pack("<BBBB", 2, 0, 0, 0)
    head = struct.pack("<BBHHHB", 3, 0, len(name) + 1, len(kind), len(space), 0)
    return _message(_ATTRIBUTE, head + name.encode() + b"\0" + kind + space + data)


def hdf5(
    *,
    attributes: Mapping[str, str] | None = None,
    soft: Mapping[str, str] | None = None,
    external: Mapping[str, tuple[str, str]] | None = None,
    stored_in: str | None = None,
) -> bytes:
    """A file with links (soft: to a path; external: to a file and a path in it) and a dataset `weight` of four zeros.

    The dataset's bytes are in another file if one is named.
    """
    root_at = 48
    number = bytes([0x11, 0x20, 0x1F, 0]) + struct.pack("<IHHBBBBI", 4, 0, 32, 23, 8, 0, 23, 127)
    shape = struct.pack("<BBBBQ", 2, 1, 0, 1, 4)

    def root(dataset: int) -> bytes:
        messages = [_message(_LINK_INFO, struct.pack("<BBQQ", 0, 0, NOWHERE, NOWHERE)), _message(_GROUP, bytes(2))]
        messages += [_attribute(name, text) for name, text in (attributes or {}).items()]
        messages.append(_link("weight", 0, struct.pack("<Q", dataset)))
        messages += [_link(name, 1, target.encode()) for name, target in (soft or {}).items()]
        for name, (file, path) in (external or {}).items():
            messages.append(_link(name, 64, b"\0" + file.encode() + b"\0" + path.encode() + b"\0"))
        return _header(messages)

    dataset_at = root_at + len(root(0))

    def dataset(data: int) -> bytes:
        messages = [_message(_DATASPACE, shape), _message(_DATATYPE, number), _message(_FILL, bytes([3, 10]))]
        if stored_in is None:
            messages.append(_message(_LAYOUT, struct.pack("<BBQQ", 3, 1, data, 16)))
        else:
            messages.append(_message(_LAYOUT, struct.pack("<BBQQ", 3, 1, NOWHERE, 16)))
            messages.append(
                _message(
                    _EXTERNAL_FILES, struct.pack("<BBBBHHQ", 1, 0, 0, 0, 1, 1, data) + struct.pack("<QQQ", 8, 0, 16)
                )
            )
        return _header(messages)

    data_at = dataset_at + len(dataset(0))
    data = bytes(16)
    if stored_in is not None:
        names = bytes(8) + stored_in.encode() + b"\0"
        names += bytes(-len(names) % 8)
        data = b"HEAP" + bytes(4) + struct.pack("<QQQ", len(names), 1, data_at + 32) + names
    end = data_at + len(data)
    superblock = b"\x89HDF\r\n\x1a\n" + struct.pack("<BBBBQQQQ", 2, 8, 8, 0, 0, NOWHERE, end, root_at)
    superblock += struct.pack("<I", checksum(superblock))
    return superblock + root(dataset_at) + dataset(data_at) + data
