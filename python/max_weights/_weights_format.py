"""The format that the suffix of a path indicates, as in MAX."""

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
    """Return the format that the suffixes of the paths indicate, in upper or lower case. No file is opened.

    Args:
        paths: One path, or several that belong to one checkpoint.

    Raises:
        ArgumentError: there are none, a suffix is unknown, or they disagree (a ValueError).

    Example:
        >>> max_weights.graph.weights.weights_format("model.gguf").value
        'gguf'
    """
    names = [os.fspath(path) for path in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]
    if not names:
        raise ArgumentError("there is no path from which to tell the format of the weights", rule="argument.path")
    by_format: dict[WeightsFormat, list[str]] = {}
    unknown = []
    for name in names:
        kind = _SUFFIXES.get(os.path.splitext(name)[1].lower())
        if kind is None:
            unknown.append(name)
        else:
            by_format.setdefault(kind, []).append(name)
    if unknown:
        raise ArgumentError(f"no known suffix ({', '.join(_SUFFIXES)}): {_listed(unknown)}", rule="argument.path")
    if len(by_format) > 1:
        parts = "; ".join(f"{kind.value}: {_listed(members)}" for kind, members in by_format.items())
        raise ArgumentError(
            f"the files of one checkpoint must have the same format, but these have {len(by_format)}: {parts}",
            rule="argument.path",
        )
    (kind,) = by_format
    return kind


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(printable, names[:_NAMED])) + more
