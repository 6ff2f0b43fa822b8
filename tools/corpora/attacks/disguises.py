"""Files that are one format by their first bytes, and another one for the program that loads them (many classes)."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping

from corpora.archives import Member, tarred, zipped
from corpora.assembler import payload, pickled
from corpora.formats import FLOATS, entry, npy, protobuf, safetensors, state_dict
from corpora.hdf5 import hdf5
from corpora.item import CAUGHT, CODE, HARM, MALICIOUS, Item, one

BARE = payload(protocol=None)
SYSTEM = ["posix.system"]
LAYER = {"module": "os", "class_name": "function", "config": "system", "registered_name": "function"}
MODEL = json.dumps({"module": "keras", "class_name": "Sequential", "config": {"layers": [LAYER]}})
PICTURE = b"\x89PNG\r\n\x1a\n"
BLOCK = 512


def _as_line(kind: str) -> bytes:
    """A valid safetensors file whose first byte is UNICODE: for a pickle, a text up to the first end of a line."""
    body = b"\n0" + BARE
    body += bytes(-len(body) % 4)
    count = len(body) if kind == "U8" else len(body) // 4
    header = json.dumps({"w": entry(kind, [count], 0, len(body))}, separators=(",", ":")).encode()
    header += b" " * ((ord("V") - len(header)) % 256)
    return struct.pack("<Q", len(header)) + header + body


def pickles() -> Iterator[Item]:
    """Pickles that begin as another format, or with a line that ends beyond the inspected bytes."""
    group = "21-suffixes"
    for kind in ("F32", "U8"):
        yield one(group, f"safetensors-{kind}-and-pickle.bin", _as_line(kind), HARM, named=SYSTEM)
    yield one(group, "safetensors-and-pickle.safetensors", _as_line("F32"), HARM, named=SYSTEM)
    picture = b"GIF89a\x01\x00\x01V" + b"\x00\x00;\n0" + BARE
    yield one(group, "picture-and-pickle.bin", picture, HARM, named=SYSTEM)
    yield one(group, "name-in-tar-is-pickle.pkl", tarred({BARE.decode(): b"x"}), HARM, named=SYSTEM)
    yield one(group, "binary-pickle.onnx", b"}q\x000" + BARE, CAUGHT, MALICIOUS, SYSTEM)
    lines = {
        "zeros": b"I" + b"0" * 5000 + b"1",
        "nul": b"I1\0" + b"\xff" * 5000,
        "float": b"F1." + b"0" * 5000 + b"1",
        "long": b"L1\0" + b" " * 5000,
        "index": b"Np" + b"0" * 4200,
    }
    for name, line in lines.items():
        yield one(group, f"long-line-{name}.bin", line + b"\n0" + BARE, HARM, named=SYSTEM)
    yield one(group, "short-names-and-junk.bin", b"cm\nf\n(tR.junk", CAUGHT)


def _keras(config: bytes) -> bytes:
    return zipped({"metadata.json": b"{}", "config.json": config, "model.weights.h5": hdf5()})


def configurations() -> Iterator[Item]:
    """Class 28: configurations that Python reads: other encodings, other whitespace, other bytes in front."""
    group = "28-keras"
    escaped = MODEL.replace("class_name", "cl\\u0061ss_name")
    for name, text in {
        "utf-16": MODEL.encode("utf-16"),
        "utf-16-le": MODEL.encode("utf-16-le"),
        "utf-32-be": MODEL.encode("utf-32-be"),
        "escaped-key": escaped.encode(),
        "not-a-number": MODEL.replace('"keras"', '"keras", "x": NaN', 1).encode(),
    }.items():
        yield one(group, f"{name}.keras", _keras(text), HARM)
    long_key = json.dumps({"x": "y" * 8000, **json.loads(MODEL)})
    for name, shown in {
        "escaped-key": escaped,
        "indented": json.dumps(json.loads(MODEL), indent=1),
        "another-key-first": '{"backend": 1, ' + MODEL[1:],
        "long-value-first": long_key,
        "wide-spaces": "{" + " " * 100 + MODEL[1:],
    }.items():
        yield one(group, f"{name}.h5", hdf5(attributes={"model_config": shown}), HARM)
    inner = hdf5(attributes={"model_config": MODEL})
    for name, head in {"picture": PICTURE, "bytes": b"\xfe\x01\x02", "text": b"MATLAB 7.3", "zeros": b""}.items():
        for suffix in ("h5", "hdf5"):
            yield one(group, f"behind-{name}.{suffix}", head.ljust(BLOCK, b"\0") + inner, HARM)
    yield one(group, "picture-and-archive.keras", PICTURE + _keras(MODEL.encode()) + b"x", HARM)
    yield one(group, "in-a-tar-too.keras", tarred({"a.png": PICTURE + _keras(MODEL.encode()) + b"x"}), HARM)
    for name, module, function in (
        ("legacy-loader", "keras.src.legacy.saving.legacy_h5_format", "load_model_from_hdf5"),
        ("model-loader", "keras.models", "load_model"),
    ):
        call = {"module": module, "class_name": "function", "config": function, "registered_name": function}
        layer = {"module": "keras.layers", "class_name": "Lambda", "config": {"function": call, "arguments": {}}}
        config = {"module": "keras", "class_name": "Sequential", "config": {"layers": [layer]}}
        yield one(group, f"{name}.keras", _keras(json.dumps(config).encode()), HARM)
    operation = {"class_name": "TFOpLambda", "config": {"name": "x", "function": "io.write_file"}}
    config = {"class_name": "Functional", "config": {"layers": [operation]}}
    yield one(group, "operation-of-files.h5", hdf5(attributes={"model_config": json.dumps(config)}), HARM)
    node = {"__class__": "system", "__module__": "os", "__loader__": "FunctionNode"}
    schema = json.dumps(node)
    hidden = schema.replace("__loader__", "\\u005f_loader__").replace("__module__", "_\\u005fmodule__")
    yield one("27-estimators", "skops-utf-16.skops", zipped({"schema.json": schema.encode("utf-16")}), HARM)
    yield one("27-estimators", "skops-escaped-keys.skops", zipped({"schema.json": hidden.encode()}), HARM)


def _varint(number: int, more: int = 0) -> bytes:
    """A small number in more bytes than it needs."""
    return bytes([number | 0x80, *[0x80] * (more - 1), 0]) if more else bytes([number])


def graphs() -> Iterator[Item]:
    """Graphs of TensorFlow: fields in another order, numbers in more bytes, and those of TensorFlow Lite."""

    def graph(name: bytes, tag: int = 0, length: int = 0) -> bytes:
        node = b"\x0a\x01n" + _varint(0x12, tag) + _varint(len(name), length) + name
        return protobuf((1, 1), (2, protobuf((2, protobuf((1, node))))))

    cases = {
        "other-field-first.pb": b"\x7a\x03abc" + graph(b"WriteFile"),
        "long-length.pb": graph(b"WriteFile", length=1),
        "longer-length.pb": graph(b"PyFunc", length=3),
        "long-tag.pb": graph(b"ReadFile", tag=2, length=1),
        "dataset-to-file.pb": graph(b"SaveDatasetV2"),
        "flex.tflite": b"\x1c\0\0\0TFL3" + bytes(40) + b"\x0d\0\0\0FlexWriteFile\0\0\0" + bytes(16),
    }
    for name, data in cases.items():
        yield one("28-keras", name, data, CODE)


def arrays() -> Iterator[Item]:
    """Class 26: several types in one text, and a shape that covers the pickle."""
    body = BARE + b"0" * (-len(BARE) % 8)
    for name, descr in {"f4-o": "f4,O", "f8-object": "f8,object", "i4-o-f4": "i4,O,f4"}.items():
        width = int(descr[1])
        yield one(
            "26-numpy", f"several-types-{name}.npy", npy(repr(descr), (len(body) // width,), body), CAUGHT, MALICIOUS
        )


def _header(name: bytes, size: int, kind: bytes = b"0", **fields: bytes) -> bytes:
    """A block before a member of a tar archive; its size, magic and prefix may be other bytes."""
    block = bytearray(BLOCK)
    places = {"magic": (257, b"ustar\x0000"), "prefix": (345, b""), "field": (124, b"%011o\0" % size)}
    block[: len(name)], block[100:108], block[156:157] = name, b"0000644\0", kind
    for field, (place, usual) in places.items():
        data = fields.get(field, usual)
        block[place : place + len(data)] = data
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def _member(name: bytes, data: bytes, kind: bytes = b"0", **fields: bytes) -> bytes:
    return _header(name, len(data), kind, **fields) + data + bytes(-len(data) % BLOCK)


def _attributes(values: Mapping[str, str], kind: bytes = b"x") -> bytes:
    """The list of attributes before a member, or before all of them."""
    lines = b""
    for key, value in values.items():
        line, length = f" {key}={value}\n".encode(), 0
        while len(str(length)) + len(line) != length:
            length = len(str(length)) + len(line)
        lines += str(length).encode() + line
    return _member(b"attributes", lines, kind)


def tars() -> Iterator[Item]:
    """Class 23: tar archives that unpack to other members than their blocks suggest."""
    end = bytes(2 * BLOCK)
    config = _member(b"model_config.yaml", b"a: 1\n")
    parts = b"1\n0\n%d\n" % len(BARE)
    sparse = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "weights.ckpt"}
    cases = {
        "sparse.nemo": config + _attributes(sparse) + _member(b"x", parts.ljust(BLOCK, b"\0") + BARE) + end,
        "sparse-of-gnu.tar": _member(b"weights.ckpt", BARE, b"S") + end,
        "global-name.tar": _attributes({"path": "../../etc/cron.d/x"}, b"g") + _member(b"ok.txt", b"hi\n") + end,
        "global-size.tar": _attributes({"size": "4"}, b"g") + _member(b"ok.txt", b"hi\n") + end,
        "prefix-without-magic.tar": _member(b"x.txt", b"hi\n", magic=b"ustar  \0", prefix=b"../../../etc") + end,
        "digits-behind-nul.tar": _header(b"a.txt", 0, field=b"000\x0000001000")
        + _member(b"m", BARE.ljust(BLOCK))
        + end,
    }
    for name, data in cases.items():
        yield one("23-archives", name, data, CAUGHT, MALICIOUS)


def members() -> Iterator[Item]:
    """Class 23: programs and configurations in archives."""
    group = "23-archives"
    program = b"import os\nos.system('true')\n"
    template = json.dumps({"chat_template": "{{ lipsum.__globals__['os'].popen('true').read() }}"}).encode()
    target = json.dumps({"model": {"_target_": "os.system"}}).encode()
    remote = json.dumps({"auto_map": {"AutoModel": "modeling_x.M"}}).encode()
    yield one(group, "program.zip", zipped({"model/handler.py": program}), CODE)
    yield one(group, "program-of-transformers.tar", tarred({"modeling_x.py": program}), CODE)
    yield one(group, "program-that-nothing-runs.zip", zipped({"x.py": program}), CODE)
    yield one(group, "remote-code.zip", zipped({"config.json": remote}), CODE)
    yield one(group, "template.tar.gz", tarred({"tokenizer_config.json": template}, "w:gz"), HARM)
    yield one(group, "target.zip", zipped({"settings.json": target}), HARM)
    yield one(group, "target-utf-16.zip", zipped({"config.json": target.decode().encode("utf-16")}), HARM)
    yield one(group, "loader.zip", zipped({"MLmodel": b"flavors:\n  x:\n    loader_module: evil\n"}), CODE)
    name = b"config.json"
    head = struct.pack("<HHBI", 0x7075, 5 + len(name), 1, zlib.crc32(b"data/0")) + name
    members = [Member("data.pkl", pickled(state_dict())), Member("data/0", FLOATS, extra=head)]
    yield one("22-zip", "second-name-of-a-storage.keras", zipped(members), CAUGHT)


def repositories() -> Iterator[Item]:
    """Classes 30, 34 and 35: configurations that name code by other keys, and texts that begin as git-LFS pointers."""
    weights = safetensors({"weight": entry("F32", [4], 0, 16)}, FLOATS)
    kernels = {"model_type": "llama", "_attn_implementation_internal": "evil/kernels"}
    parts = {"model_type": "x", "attn_implementation": {"text_config": "evil/kernels"}}
    for name, config in {"kernels-internal": kernels, "kernels-of-a-part": parts}.items():
        files = {"config.json": json.dumps(config).encode(), "model.safetensors": weights}
        yield Item(name, files, "34-repositories", CODE, "", ("evil/kernels",))
    adapter = {"peft_type": "LORA", "auto_mapping": {"base_model_class": "X", "parent_library": "evil"}}
    yield Item("parent-library", {"adapter_config.json": json.dumps(adapter).encode()}, "34-repositories", CODE)
    pointer = b"version https://git-lfs"
    settings = pointer + b": 1\nmodel:\n  _target_: os.system\n"
    marked = "model:\n  _target_: os.system\n".encode("utf-16")
    yield Item("utf-16", {"model_config.yaml": marked}, "35-hydra", HARM, "", ("os.system",))
    yield Item("begins-as-pointer", {"model_config.yaml": settings}, "35-hydra", HARM, "", ("os.system",))
    template = pointer + b"{{ lipsum.__globals__['os'].popen('true').read() }}"
    yield Item("begins-as-pointer", {"chat_template.jinja": template}, "30-templates", HARM)


def items() -> Iterator[Item]:
    """All of them."""
    for group in (pickles, configurations, graphs, arrays, tars, members, repositories):
        yield from group()
