"""NumPy's files, and plain pickles of Python."""

from __future__ import annotations

import gzip
import io
import pickle
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np

from corpora.good.written import GOOD, NOT_BAD, single
from corpora.item import Item

DTYPES = (
    "?",
    "i1",
    "<i2",
    ">i4",
    "<i8",
    "u1",
    "<u2",
    "<u4",
    ">u8",
    "<f2",
    "<f4",
    ">f8",
    "<c8",
    "<c16",
    "<U3",
    "S5",
    "<M8[s]",
    "<m8[D]",
)


def npy(array: np.ndarray[Any, Any], version: tuple[int, int] | None = None) -> bytes:
    """Files written by NumPy."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version, allow_pickle=False)
    return buffer.getvalue()


def items() -> Iterator[Item]:
    """All of them."""
    for dtype in DTYPES:
        name = dtype.strip("<>").replace("?", "bool").replace("[", "-").replace("]", "")
        yield single("numpy", f"{name}.npy", npy(np.zeros((2, 3), dtype)))
    shapes = {
        "scalar": np.float32(3) * np.ones(()),
        "empty": np.zeros((0, 3)),
        "rank-32": np.zeros((1,) * 32),
        "fortran": np.asfortranarray(np.zeros((2, 3))),
        "structured": np.zeros(2, [("a", "<f4"), ("b", "<i4", (2,)), ("é", "u1")]),
        "nested": np.zeros(2, [("a", [("b", "<f4"), ("c", "S3")])]),
        "pickle-in-bytes": np.frombuffer(b"\x80\x04cposix\nsystem\n.", np.uint8),
    }
    for name, array in shapes.items():
        version = (3, 0) if name == "structured" else None
        yield single("numpy", f"{name}.npy", npy(array, version))
    yield single("numpy", "version-2.npy", npy(np.zeros(3), (2, 0)))
    for name, save in {"plain": np.savez, "compressed": np.savez_compressed}.items():
        buffer = io.BytesIO()
        save(buffer, a=np.zeros(3), b=np.ones((2, 2), "<f2"), c=np.array("text"))
        yield single("numpy", f"{name}.npz", buffer.getvalue())
    buffer = io.BytesIO()
    np.savez(buffer)
    yield single("numpy", "empty.npz", buffer.getvalue())
    plain = {
        "a": [1, -1, 300, 1 << 40, -(1 << 70), 1.5, float("nan"), True, None],
        "text": "é\n'\"\\",
        "bytes": b"\0\xff",
        "nested": {"a": ((1, 2), [3], {"b": {}})},
        "set": {1, 2},
        "frozen": frozenset({1}),
        "bytearray": bytearray(b"abc"),
        "complex": 1j,
    }
    for protocol in range(6):
        yield single("pickles", f"plain-{protocol}.pkl", pickle.dumps(plain, protocol), NOT_BAD)
        yield single("pickles", f"float-{protocol}.pkl", pickle.dumps(1.5, protocol))
        yield single("pickles", f"arrays-{protocol}.pkl", pickle.dumps({"w": np.arange(3.0)}, protocol), NOT_BAD)
        words = {f"word {number}": number for number in range(3000)}
        yield single("pickles", f"vocabulary-{protocol}.pkl", pickle.dumps(words, protocol))
    yield single(
        "pickles", "large-frames.pkl", pickle.dumps([b"x" * 70_000, "y" * 300_000, list(range(50_000))], 4), GOOD
    )
    # A hundred objects, but 10,000,000,000 leaves for a recursive walk.
    nested: list[Any] = ["x"]
    for _ in range(10):
        nested = [nested] * 10
    yield single("pickles", "lists-of-the-same-lists.pkl", pickle.dumps(nested))
    itself: list[Any] = []
    itself.extend([itself] * 60)
    yield single("pickles", "list-in-itself.pkl", pickle.dumps(itself))
    for protocol in range(6):
        yield single("pickles", f"uuid-{protocol}.pkl", pickle.dumps(uuid.UUID(int=1), protocol))
    yield single("pickles", "bytes-that-look-like-a-pickle.pkl", pickle.dumps(pickle.dumps({"a": 1}, 4), 4), GOOD)
    yield single("pickles", "compressed.pkl.gz", gzip.compress(pickle.dumps({"a": [1, 2]}, 4), mtime=0), GOOD)
