"""Which format a checkpoint has, by the names of its files. `load_weights` looks at the bytes instead."""

from __future__ import annotations

import os
from collections.abc import Iterable
from enum import Enum

from max_weights._core import printable
from max_weights.errors import ArgumentError

__all__ = ["WeightsFormat", "weights_format"]


class WeightsFormat(str, Enum):  # noqa: UP042 (StrEnum would change what str() says)
    """The formats of checkpoint files."""

    gguf = "gguf"
    safetensors = "safetensors"
    pytorch = "pytorch"


_SUFFIXES = {
    ".gguf": WeightsFormat.gguf,
    ".safetensors": WeightsFormat.safetensors,
    ".bin": WeightsFormat.pytorch,
    ".pt": WeightsFormat.pytorch,
    ".pth": WeightsFormat.pytorch,
}

_NAMED = 5


def weights_format(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> WeightsFormat:
    """The format that the suffixes of the paths say, in any case; no file is opened.

    Args:
        paths: One path, or several that belong to one checkpoint. ArgumentError (a ValueError) if there are none, if a
            suffix is unknown, or if they disagree.
    """
    names = [os.fspath(path) for path in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]
    if not names:
        raise ArgumentError("there is no path to tell the format of the weights from")
    by_format: dict[WeightsFormat, list[str]] = {}
    unknown = []
    for name in names:
        found = _SUFFIXES.get(os.path.splitext(name)[1].lower())
        if found is None:
            unknown.append(name)
        else:
            by_format.setdefault(found, []).append(name)
    if unknown:
        raise ArgumentError(f"no known suffix ({', '.join(_SUFFIXES)}): {_listed(unknown)}")
    if len(by_format) > 1:
        parts = "; ".join(f"{kind.value}: {_listed(found)}" for kind, found in by_format.items())
        raise ArgumentError(f"the files of one checkpoint have one format, but these have {len(by_format)}: {parts}")
    (kind,) = by_format
    return kind


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(printable, names[:_NAMED])) + more
