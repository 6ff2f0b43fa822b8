"""Classes 9 and 10: pickles inside pickles, and the many ways in which libraries load one."""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import json
import lzma
import struct
import zlib
from collections.abc import Iterator

from corpora.archives import DEFLATED, Member, tarred, zipped
from corpora.assembler import POP, Code, call, line_text, named, payload, pickled, reduced, system, value
from corpora.formats import npy, state_dict, torch_legacy, torch_zip
from corpora.item import CAUGHT, CODE, HARM, MALICIOUS, Item, one

INNER = payload()
LOADERS = [
    ("pickle", "loads"),
    ("_pickle", "loads"),
    ("cPickle", "loads"),
    ("dill", "loads"),
    ("dill._dill", "loads"),
    ("cloudpickle", "loads"),
    ("joblib", "load"),
    ("marshal", "loads"),
    ("pickle", "Unpickler"),
    ("shelve", "open"),
    ("torch", "load"),
    ("numpy", "load"),
    ("pandas", "read_pickle"),
    ("pickle5", "loads"),
    ("jsonpickle", "decode"),
    ("yaml", "unsafe_load"),
]


def nested() -> Iterator[Item]:
    """Class 9."""
    for module, name in LOADERS:
        data = pickled(call(module, name, INNER, form="stack"), protocol=4)
        yield one("09-nested", f"{module}.{name}.pkl", data, CODE, MALICIOUS, [f"{module}.{name}"])
    from_bytes = reduced(named("torch.storage", "_load_from_bytes"), torch_legacy({3: pickled(system(), protocol=2)}))
    yield one("09-nested", "load-from-bytes-legacy.pkl", pickled(from_bytes), CODE, MALICIOUS, ["posix.system"])
    in_zip = reduced(named("torch.storage", "_load_from_bytes"), torch_zip(pickled(system())))
    yield one("09-nested", "load-from-bytes-zip.pkl", pickled(in_zip, protocol=4), CODE, MALICIOUS, ["posix.system"])
    text = reduced(
        named("torch.storage", "_load_from_bytes"),
        reduced(named("_codecs", "encode"), INNER.decode("latin-1"), "latin1"),
    )
    yield one("09-nested", "load-from-bytes-text.pkl", pickled(text), CODE, MALICIOUS)
    dtype = reduced(named("numpy", "dtype"), "O8", False, True)
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):
        scalar = reduced(named(module, "scalar"), dtype, INNER)
        yield one("09-nested", f"{module}.scalar.pkl", pickled(scalar), CODE, MALICIOUS)
    decoders = {
        "base64": call("base64", "b64decode", base64.b64encode(INNER)),
        "zlib": call("zlib", "decompress", zlib.compress(INNER)),
        "bz2": call("bz2", "decompress", bz2.compress(INNER)),
        "lzma": call("lzma", "decompress", lzma.compress(INNER)),
        "hex": call("binascii", "unhexlify", INNER.hex()),
        "fromhex": call("builtins", "bytes.fromhex", INNER.hex(), form="stack"),
    }
    # A text whose characters are one pickle, and whose encoded bytes are another.
    bare = pickled(system(), protocol=None)
    both = (b"X" + struct.pack("<I", 2 * len(bare)) + b"\x80" * len(bare) + bare + b".").decode("latin-1")
    for name, encoded in {
        "utf-8": call("_codecs", "encode", both, "utf-8"),
        "utf-16": call(
            "builtins", "bytes", "".join(chr(int.from_bytes(two, "little")) for two in _pairs(bare)), "utf-16-le"
        ),
        "backslashes": reduced(
            named("_codecs", "encode"), line_text("U\x07\\\\u0041" + bare.decode().replace("\n", "\\u000a")), "latin1"
        ),
    }.items():
        data = pickled(reduced(named("torch.storage", "_load_from_bytes"), encoded))
        yield one("09-nested", f"load-from-bytes-{name}.pkl", data, HARM)
    for name, decoded in decoders.items():
        data = pickled(reduced(named("pickle", "loads"), decoded), protocol=4)
        yield one("09-nested", f"{name}.pkl", data, CODE, MALICIOUS, ["pickle.loads"])
    deep = INNER
    for _ in range(12):
        deep = pickled(call("pickle", "loads", deep))
    yield one("09-nested", "twelve-deep.pkl", deep, HARM, named=["pickle.loads"])


def _pairs(data: bytes) -> list[bytes]:
    """Two bytes each."""
    padded = data + b"." * (len(data) % 2)
    return [padded[at : at + 2] for at in range(0, len(padded), 2)]


def _joblib(compress: str) -> bytes:
    body = pickled(value({"coefficients": system("stack")}), protocol=4)
    match compress:
        case "zlib":
            return zlib.compress(body)
        case "gzip":
            return gzip.compress(body, mtime=0)
        case "bz2":
            return bz2.compress(body)
        case "xz":
            return lzma.compress(body)
        case "lzma":
            return lzma.compress(body, format=lzma.FORMAT_ALONE)
        case "old":  # joblib before 0.10: ZF, the length in hexadecimal, and zlib
            return b"ZF" + hex(len(body)).encode().ljust(19) + zlib.compress(body)
    return body


def loading_paths() -> Iterator[Item]:
    """Class 10: the ways in which libraries load nested pickles, and errors after the payload."""
    group = "10-loading-paths"
    stable = {"policy": {":type:": "<class 'function'>", ":serialized:": base64.b64encode(INNER).decode()}}
    singles = {
        **{f"joblib-{kind}.joblib": _joblib(kind) for kind in ("none", "zlib", "gzip", "bz2", "xz", "lzma", "old")},
        "frame.pkl.gz": gzip.compress(INNER, mtime=0),
        "frame.pkl.bz2": bz2.compress(INNER),
        "frame.pkl.xz": lzma.compress(INNER),
        "frame.pkl.zip": zipped([Member("frame.pkl", INNER, DEFLATED)]),
        "paddle.pdparams": INNER,
        "paddle.pdopt": INNER,
        "model.dill": INNER,
        "model.cloudpickle": INNER,
        "fastai-export.pkl": torch_zip(INNER),
        "detectron2.pkl": pickled(value({"model": {"w": system()}})),
        "torch-package.pt": zipped(
            {"p/.data/version": b"6\n", "p/.data/extern_modules": b"posix\n", "p/model/model.pkl": INNER}
        ),
        "stable-baselines3.zip": zipped({"data": json.dumps(stable).encode(), "policy.pth": torch_zip(INNER)}),
        "nemo-model.nemo": tarred({"./model_config.yaml": b"target: x\n", "./model_weights.ckpt": torch_zip(INNER)}),
        "model.mar": zipped({"MAR-INF/MANIFEST.json": b"{}", "model.pt": torch_zip(INNER)}),
        "keras-weights.npz": zipped({"weights.npy": npy("'|O'", (), INNER)}),
        "model.skops": zipped(
            {
                "schema.json": json.dumps(
                    {
                        "__class__": "system",
                        "__module__": "os",
                        "__loader__": "FunctionNode",
                        "content": {"module_path": "os", "function": "system"},
                    }
                ).encode()
            }
        ),
        "wheel.whl": zipped({"package/weights.pkl": INNER}),
        "model.tar.bz2": tarred({"model.pkl": INNER}, "w:bz2"),
    }
    for name, data in singles.items():
        yield one(group, name, data, CAUGHT, MALICIOUS)
    folders: dict[str, dict[str, bytes]] = {
        "mlflow": {
            "MLmodel": b"flavors:\n  python_function:\n    loader_module: mlflow.sklearn\n    model_path: model.pkl\n",
            "model.pkl": INNER,
        },
        "distributed-checkpoint": {
            ".metadata": pickled(value({"state_dict_metadata": system()})),
            "__0_0.distcp": torch_zip(pickled(state_dict())),
        },
        "gensim": {"model.w2v": INNER, "model.w2v.vectors.npy": npy("'<f4'", (1,), bytes(4))},
        "spacy": {"meta.json": b"{}", "tokenizer": INNER, "ner/model": b"\x80"},
        "sentence-transformers": {
            "modules.json": b'[{"idx": 0, "name": "0", "path": "", "type": "os.system"}]',
            "config.json": b"{}",
        },
        "rllib": {"rllib_checkpoint.json": b"{}", "algorithm_state.pkl": INNER},
        "flair": {"pytorch_model.bin": torch_zip(pickled(value({"state": system()})))},
        "nltk": {"tokenizers/punkt/english.pickle": INNER},
        "no-suffix": {"weights": INNER},
        "hidden-file": {".weights.pkl": INNER, "config.json": b"{}"},
        "deep-folder": {"a/b/c/d/e/f/weights.bin": torch_zip(INNER)},
    }
    for name, files in folders.items():
        yield Item(name, files, group, CAUGHT, MALICIOUS)
    errors = {
        "then-error-in-call": Code(system() + POP + call("collections", "OrderedDict", 1, 2, 3)),
        "then-missing-module": Code(system() + POP + named("no_such_module", "x")),
        "then-bad-build": Code(system() + value(1) + b"b"),
        "then-bad-memo": Code(system() + b"j\xff\xff\xff\x7f"),
        "then-unhashable": Code(system() + POP + value(({}, 1)) + b"}" + value([]) + value(1) + b"s"),
        "then-stop-on-empty": Code(system() + POP),
        "then-persistent-id": Code(system() + POP + b"Pevil\n"),
        "then-bad-utf8": Code(system() + POP + b"X\x02\0\0\0\xff\xfe"),
        "then-bad-float": Code(system() + POP + b"Fnot-a-float\n"),
    }
    for name, code in errors.items():
        yield one(group, f"{name}.pkl", pickled(code), HARM, named=["posix.system"])
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as file:
        file.write(INNER)
    yield one(group, "cut-gzip.pkl.gz", buffer.getvalue()[:-6], CAUGHT, MALICIOUS)


def items() -> Iterator[Item]:
    """All of them."""
    yield from nested()
    yield from loading_paths()
