"""Damaged pickles that call nothing bad, bare and in PyTorch archives; and files of another format."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from corpora.assembler import BINPERSID, Code, call, frame, named, pickled, proto, reduced, value
from corpora.formats import state_dict, storage, tensor, torch_zip
from corpora.item import CAUGHT, Item

STATE = state_dict()
MORE = {
    "dict": Code(b"}(" + value("a") + b"u"),
    "dict.unhashable": Code(b"}" + value([]) + value(1) + b"s"),
    "global": Code(value(1) + value(2) + b"\x93"),
    "number": Code(value({"a": Code(b"Ixyz\n")})),
    "number.float": Code(value({"a": Code(b"Fxyz\n")})),
    "numpy": Code(call("numpy", "dtype", "q9", False, True)),
    "persistent": Code(value({"a": Code(value("evil") + BINPERSID)})),
    "set": Code(b"\x8f(" + value([]) + b"\x90"),
    "storage": Code(value(("storage", named("torch", "FloatStorage"), "0", "cpu", "four")) + BINPERSID),
    "target": Code(value(1) + value(2) + b"a"),
    "tensor": reduced(
        named("torch._utils", "_rebuild_tensor_v2"),
        storage(),
        "0",
        (4,),
        (1,),
        False,
        call("collections", "OrderedDict"),
    ),
    "text": Code(b"X\x02\0\0\0\xff\xfe"),
    "call.other-arguments": reduced(named("collections", "OrderedDict"), 1, 2, 3),
    "view": Code(value({"a": tensor(shape=(2,), offset=1 << 40)})),
}
PIECES = {
    "frame": proto(4) + frame(STATE + b".", 1 << 20),
    "truncated.in-text": proto(2) + b"X\x40\0\0\0abc",
    "truncated.empty": b"",
    "limit": pickled(b"(" * 100_000),
}
STRANGERS = {
    "format.empty/model.safetensors": b"",
    "format.empty/model.pt": b"",
    "format.lfs-pointer/model.safetensors": b"version https://git-lfs.github.com/spec/v1\noid sha256:"
    + b"0" * 64
    + b"\nsize 5\n",
    "format.web-page/model.safetensors": b"<!DOCTYPE html><html></html>",
    "format.zeros/model.safetensors": bytes(4096),
    "format.unknown/model.safetensors": b"\x07\x03 something else entirely \xff\xfe" * 9,
    "format.stranger/model.pt": b"\x89PNG\r\n\x1a\n" + bytes(64),
    "format.json/model.safetensors": b'{"error": "not found"}',
    "format.json-index/model.safetensors": b'{"metadata": {}, "weight_map": {"a": "b.safetensors"}}',
    "file.partial/model.safetensors.part": struct.pack("<Q", 64),
    "file.suffix/model.gguf": torch_zip(pickled(STATE)),
}


def items() -> Iterator[Item]:
    """All of them."""
    for name, code in MORE.items():
        data = torch_zip(pickled(code, protocol=4))
        yield Item(f"{name}.pt", {"": data}, "pickle", CAUGHT, "", (f"pickle.{name.split('.')[0]}",))
    for name, data in PIECES.items():
        yield Item(f"{name}.pt", {"": torch_zip(data)}, "pickle", CAUGHT, "", (f"pickle.{name.split('.')[0]}",))
    for path, data in STRANGERS.items():
        rule, name = path.split("/")
        yield Item(name, {"": data}, f"strangers/{rule}", CAUGHT, "", (rule,))
