"""Small files of the checkpoint formats, written byte by byte."""

from __future__ import annotations

import io
import json
import pickle
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from corpora.archives import Member, zipped
from corpora.assembler import BINPERSID, Code, call, named, pickled, value

MAGIC_NUMBER, PROTOCOL_VERSION = 0x1950A86A20F9469CFC6C, 1001
SYSTEM_INFORMATION = {
    "protocol_version": 1001,
    "little_endian": True,
    "type_sizes": {"short": 2, "int": 4, "long": 4},
}
FLOATS = bytes(16)
"""The data of four zeros of F32."""


def storage(key: str = "0", count: int = 4, kind: str = "FloatStorage", legacy: bool = False) -> Code:
    """The persistent id of a storage."""
    more: tuple[Any, ...] = (None,) if legacy else ()
    return Code(value(("storage", named("torch", kind), key, "cpu", count, *more)) + BINPERSID)


def tensor(
    key: str = "0",
    shape: tuple[int, ...] = (4,),
    strides: tuple[int, ...] = (1,),
    count: int = 4,
    offset: int = 0,
    kind: str = "FloatStorage",
    legacy: bool = False,
) -> Code:
    """A tensor as torch.save writes it."""
    hooks = call("collections", "OrderedDict")
    return call(
        "torch._utils",
        "_rebuild_tensor_v2",
        storage(key, count, kind, legacy),
        offset,
        shape,
        strides,
        False,
        hooks,
    )


def state_dict(extra: Mapping[str, Any] | None = None) -> Code:
    """The dict of one weight, and further items."""
    return value({"weight": tensor(), **(extra or {})})


def torch_members(
    data_pkl: bytes, storages: Mapping[str, bytes] | None = None, more: Sequence[Member] = (), folder: str = "archive"
) -> list[Member]:
    """The members of a PyTorch file."""
    stored = {"0": FLOATS} if storages is None else storages
    return [
        Member(f"{folder}/data.pkl", data_pkl),
        Member(f"{folder}/byteorder", b"little"),
        *(Member(f"{folder}/data/{key}", data) for key, data in stored.items()),
        Member(f"{folder}/version", b"3\n"),
        *more,
    ]


def torch_zip(data_pkl: bytes, storages: Mapping[str, bytes] | None = None, more: Sequence[Member] = ()) -> bytes:
    """A PyTorch file."""
    return zipped(torch_members(data_pkl, storages, more))


def torch_legacy(objects: Mapping[int, bytes] | None = None, tail: bytes | None = None) -> bytes:
    """A PyTorch file from before 1.6: magic, protocol, system, object, keys and storages; any of the five replaced."""
    pickles = [
        pickle.dumps(MAGIC_NUMBER, 2),
        pickle.dumps(PROTOCOL_VERSION, 2),
        pickle.dumps(SYSTEM_INFORMATION, 2),
        pickled(value({"weight": tensor(legacy=True)})),
        pickle.dumps(["0"], 2),
    ]
    for place, data in (objects or {}).items():
        pickles[place] = data
    return b"".join(pickles) + (struct.pack("<q", 4) + FLOATS if tail is None else tail)


def safetensors(header: Mapping[str, Any] | bytes, data: bytes = b"", pad: int = 8) -> bytes:
    """A safetensors file of this header, which may be any bytes."""
    body = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    body += b" " * (-len(body) % pad)
    return struct.pack("<Q", len(body)) + body + data


def entry(dtype: str, shape: Sequence[int], start: int, end: int) -> dict[str, Any]:
    """The entry of a tensor in that header."""
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


GGUF_STRING, GGUF_ARRAY = 8, 9
_GGUF_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


def gguf_string(text: str | bytes) -> bytes:
    """A string of GGUF."""
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def gguf_value(kind: int, thing: Any) -> bytes:
    """A value of GGUF without its type; the elements of an array come as (type, list)."""
    if kind == GGUF_STRING:
        return gguf_string(thing)
    if kind == GGUF_ARRAY:
        inner, elements = thing
        return struct.pack("<IQ", inner, len(elements)) + b"".join(gguf_value(inner, each) for each in elements)
    return struct.pack(_GGUF_NUMBERS[kind], thing)


def gguf_key(key: str | bytes, kind: int, thing: Any) -> bytes:
    """A key and its value."""
    return gguf_string(key) + struct.pack("<I", kind) + gguf_value(kind, thing)


def gguf_tensor(name: str | bytes, shape: Sequence[int], kind: int, offset: int) -> bytes:
    """The record of a tensor."""
    return gguf_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def gguf(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] | None = None,
    data: bytes | None = None,
    *,
    counts: tuple[int, int] | None = None,
    version: int = 3,
    magic: bytes = b"GGUF",
    alignment: int = 32,
) -> bytes:
    """A GGUF file; by default of one tensor of eight F32 zeros."""
    if tensors is None:
        tensors = [gguf_tensor("weight", (8,), 0, 0)]
    if data is None:
        data = bytes(32)
    numbers = (len(tensors), len(keys)) if counts is None else counts
    head = magic + struct.pack("<IQQ", version, *numbers) + b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data


def architecture(name: str = "llama") -> bytes:
    """The key that every GGUF file has."""
    return gguf_key("general.architecture", GGUF_STRING, name)


def npy(descr: str, shape: tuple[int, ...] = (1,), data: bytes = b"", header: str | None = None) -> bytes:
    """A NumPy array by its header; `descr` is the literal of the dtype."""
    body = header or f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape!r}, }}"
    body += " " * (-(len(body) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(body)) + body.encode("latin-1") + data


def protobuf(*fields: tuple[int, int | bytes | str]) -> bytes:
    """A message of protobuf: numbers and bytes by the numbers of their fields."""
    out = io.BytesIO()
    for number, thing in fields:
        if isinstance(thing, int):
            out.write(_varint(number << 3) + _varint(thing))
        else:
            data = thing.encode() if isinstance(thing, str) else thing
            out.write(_varint(number << 3 | 2) + _varint(len(data)) + data)
    return out.getvalue()


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def onnx(
    location: str | None = None,
    domain: str = "",
    operator: str = "Identity",
    data: bytes = FLOATS,
    declared: Mapping[str, str] | None = None,
) -> bytes:
    """An ONNX model with one operator and one tensor, optionally in another file and with further fields."""
    node = protobuf((1, "x"), (2, "y"), (4, operator), (7, domain))
    weight: list[tuple[int, int | bytes | str]] = [(1, 4), (2, 1), (8, "x")]
    if location is None:
        weight.append((9, data))
    else:
        pairs = {"location": location, **(declared or {})}
        weight += [(13, protobuf((1, key), (2, value))) for key, value in pairs.items()] + [(14, 1)]
    graph = protobuf((1, node), (2, "g"), (5, protobuf(*weight)), (12, protobuf((1, "y"))))
    imports = [protobuf((1, ""), (2, 17))] + ([protobuf((1, domain), (2, 1))] if domain else [])
    return protobuf((1, 8), (2, "corpus"), (7, graph), *((8, each) for each in imports))


def tflite(*operators: str) -> bytes:
    """A TensorFlow Lite model that needs these operators: nothing but their list."""
    # The offset of the model, its vtable, and the model, whose second field is the list.
    out = bytearray(struct.pack("<I4s4HIiII", 20, b"TFL3", 8, 8, 0, 4, 0, 12, 4, len(operators)))
    start = len(out)
    out += bytes(4 * len(operators))
    for number, name in enumerate(operators):
        out += struct.pack("<6H", 12, 16, 4, 8, 0, 12)
        place = start + 4 * number
        out[place : place + 4] = struct.pack("<I", len(out) - place)
        out += struct.pack("<iiIiI", 12, 32, 8, 32, len(name)) + name.encode() + bytes(4)
    return bytes(out)
