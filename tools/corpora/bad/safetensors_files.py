"""Bad safetensors files."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

from corpora.formats import FLOATS, entry, safetensors
from corpora.item import CAUGHT, Item

GOOD = entry("F32", [4], 0, 16)


def _text(body: str, data: bytes = FLOATS, pad: int = 8) -> bytes:
    return safetensors(body.encode("utf-8", "surrogatepass"), data, pad)


def _entry(**changed: object) -> bytes:
    return safetensors({"a": {**GOOD, **changed}}, FLOATS)


A = '"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}'
# Keyed by the broken rule; several files of one rule have a word after a dot.
FILES = {
    "after-json": _text(f"{{{A}}} x"),
    "after-json.nul": _text(f"{{{A}}}\0\0"),
    "after-json.second": _text(f"{{{A}}}{{}}"),
    "dtype": _entry(dtype=7),
    "dtype.null": _entry(dtype=None),
    "dtype.list": _entry(dtype=["F32"]),
    "duplicate-field": _text('{"a":{"dtype":"F32","dtype":"F32","shape":[4],"data_offsets":[0,16]}}'),
    "duplicate-field.shape": _text('{"a":{"dtype":"F32","shape":[4],"shape":[4],"data_offsets":[0,16]}}'),
    "duplicate-metadata": _text(f'{{"__metadata__":{{}},"__metadata__":{{}},{A}}}'),
    "duplicate-metadata-key": _text(f'{{"__metadata__":{{"x":"1","x":"2"}},{A}}}'),
    "duplicate-name": _text(f"{{{A},{A.replace('[0,16]', '[16,32]')}}}", bytes(32)),
    "duplicate-name.same-bytes": _text(f"{{{A},{A}}}"),
    "duplicate-name.escaped": _text(f"{{{A},{A.replace('a', chr(92) + 'u0061', 1)}}}"),
    "entry": _text('{"a":[1]}', b""),
    "entry.null": _text('{"a":null}', b""),
    "entry.text": _text('{"a":"F32"}', b""),
    "header-empty": struct.pack("<Q", 0),
    "header-start": _text("[]", b""),
    "header-start.text": _text('"abc"', b""),
    "hole": safetensors({"a": GOOD, "b": entry("F32", [4], 32, 48)}, bytes(48)),
    "hole.first": safetensors({"a": entry("F32", [4], 16, 32)}, bytes(32)),
    "hole.one-byte": safetensors({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 5, 9)}, bytes(9)),
    "json": _text('{"a":'),
    "json.comma": _text(f"{{{A},}}"),
    "json.comment": _text(f"{{{A} /* x */}}"),
    "json.single-quotes": _text(f"{{{A}}}".replace('"', "'")),
    "json.nan": _text(f"{{{A}}}".replace("[4]", "[NaN]")),
    "json.deep": _text('{"a":' + "[" * 2000 + "]" * 2000 + "}"),
    "json.escape": _text('{"\\ud800":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'),
    "json.leading-zero": _text('{"a":{"dtype":"F32","shape":[04],"data_offsets":[0,16]}}'),
    "leading-space": _text(f" {{{A}}}"),
    "leading-space.line": _text(f"\n{{{A}}}"),
    "metadata": _text(f'{{"__metadata__":[],{A}}}'),
    "metadata.number": _text(f'{{"__metadata__":{{"x":1}},{A}}}'),
    "metadata.nested": _text(f'{{"__metadata__":{{"x":{{}}}},{A}}}'),
    "metadata-null": _text(f'{{"__metadata__":null,{A}}}'),
    "missing-field": _text('{"a":{"dtype":"F32","shape":[4]}}'),
    "missing-field.shape": _text('{"a":{"dtype":"F32","data_offsets":[0,16]}}'),
    "missing-field.all": _text('{"a":{}}'),
    "name-empty": safetensors({"": GOOD}, FLOATS),
    "name-nul": safetensors({"a\0b": GOOD}, FLOATS),
    "offsets": _entry(data_offsets=[16, 0]),
    "offsets.three": _entry(data_offsets=[0, 16, 16]),
    "offsets.float": _entry(data_offsets=[0.0, 16.0]),
    "offsets.negative": _entry(data_offsets=[-16, 0]),
    "offsets.text": _entry(data_offsets=["0", "16"]),
    "offsets.huge": _text('{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,18446744073709551616]}}'),
    "outside": safetensors({"a": GOOD, "b": entry("F32", [4], 1 << 40, (1 << 40) + 16)}, FLOATS),
    "overlap": safetensors({"a": GOOD, "b": entry("F32", [4], 8, 24)}, bytes(24)),
    "overlap.same": safetensors({"a": GOOD, "b": GOOD}, FLOATS),
    "overlap.inside": safetensors({"a": GOOD, "b": entry("F32", [1], 4, 8)}, FLOATS),
    "padding": struct.pack("<Q", len(A) + 4) + f"{{{A}}}\n\n".encode() + FLOATS,
    "padding.tab": struct.pack("<Q", len(A) + 3) + f"{{{A}}}\t".encode() + FLOATS,
    "rank": safetensors({"a": entry("F32", [1] * 65, 0, 4)}, bytes(4)),
    "shape": _entry(shape=4),
    "shape.negative": _entry(shape=[-4]),
    "shape.float": _entry(shape=[4.0]),
    "shape.text": _entry(shape=["4"]),
    "shape.nested": _entry(shape=[[4]]),
    "shape-overflow": safetensors({"a": entry("F32", [1 << 40, 1 << 40], 0, 16)}, FLOATS),
    "shape-overflow.with-zero": safetensors({"a": entry("F32", [1 << 63, 1 << 63, 0], 0, 0)}),
    "size": safetensors({"a": entry("F32", [5], 0, 16)}, FLOATS),
    "size.scalar": safetensors({"a": entry("F32", [], 0, 16)}, FLOATS),
    "size.empty": safetensors({"a": entry("F32", [0], 0, 16)}, FLOATS),
    "sub-byte": safetensors({"a": entry("F4", [3], 0, 2)}, bytes(2)),
    "too-short": b"\x10\0\0\0",
    "trailing-data": safetensors({"a": GOOD}, FLOATS + b"abc"),
    "trailing-data.zeros": safetensors({"a": GOOD}, FLOATS + bytes(4096)),
    "truncated": safetensors({"a": GOOD}, FLOATS[:-4]),
    "truncated.in-the-header": struct.pack("<Q", 200) + b'{"a":{"dtype":"F32","shape":[4]',
    "truncated.no-data": safetensors({"a": GOOD}),
    "unknown-dtypes": safetensors({f"t{n}": entry(f"X{n}", [1], n, n + 1) for n in range(300)}, bytes(300)),
    "unknown-field": _entry(strides=[1]),
    "utf8": safetensors(b'{"\xff":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}', FLOATS),
    "utf8.latin": safetensors('{"é":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'.encode("latin-1"), FLOATS),
    "utf8.surrogate": _text('{"\ud800":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'),
}


def items() -> Iterator[Item]:
    """All of them."""
    for name, data in FILES.items():
        rule = f"safetensors.{name.split('.')[0]}"
        yield Item(f"{name}.safetensors", {"": data}, "safetensors", CAUGHT, "", (rule,))
    lower = json.dumps({"a": {**GOOD, "dtype": "f32"}}).encode()
    yield Item("dtype-in-small-letters.safetensors", {"": safetensors(lower, FLOATS)}, "safetensors", CAUGHT)
