"""Files without findings: weights, plain values, arrays and texts, some of which begin like a pickle."""

from __future__ import annotations

import io
import json
import pickle
import random
import string

import joblib
import numpy as np

from corpora.assembler import pickled
from corpora.formats import FLOATS, entry, safetensors, state_dict, torch_legacy, torch_zip

# Opcodes of pickle instructions, as first letters of words.
BEGINNINGS = "cNVILFSPGTUXiopgq(]})01"
Harmless = tuple[str, str, bytes]
"""What it is, a suffix, and bytes."""


def _word(chance: random.Random) -> str:
    return "".join(chance.choices(string.ascii_lowercase, k=chance.randrange(2, 12)))


def _array(chance: random.Random) -> np.ndarray:
    dtype = chance.choice(("<f4", "<f8", "<f2", "<i8", "<i4", "|u1", "|b1", "<c8", "<U7", "|S5", "<M8[s]", ">f4"))
    shape = tuple(chance.randrange(1, 6) for _ in range(chance.randrange(4)))
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if dtype in ("<U7", "|S5"):
        return np.full(shape, _word(chance)).astype(dtype)
    data = chance.randbytes(count)
    if dtype == "|b1":
        data = bytes(byte & 1 for byte in data)
    return np.frombuffer(data, dtype).reshape(shape)


def _values(chance: random.Random) -> object:
    simple = [None, True, 7, -1.5, _word(chance), b"bytes", 1 << 70, (1, "two"), {3}, [_word(chance)] * 20]
    return {_word(chance): chance.choice(simple) for _ in range(chance.randrange(3, 30))}


def _text(chance: random.Random) -> Harmless:
    lines = [
        " ".join(_word(chance) for _ in range(chance.choice((1, 1, 2, 8)))) for _ in range(chance.randrange(3, 400))
    ]
    start = chance.choice(BEGINNINGS) if chance.random() < 0.7 else ""
    return "text", chance.choice((".txt", ".md", ".csv", ".vocab")), (start + "\n".join(lines) + "\n").encode()


def _configuration(chance: random.Random) -> Harmless:
    return "json", ".json", json.dumps({_word(chance): chance.random() for _ in range(9)}).encode()


def _pickle(chance: random.Random) -> Harmless:
    return "pickle", chance.choice((".pkl", ".pickle")), pickle.dumps(_values(chance), chance.randrange(6))


def _pickled_array(chance: random.Random) -> Harmless:
    return "pickled-array", ".pkl", pickle.dumps({"x": _array(chance)}, chance.randrange(6))


def _npy(chance: random.Random) -> Harmless:
    buffer = io.BytesIO()
    np.save(buffer, _array(chance), allow_pickle=False)
    return "npy", ".npy", buffer.getvalue()


def _joblib(chance: random.Random) -> Harmless:
    buffer = io.BytesIO()
    arrays = [_array(chance) for _ in range(chance.randrange(1, 5))]
    value = chance.choice((arrays[0], arrays, {"x": arrays, "words": [_word(chance)]}, np.asfortranarray(arrays[0])))
    joblib.dump(value, buffer, compress=chance.choice((0, 0, ("zlib", 3), ("gzip", 3), ("bz2", 3), ("xz", 3))))
    return "joblib", ".joblib", buffer.getvalue()


def _torch(chance: random.Random) -> Harmless:
    if chance.random() < 0.3:
        return "torch-legacy", ".pt", torch_legacy()
    more = {_word(chance): chance.random(), _word(chance): chance.randrange(1000)}
    return "torch", chance.choice((".pt", ".pth")), torch_zip(pickled(state_dict(more)))


def _safetensors(chance: random.Random) -> Harmless:
    count = chance.randrange(1, 200)
    kind, width = chance.choice((("F32", 4), ("U8", 1), ("I8", 1), ("BF16", 2)))
    data = FLOATS if chance.random() < 0.1 and (kind, count) == ("F32", 4) else chance.randbytes(count * width)
    return "safetensors", ".safetensors", safetensors({_word(chance): entry(kind, [count], 0, len(data))}, data)


KINDS = (_text, _text, _configuration, _pickle, _pickle, _pickled_array, _npy, _joblib, _joblib, _torch, _safetensors)


def harmless(chance: random.Random) -> Harmless:
    """Return something harmless: its kind, its suffix, and its bytes."""
    return chance.choice(KINDS)(chance)
