"""Compressed streams, by libraries and byte by byte: quirks that readers tolerate."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import struct
import zlib

SKIPPABLE = (0x184D2A50, 0x184D2A5F)
XXH_PRIMES = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1)
MASK = 0xFFFFFFFF


def _gzip(chance: random.Random, data: bytes) -> bytes:
    """Members with names and comments, several of them, and empty ones."""
    flags = chance.choice((0, 0, 8, 16, 4, 2))
    worker = zlib.compressobj(chance.choice((1, 6, 9)), zlib.DEFLATED, -15)
    body = worker.compress(data) + worker.flush()
    head = b"\x1f\x8b\x08" + bytes([flags]) + bytes(6)
    if flags == 4:
        head += struct.pack("<H", 4) + b"abcd"
    elif flags in (8, 16):
        head += b"model.pkl\0"
    elif flags == 2:
        head += struct.pack("<H", zlib.crc32(head) & 0xFFFF)
    whole = head + body + struct.pack("<II", zlib.crc32(data), len(data) & MASK)
    match chance.choice(("one", "one", "empty-first", "empty-last", "two")):
        case "empty-first":
            return gzip.compress(b"") + whole
        case "empty-last":
            return whole + gzip.compress(b"")
        case "two":
            half = len(data) // 2
            return gzip.compress(data[:half]) + gzip.compress(data[half:])
    return whole


def _bzip2(chance: random.Random, data: bytes) -> bytes:
    half = chance.choice((0, 0, len(data) // 2))
    return (bz2.compress(data[:half]) if half else b"") + bz2.compress(data[half:], chance.choice((1, 9)))


def _xz(chance: random.Random, data: bytes) -> bytes:
    check = chance.choice((lzma.CHECK_NONE, lzma.CHECK_CRC32, lzma.CHECK_CRC64, lzma.CHECK_SHA256))
    empty = lzma.compress(b"") if chance.random() < 0.2 else b""
    return empty + lzma.compress(data, check=check)


def _lzma(chance: random.Random, data: bytes) -> bytes:
    """The format from before xz, with windows that liblzma takes: 2^n, and 2^n + 2^(n-1)."""
    exponent = chance.randrange(12, 24)
    window = 1 << exponent
    if chance.random() < 0.5:
        window += 1 << (exponent - 1)
    stream = lzma.compress(data, lzma.FORMAT_ALONE, filters=[{"id": lzma.FILTER_LZMA1, "dict_size": window}])
    if chance.random() < 0.2 and len(data) < 1024:
        # Smaller than the encoder's default.
        small = chance.choice((1 << 11, (1 << 11) + (1 << 10), 1 << 10))
        stream = stream[:1] + struct.pack("<I", small) + stream[5:]
    return stream


def _zlib(chance: random.Random, data: bytes) -> bytes:
    return zlib.compress(data, chance.choice((1, 6, 9)))


def _skippable(chance: random.Random) -> bytes:
    body = chance.randbytes(chance.choice((0, 4, 300)))
    return struct.pack("<II", chance.randint(*SKIPPABLE), len(body)) + body


def _zstd(chance: random.Random, data: bytes) -> bytes:
    """Frames of raw blocks, possibly after a skippable frame."""
    blocks = [data[at : at + 100_000] for at in range(0, len(data), 100_000)] or [b""]
    frame = b"\x28\xb5\x2f\xfd" + b"\xa0" + struct.pack("<I", len(data))
    for number, block in enumerate(blocks):
        header = len(block) << 3 | (number == len(blocks) - 1)
        frame += struct.pack("<I", header)[:3] + block
    return (_skippable(chance) if chance.random() < 0.4 else b"") + frame


def xxh32(data: bytes) -> int:
    """The checksum of LZ4's header, which is shorter than 16 bytes."""
    total = (XXH_PRIMES[4] + len(data)) & MASK
    for byte in data:
        total = (total + byte * XXH_PRIMES[4]) & MASK
        total = ((total << 11 | total >> 21) & MASK) * XXH_PRIMES[0] & MASK
    total = (total ^ total >> 15) * XXH_PRIMES[1] & MASK
    total = (total ^ total >> 13) * XXH_PRIMES[2] & MASK
    return total ^ total >> 16


def _literals(data: bytes) -> bytes:
    """A block of LZ4 without matches."""
    if len(data) < 15:
        return bytes([len(data) << 4]) + data
    rest = len(data) - 15
    return b"\xf0" + b"\xff" * (rest // 255) + bytes([rest % 255]) + data


def _lz4(chance: random.Random, data: bytes) -> bytes:
    """Frames of uncompressed blocks, or the legacy format of the Linux kernel."""
    if chance.random() < 0.3:
        block = _literals(data)
        return struct.pack("<II", 0x184C2102, len(block)) + block
    descriptor = b"\x60\x40"
    frame = b"\x04\x22\x4d\x18" + descriptor + bytes([xxh32(descriptor) >> 8 & 0xFF])
    for at in range(0, len(data), 60_000):
        block = data[at : at + 60_000]
        frame += struct.pack("<I", len(block) | 1 << 31) + block
    return (_skippable(chance) if chance.random() < 0.2 else b"") + frame + bytes(4)


ENCODINGS = {
    "gz": _gzip,
    "bz2": _bzip2,
    "xz": _xz,
    "lzma": _lzma,
    "z": _zlib,
    "zst": _zstd,
    "lz4": _lz4,
}


def encoded(chance: random.Random, data: bytes) -> tuple[list[str], bytes, str]:
    """Return the encodings applied (none, one or two), the resulting bytes, and the suffixes."""
    way, suffix = [], ""
    for _ in range(chance.choice((0, 0, 0, 1, 1, 2))):
        kind = chance.choice(sorted(ENCODINGS))
        data = ENCODINGS[kind](chance, data)
        way.append(kind)
        suffix += f".{kind}" if chance.random() < 0.7 else ""
    return way, data, suffix


def usual(chance: random.Random, data: bytes) -> tuple[list[str], bytes, str]:
    """Return these bytes unchanged or compressed as a program would do it; with the encoding and the suffix."""
    kind = chance.choice(("", "", "", "", "gz", "bz2", "xz"))
    match kind:
        case "gz":
            data = gzip.compress(data, mtime=0)
        case "bz2":
            data = bz2.compress(data)
        case "xz":
            data = lzma.compress(data)
    return ([kind], data, f".{kind}") if kind else ([], data, "")
