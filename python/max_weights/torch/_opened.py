"""File objects to load a checkpoint from: resolved to their file, or copied to memory."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, TypeAlias

from max_weights._core import escape
from max_weights.errors import ArgumentError

__all__ = ["Source", "at_path", "path_of", "position_of"]

Source: TypeAlias = "str | os.PathLike[str] | IO[bytes]"
"""The source of a checkpoint, as for `torch.load`."""

_COPIED_AT_A_TIME = 1 << 24


def path_of(file: object) -> str | None:
    """Return the path of the file that this object reads from its first byte on; `None` unless that is certain.

    An object that unpacks, decrypts or cuts out a part of a file has a name too, but gives other bytes than that file.
    """
    file = getattr(file, "file", file) if type(file).__module__ == "tempfile" else file
    file = getattr(file, "f", file) if type(file).__module__ == "fsspec.implementations.local" else file
    raw = file.raw if isinstance(file, (io.BufferedReader, io.BufferedRandom)) else file
    if type(raw) is not io.FileIO or not isinstance(raw.name, (str, bytes)):
        return None
    try:
        if file.tell() != 0:  # type: ignore[attr-defined]
            return None
        if raw.writable():
            file.flush()  # type: ignore[attr-defined]
        path = os.fsdecode(raw.name)
        return path if os.path.samestat(os.fstat(raw.fileno()), os.stat(path)) else None
    except (OSError, ValueError):
        return None


def position_of(file: Any) -> int | None:
    """Return the position of a file object; `None` for a path, and for a stream without positions."""
    if isinstance(file, (str, os.PathLike)):
        return None
    try:
        return int(file.tell()) if file.seekable() else None
    except (AttributeError, OSError, ValueError):
        return None


@contextmanager
def at_path(file: Any) -> Iterator[str | os.PathLike[str]]:
    """Give a path at which the rest of a file object can be opened; a path is given unchanged.

    Raises:
        ArgumentError: it is neither a path nor a file object that is open for reading bytes.
    """
    if isinstance(file, (str, os.PathLike)):
        yield file
    elif (path := path_of(file)) is not None:
        yield path
    else:
        _require_readable(file)
        # Memory with a path can be mapped, so the bytes are copied only once.
        number = os.memfd_create("checkpoint")
        try:
            while part := file.read(_COPIED_AT_A_TIME):
                _write(number, part)
            yield f"/proc/self/fd/{number}"
        finally:
            os.close(number)


def _require_readable(file: object) -> None:
    if not callable(getattr(file, "read", None)) or isinstance(file, io.TextIOBase):
        raise ArgumentError(
            f"a checkpoint must be a path or a file object that returns bytes, not {escape(type(file).__name__)}: open "
            "the file in mode 'rb'",
            rule="argument.type",
        )


def _write(number: int, part: bytes) -> None:
    rest = memoryview(part)
    while rest:
        rest = rest[os.write(number, rest) :]
