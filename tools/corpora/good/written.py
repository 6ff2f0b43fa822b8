"""Files written by libraries, as items."""

from __future__ import annotations

import io
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from corpora.item import CLEAN, NEEDS_TRUST, Item

GOOD = frozenset({CLEAN})
TRUST = frozenset({NEEDS_TRUST})
NOT_BAD = frozenset({CLEAN, NEEDS_TRUST})


def saved(thing: Any, *, new: bool = True, protocol: int = 2) -> bytes:
    """The output of torch.save."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(thing, buffer, pickle_protocol=protocol, _use_new_zipfile_serialization=new)
    return buffer.getvalue()


def single(group: str, name: str, data: bytes, answers: frozenset[str] = GOOD) -> Item:
    """An item of one file."""
    return Item(name, {"": data}, group, answers)


def by_path(group: str, name: str, write: Callable[[Path], object], answers: frozenset[str] = GOOD) -> Item:
    """An item of one file that a library writes under this name."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / name
        write(path)
        return single(group, name, path.read_bytes(), answers)


def by_folder(group: str, name: str, write: Callable[[Path], object], answers: frozenset[str] = GOOD) -> Item:
    """An item of all files that a library writes to a folder."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "written"
        path.mkdir()
        write(path)
        files = {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}
    if not files:
        raise ValueError(f"{group}/{name}: nothing was written")
    return Item(name, files, group, answers)
