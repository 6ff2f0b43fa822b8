"""Classes 21 to 27: payloads that the container hides."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator

from corpora.archives import DEFLATED, Member, tarred, zipped
from corpora.assembler import POP, Code, call, named, payload, pickled, proto, reduced, system, value
from corpora.formats import MAGIC_NUMBER, npy, state_dict, torch_legacy, torch_members, torch_zip
from corpora.item import CAUGHT, CODE, HARM, MALICIOUS, NEEDS_TRUST, Item, one

INNER = payload()
GOOD = pickled(state_dict())
SYSTEM = ["posix.system"]


def suffixes() -> Iterator[Item]:
    """Class 21: a name without a suffix, or with that of another format."""
    for name in (
        "model.safetensors",
        "config.json",
        "model.gguf",
        "weights",
        "MODEL.PT",
        "model.PKL",
        "model.txt",
        "model.h5",
        "model.onnx",
        "README.md",
        "model.npy",
        "model.dat",
        "model.png",
        "tokenizer.model",
        "weights.msgpack",
        "model.bin.bak",
        "model.pkl.1",
        "notes.yaml",
        "model.py",
        "flax_model.msgpack",
    ):
        yield Item(name, {"": INNER}, "21-suffixes", CODE, MALICIOUS, ("posix.system",))
    for name in ("zip.safetensors", "zip.json", "zip.gguf", "zip", "zip.jpg"):
        yield Item(name, {"": torch_zip(INNER)}, "21-suffixes", CODE, MALICIOUS, ("posix.system",))
    text = b"cposix\nsystem\n(S'true'\ntR."
    for name in ("protocol-0.safetensors", "protocol-0.json", "protocol-0.txt", "protocol-0", "protocol-0.bin"):
        yield Item(name, {"": text}, "21-suffixes", CAUGHT, MALICIOUS, ("posix.system",))


def disagreeing_zips() -> Iterator[Item]:
    """Class 22: the two views of a zip file."""

    def torch_with(**changes: object) -> bytes:
        members = torch_members(INNER)
        members[0] = Member("archive/data.pkl", INNER, **changes)  # type: ignore[arg-type]
        return zipped(members)

    good = torch_members(GOOD)
    bad = Member("archive/data.pkl", INNER)
    benign = zipped({"readme.txt": b"hello"})
    cases = {
        "flag-encrypted": torch_with(flags=0x1),
        "flag-encrypted-central-only": torch_with(flags=0x1, local_flags=0),
        "flag-encrypted-local-only": torch_with(local_flags=0x1),
        "flag-patched": torch_with(flags=0x20),
        "flag-strong-encryption": torch_with(flags=0x40),
        "flag-masked": torch_with(flags=0x2000),
        "flag-descriptor": torch_with(flags=0x8),
        "local-name": torch_with(local_name="archive/data.txt"),
        "local-name-longer": torch_with(local_name="archive/data.pkl.txt"),
        "local-name-empty": torch_with(local_name=""),
        "bad-crc": torch_with(crc=0x12345678),
        "bad-local-crc": torch_with(local_crc=0x12345678),
        "zero-crc": torch_with(crc=0),
        "method-99": torch_with(method=99),
        "method-unknown-central": torch_with(method=77, local_method=0),
        "method-unknown-local": torch_with(method=0, local_method=77),
        "method-lzma": torch_with(method=14, local_method=0),
        "method-deflate-of-stored": torch_with(method=0, local_method=8),
        "size-too-small": torch_with(size=4),
        "size-too-large": torch_with(size=len(INNER) + 4096),
        "size-zero": torch_with(size=0),
        "duplicated-bad-first": zipped([bad, *good]),
        "duplicated-bad-last": zipped([*good, bad]),
        "duplicated-case": zipped([*good, Member("archive/DATA.PKL", INNER)]),
        "duplicated-slash": zipped([*good, Member("archive//data.pkl", INNER)]),
        "duplicated-dot": zipped([*good, Member("archive/./data.pkl", INNER)]),
        "backslash": zipped([*good, Member("archive\\data.pkl", INNER)]),
        "zip64": zipped(torch_members(INNER), zip64=True),
        "hidden-from-central": zipped([*good, Member("archive/hook.pkl", INNER, hidden=True)]),
        "central-points-elsewhere": zipped([bad, Member("archive/data.pkl", GOOD, only_central=0), *good[1:]]),
        "two-central-one-body": zipped(
            [*good, Member("x/data.pkl", INNER), Member("y/data.pkl", INNER, only_central=0)]
        ),
        "pickle-before": zipped(good, before=INNER),
        "pickle-before-offsets-from-zip": zipped(good, before=INNER, offsets_from_zip=True),
        "pickle-before-benign-zip": INNER + benign,
        "pickle-without-protocol-before": pickled(system(), protocol=None) + benign,
        "pickle-after": zipped(good, after=INNER),
        "pickle-in-comment": zipped(good, comment=INNER),
        "archive-in-comment": zipped(good, comment=benign),
        "two-archives-bad-first": zipped(torch_members(INNER)) + zipped(good),
        "two-archives-bad-last": zipped(good) + zipped(torch_members(INNER)),
        "path-up": zipped([*good, Member("../../etc/cron.d/x", b"* * * * * root true\n")]),
        "path-absolute": zipped([*good, Member("/etc/cron.d/x", b"* * * * * root true\n")]),
        "path-drive": zipped([*good, Member("C:\\windows\\x.dll", b"MZ")]),
        "symbolic-link": zipped([*good, Member("archive/link", b"/etc/passwd", attributes=0xA1FF0000)]),
        "count-too-small": zipped([*good, Member("archive/hook.pkl", INNER)], count=len(good)),
        "nul-in-name": zipped([*good, Member("archive/data.pkl\0.txt", INNER)]),
        "empty-name": zipped([*good, Member("", INNER)]),
        "deflated": zipped([Member(member.name, member.data, DEFLATED) for member in torch_members(INNER)]),
        "deflated-trailing": zipped(
            [
                Member("archive/data.pkl", GOOD, DEFLATED, body=zipped([Member("x", GOOD, DEFLATED)])[31 : 31 + 200]),
                *good[1:],
            ]
        ),
        "central-end-only": b"PK\x05\x06" + bytes(18) + INNER,
        "gap-between-members": zipped([good[0], Member("x", INNER, hidden=True), *good[1:]]),
        "extra-field": zipped(
            [Member(good[0].name, GOOD, extra=struct.pack("<HH", 0x7075, len(INNER)) + INNER), *good[1:]]
        ),
    }
    for name, data in cases.items():
        yield one("22-zip", f"{name}.pt", data, CAUGHT)


def seven_zip(data: bytes) -> bytes:
    """A 7z archive of one stored file without a name."""
    streams = bytes([1, 4, 6, 0, 1, 9, len(data), 0, 7, 11, 1, 0, 1, 1, 0, 12, len(data), 0, 8, 0, 0])
    head = streams + bytes([5, 1, 0x11, 5, 0, 120, 0, 0, 0, 0, 0])
    start = struct.pack("<QQI", len(data), len(head), zlib.crc32(head))
    return b"7z\xbc\xaf\x27\x1c\x00\x04" + struct.pack("<I", zlib.crc32(start)) + start + data + head


def archives() -> Iterator[Item]:
    """Class 23: archives of other kinds, and nested ones."""
    inner = torch_zip(INNER)
    deep = inner
    for _ in range(3):
        deep = zipped({"inner.zip": deep})
    deeper = inner
    for _ in range(40):
        deeper = zipped([Member("inner.zip", deeper)])
    tar_gz = tarred({"model/pytorch_model.bin": inner}, "w:gz")
    encrypted = io.BytesIO()
    with zipfile.ZipFile(encrypted, "w") as archive:
        archive.writestr("model.pkl", INNER)
    locked = bytearray(encrypted.getvalue())
    for magic, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        locked[locked.index(magic) + offset] |= 1
    cases = {
        "model.7z": seven_zip(INNER),
        "seven-zip.pt": seven_zip(INNER),
        "seven-zip.bin": seven_zip(torch_zip(INNER)[:200]),
        "encrypted.zip": bytes(locked),
        "tar.pt": tarred({"pickle": INNER, "sys_info": INNER, "storages": b"", "tensors": b""}),
        "tar.tar": tarred({"a/model.pkl": INNER}),
        "tar.tar.gz": tar_gz,
        "tar.tar.bz2": tarred({"a/model.pkl": INNER}, "w:bz2"),
        "tar.tar.xz": tarred({"a/model.pkl": INNER}, "w:xz"),
        "model.nemo": tarred({"./model_config.yaml": b"a: 1\n", "./model_weights.ckpt": inner}),
        "model-gz.nemo": tarred({"./model_config.yaml": b"a: 1\n", "./model_weights.ckpt": inner}, "w:gz"),
        "model.mar": zipped(
            {
                "MAR-INF/MANIFEST.json": b'{"model": {"handler": "handler.py"}}',
                "handler.py": b"import os\nos.system('true')\n",
                "model.pt": inner,
            }
        ),
        "model.pkl.gz": gzip.compress(INNER, mtime=0),
        "model.pkl.bz2": bz2.compress(INNER),
        "model.pkl.xz": lzma.compress(INNER),
        "gzip-named-pt.pt": gzip.compress(inner, mtime=0),
        "gzip-twice.pkl.gz": gzip.compress(gzip.compress(INNER, mtime=0), mtime=0),
        "gzip-two-streams.pkl.gz": gzip.compress(GOOD, mtime=0) + gzip.compress(INNER, mtime=0),
        "gzip-then-pickle.gz": gzip.compress(GOOD, mtime=0) + INNER,
        "zip-in-zip.zip": zipped({"inner.zip": inner}),
        "zip-three-deep.zip": deep,
        "zip-forty-deep.zip": deeper,
        "tar-in-zip.zip": zipped({"inner.tar.gz": tar_gz}),
        "zip-in-tar.tar": tarred({"inner.zip": inner}),
        "no-suffix-member.zip": zipped({"weights": pickled(system(), protocol=None)}),
        "json-member.zip": zipped({"config.json": INNER}),
        "tar-link.tar": tarred({"a": b""}, links={"b": "/etc/passwd"}),
        "tar-path-up.tar": tarred({"../../x.pth": b"import os\n"}),
        "rar.bin": b"Rar!\x1a\x07\x01\x00" + INNER,
        "zstd.pkl.zst": b"\x28\xb5\x2f\xfd\x20"
        + bytes([len(INNER)])
        + struct.pack("<I", len(INNER) << 3 | 1)[:3]
        + INNER,
        "cut.zip": inner[: len(inner) // 2],
        "zip-without-end.pt": inner[:-22],
    }
    for name, data in cases.items():
        yield one("23-archives", name, data, CAUGHT, MALICIOUS)


def torch_archives() -> Iterator[Item]:
    """Class 24: members of a PyTorch file that nothing refers to, or that differ from the referenced one."""
    good = GOOD
    more = {
        "hook-pkl": [Member("archive/hook.pkl", INNER)],
        "constants-pkl": [Member("archive/constants.pkl", INNER)],
        "data-7": [Member("archive/data/7", INNER)],
        "data-without-protocol": [Member("archive/data/7", pickled(system(), protocol=None))],
        "root-data-pkl": [Member("data.pkl", INNER)],
        "other-folder": [Member("other/data.pkl", INNER), Member("other/version", b"3\n")],
        "extra-folder": [Member("archive/extra/payload", INNER)],
        "python-file": [Member("archive/code/__torch__.py", b"import os\nos.system('true')\n")],
        "shared-object": [Member("archive/lib.so", b"\x7fELF\x02\x01\x01" + bytes(57))],
        "numpy-member": [Member("archive/x.npy", npy("'|O'", (), INNER))],
        "inner-zip": [Member("archive/inner.pt", torch_zip(INNER))],
        "byteorder-pickle": [Member("archive/.data/serialization_id", INNER)],
        "text-pickle": [Member("archive/notes.txt", b"cposix\nsystem\n(S'true'\ntR.")],
    }
    for name, members in more.items():
        yield one("24-torch-zip", f"{name}.pt", torch_zip(good, more=members), CAUGHT, MALICIOUS)
    yield one("24-torch-zip", "storage-too-short.pt", torch_zip(good, {"0": INNER[:15]}), CAUGHT)
    yield one("24-torch-zip", "storage-too-long.pt", torch_zip(good, {"0": bytes(16) + INNER}), CAUGHT)
    yield one("24-torch-zip", "storage-missing.pt", torch_zip(good, {}), CAUGHT)
    package = {
        "p/.data/version": b"6\n",
        "p/.data/extern_modules": b"os\n",
        "p/m/__init__.py": b"import os\nos.system('true')\n",
        "p/m/model.pkl": pickled(call("m", "Model")),
    }
    yield one("24-torch-zip", "package.pt", zipped(package), CODE)
    script = {
        "archive/data.pkl": pickled(call("__torch__.M", "M")),
        "archive/code/__torch__.py": b"class M(Module):\n  def forward(self: __torch__.M) -> None:\n    pass\n",
        "archive/constants.pkl": INNER,
        "archive/version": b"3\n",
    }
    yield one("24-torch-zip", "script-constants.pt", zipped(script), CODE, MALICIOUS, SYSTEM)


def legacy() -> Iterator[Item]:
    """Class 25: PyTorch's files from before 1.6."""
    magic = Code(b"\x8a\x0a" + MAGIC_NUMBER.to_bytes(10, "little"))
    for place in range(5):
        hidden = pickled(system(), POP, state_dict() if place == 3 else value(None))
        yield one("25-legacy", f"object-{place}.pth", torch_legacy({place: hidden}), CAUGHT, MALICIOUS)
    computed = pickled(reduced(named("builtins", "int"), str(MAGIC_NUMBER)))
    yield one("25-legacy", "magic-by-call.pth", torch_legacy({0: computed}), CAUGHT, MALICIOUS)
    evaluated = pickled(call("__builtin__", "eval", hex(MAGIC_NUMBER)))
    yield one("25-legacy", "magic-by-eval.pth", torch_legacy({0: evaluated}), HARM)
    with_payload = pickled(system(), POP, magic)
    yield one("25-legacy", "magic-after-payload.pth", torch_legacy({0: with_payload}), CAUGHT, MALICIOUS)
    yield one(
        "25-legacy", "sixth-pickle.pth", torch_legacy(tail=INNER + struct.pack("<q", 4) + bytes(16)), CAUGHT, MALICIOUS
    )
    yield one(
        "25-legacy",
        "after-storages.pth",
        torch_legacy(tail=struct.pack("<q", 4) + bytes(16) + INNER),
        CAUGHT,
        MALICIOUS,
    )
    by_get = proto(2) + magic + b"q\x00" + POP + system() + POP + b"h\x00."
    yield one("25-legacy", "magic-from-memo.pth", torch_legacy({0: by_get}), CAUGHT, MALICIOUS)
    text = b"L" + str(MAGIC_NUMBER).encode() + b"L\n."
    yield one("25-legacy", "magic-as-text.pth", torch_legacy({0: text, 3: pickled(system())}), CAUGHT, MALICIOUS)
    count = pickle_line(0)
    tar = tarred({"sys_info": pickled(value({})), "pickle": pickled(system()), "storages": count, "tensors": count})
    yield one("25-legacy", "tar-0.1.pth", tar, CAUGHT, MALICIOUS)
    storages = tarred(
        {"sys_info": pickled(value({})), "pickle": pickled(value({})), "storages": INNER, "tensors": count}
    )
    yield one("25-legacy", "tar-storages.pth", storages, CAUGHT, MALICIOUS)


def pickle_line(number: int) -> bytes:
    """A pickle of a number."""
    return pickled(value(number))


def numpy_files() -> Iterator[Item]:
    """Class 26."""
    structured = "[('a', '<f4'), ('b', '|O')]"
    cases = {
        "object.npy": npy("'|O'", (1,), INNER),
        "object-protocol-0.npy": npy("'|O'", (1,), b"cposix\nsystem\n(S'true'\ntR."),
        "object-8.npy": npy("'O8'", (1,), INNER),
        "structured.npy": npy(structured, (1,), INNER),
        "nested-structured.npy": npy("[('a', [('b', 'O')])]", (1,), INNER),
        "subarray.npy": npy("[('a', 'O', (2,))]", (1,), INNER),
        "pickle-after-data.npy": npy("'<f4'", (1,), bytes(4) + INNER),
        "header-call.npy": npy(
            "", header="{'descr': __import__('os').system('true'), 'fortran_order': False, 'shape': (1,), }"
        ),
        "header-comprehension.npy": npy(
            "", header="{'descr': [x for x in ()], 'fortran_order': False, 'shape': (1,), }"
        ),
        "header-huge-shape.npy": npy("'<f4'", (1 << 62, 1 << 62), bytes(4)),
        "header-deep.npy": npy("", header="{'descr': " + "(" * 5000 + ")" * 5000 + "}"),
        "version-9.npy": b"\x93NUMPY\x09\x00" + INNER,
        "object-in.npz": zipped({"a.npy": npy("'<f4'", (1,), bytes(4)), "b.npy": npy("'|O'", (1,), INNER)}),
        "pickle-in.npz": zipped({"a.npy": npy("'<f4'", (1,), bytes(4)), "b.pkl": INNER}),
        "bare-pickle-in.npz": zipped({"a.npy": INNER}),
        "no-suffix-in.npz": zipped({"a": INNER}),
        "deflated-object.npz": zipped([Member("a.npy", npy("'|O'", (1,), INNER), DEFLATED)]),
        "bare-pickle.npy": INNER,
    }
    for name, data in cases.items():
        yield one("26-numpy", name, data, CAUGHT, MALICIOUS)


def estimators() -> Iterator[Item]:
    """Class 27: joblib, scikit-learn and skops."""
    wrapper = named("joblib.numpy_pickle", "NumpyArrayWrapper")
    array = Code(
        wrapper
        + b")\x81"
        + value(
            {
                "subclass": named("numpy", "ndarray"),
                "shape": (1,),
                "order": "C",
                "dtype": reduced(named("numpy", "dtype"), "O8", False, True),
                "allow_mmap": False,
            }
        )
        + b"b"
    )
    yield one(
        "27-estimators", "joblib-object-array.joblib", pickled(array, protocol=3)[:-1] + INNER + b".", CAUGHT, MALICIOUS
    )
    tree = Code(named("sklearn.tree._tree", "Tree") + value((4,)) + b"R" + value({"hook": system()}) + b"b")
    yield one("27-estimators", "sklearn-with-payload.pkl", pickled(tree), HARM, named=SYSTEM)
    pipeline = Code(
        named("sklearn.preprocessing._function_transformer", "FunctionTransformer")
        + b")\x81"
        + value({"func": named("os", "system")})
        + b"b"
    )
    yield one("27-estimators", "function-transformer.pkl", pickled(pipeline), CODE, MALICIOUS, ["os.system"])
    nodes: dict[str, dict[str, object]] = {
        "function": {
            "__class__": "system",
            "__module__": "os",
            "__loader__": "FunctionNode",
            "content": {"module_path": "os", "function": "system"},
        },
        "operator": {
            "__class__": "methodcaller",
            "__module__": "operator",
            "__loader__": "OperatorFuncNode",
            "attrs": {"__class__": "tuple", "__module__": "builtins", "__loader__": "TupleNode", "content": []},
        },
        "method": {
            "__class__": "system",
            "__module__": "os",
            "__loader__": "MethodNode",
            "content": {
                "obj": {"__class__": "x", "__module__": "builtins", "__loader__": "ObjectNode"},
                "func": "system",
            },
        },
        "type": {"__class__": "Popen", "__module__": "subprocess", "__loader__": "TypeNode"},
        "hidden-loader": {
            "__class__": "str",
            "__module__": "builtins",
            "__loader__": "PartialNode",
            "content": {"func": {"__class__": "eval", "__module__": "builtins", "__loader__": "FunctionNode"}},
        },
        "unknown-loader": {"__class__": "x", "__module__": "evil", "__loader__": "EvilNode"},
    }
    for name, node in nodes.items():
        schema = {"protocol": 2, "_skops_version": "0.11", **node}
        yield one(
            "27-estimators",
            f"skops-{name}.skops",
            zipped({"schema.json": json.dumps(schema).encode()}),
            CODE,
            MALICIOUS,
        )
    plain = Code(named("sklearn.linear_model._base", "LinearRegression") + b")\x81" + value({"coef_": 1}) + b"b")
    yield one(
        "27-estimators", "plain-sklearn.pkl", pickled(plain), frozenset({NEEDS_TRUST}), named=["sklearn.linear_model"]
    )


def items() -> Iterator[Item]:
    """All of them."""
    for group in (suffixes, disagreeing_zips, archives, torch_archives, legacy, numpy_files, estimators):
        yield from group()
