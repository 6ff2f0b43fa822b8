"""Containers of a payload: a file, an archive, a checkpoint of some format, a folder; possibly nested."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Mapping

from corpora.archives import DEFLATED, STORED, Member, tarred, zipped
from corpora.assembler import pickled
from corpora.formats import FLOATS, entry, safetensors, state_dict, torch_legacy, torch_members, torch_zip
from corpora.hdf5 import hdf5

SUFFIXES = (".pkl", ".pickle", ".bin", ".pt", ".pth", ".ckpt", ".joblib", ".dat", ".model", ".p", "")
WHOLE = pickled(state_dict())
Made = tuple[str, bytes]
"""A suffix and bytes."""


def _inner(chance: random.Random, suffix: str) -> str:
    return chance.choice(("model", "weights", "a/b/c", "data")) + chance.choice(SUFFIXES) + suffix


def _bare(chance: random.Random, data: bytes, suffix: str) -> Made:
    return chance.choice(SUFFIXES) + suffix, data


def _zip(chance: random.Random, data: bytes, suffix: str) -> Made:
    members = [Member("readme.txt", b"text"), Member(_inner(chance, suffix), data, chance.choice((STORED, DEFLATED)))]
    chance.shuffle(members)
    before = b"#!/bin/sh\n" if chance.random() < 0.1 else b""
    return chance.choice((".zip", ".bin", ".pkl", "")), zipped(members, before=before, offsets_from_zip=False)


def _tar(chance: random.Random, data: bytes, suffix: str) -> Made:
    archive = tarred({"readme.txt": b"text", _inner(chance, suffix): data})
    if chance.random() < 0.3:
        return ".tar.gz", gzip.compress(archive, mtime=0)
    return chance.choice((".tar", ".bin", "")), archive


def _torch_data(chance: random.Random, data: bytes, _: str) -> Made:
    return chance.choice((".pt", ".pth", ".bin", ".ckpt")), torch_zip(data)


def _torch_member(chance: random.Random, data: bytes, suffix: str) -> Made:
    name = chance.choice(("archive/extra/", "archive/", "archive/.data/", "")) + _inner(chance, suffix)
    return chance.choice((".pt", ".pth")), zipped(torch_members(WHOLE, more=[Member(name, data)]))


def _torch_legacy(chance: random.Random, data: bytes, _: str) -> Made:
    return chance.choice((".pt", ".bin")), torch_legacy({chance.randrange(1, 5): data})


def _torch_legacy_end(chance: random.Random, data: bytes, _: str) -> Made:
    return chance.choice((".pt", ".bin")), torch_legacy() + data


def _exported(chance: random.Random, data: bytes, suffix: str) -> Made:
    place = chance.choice(("model/data/weights/", "model/data/constants/", "model/extra/", "model/models/"))
    members = {
        "model/archive_format": b"pt2",
        "model/archive_version": b"0",
        "model/models/model.json": b"{}",
        place + _inner(chance, suffix): data,
    }
    return ".pt2", zipped(members)


def _nemo(chance: random.Random, data: bytes, suffix: str) -> Made:
    members = {"./model_config.yaml": b"target: nemo.Model\n", "./model_weights.ckpt": data}
    if suffix:
        members = {"./model_config.yaml": b"target: nemo.Model\n", "./" + _inner(chance, suffix): data}
    archive = tarred(members)
    return ".nemo", gzip.compress(archive, mtime=0) if chance.random() < 0.3 else archive


def _keras(chance: random.Random, data: bytes, suffix: str) -> Made:
    config = json.dumps({"module": "keras", "class_name": "Sequential", "config": {"layers": []}})
    members = {"metadata.json": b"{}", "config.json": config.encode(), "model.weights.h5": hdf5()}
    return ".keras", zipped({**members, "assets/" + _inner(chance, suffix): data})


def _served(chance: random.Random, data: bytes, suffix: str) -> Made:
    return ".mar", zipped({"MAR-INF/MANIFEST.json": b"{}", _inner(chance, suffix): data})


def _skops(chance: random.Random, data: bytes, suffix: str) -> Made:
    schema = json.dumps({"__class__": "dict", "__module__": "builtins", "__loader__": "DictNode", "content": {}})
    return ".skops", zipped({"schema.json": schema.encode(), _inner(chance, suffix): data})


def _behind_tensors(_: random.Random, data: bytes, __: str) -> Made:
    return ".safetensors", safetensors({"w": entry("F32", [4], 0, 16)}, FLOATS) + data


CONTAINERS: dict[str, Callable[[random.Random, bytes, str], Made]] = {
    "bare": _bare,
    "zip": _zip,
    "tar": _tar,
    "torch": _torch_data,
    "torch-member": _torch_member,
    "legacy": _torch_legacy,
    "legacy-end": _torch_legacy_end,
    "exported": _exported,
    "nemo": _nemo,
    "keras": _keras,
    "served": _served,
    "skops": _skops,
    "behind-tensors": _behind_tensors,
}


def _in_folder(chance: random.Random, name: str, data: bytes) -> dict[str, bytes]:
    folder = chance.choice(("", "sub/", "a/b/c/", ".cache/"))
    return {"config.json": b'{"model_type": "bert"}', f"{folder}{name}": data}


def contained(
    chance: random.Random, data: bytes, suffix: str, is_encoded: bool
) -> tuple[str, str, Mapping[str, bytes]]:
    """A container, the suffix of its name, and its files."""
    kind = chance.choice(["bare", "bare", *CONTAINERS])
    if is_encoded and kind == "behind-tensors":
        # No program decompresses it.
        kind = "bare"
    end, data = CONTAINERS[kind](chance, data, suffix)
    if chance.random() < 0.15:
        outer = chance.choice(("zip", "tar"))
        kind, (end, data) = f"{outer}-{kind}", CONTAINERS[outer](chance, data, end)
    if chance.random() < 0.15:
        return f"folder-{kind}", "", _in_folder(chance, f"model{end}", data)
    return kind, end, {"": data}


def usual(chance: random.Random, data: bytes, suffix: str) -> tuple[str, str, Mapping[str, bytes]]:
    """A file, an archive or a folder as programs write them."""
    match chance.choice(("bare", "bare", "zip", "tar", "folder")):
        case "zip":
            return "zip", ".zip", {"": zipped([Member(f"model{suffix}", data, chance.choice((STORED, DEFLATED)))])}
        case "tar":
            return "tar", ".tar", {"": tarred({f"model{suffix}": data})}
        case "folder":
            return "folder", "", _in_folder(chance, f"model{suffix}", data)
    return "bare", suffix, {"": data}
