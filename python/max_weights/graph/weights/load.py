"""`load_weights`: from paths to a tree of weights."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from max_weights._core import open_weights

if TYPE_CHECKING:
    from typing import Literal

    from max_weights._core import WeightsNode


def load_weights(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    backend: Literal["auto", "mmap", "read"] = "auto",
    strict: bool = True,
) -> WeightsNode:
    """Open checkpoint files as one tree of weights. Reads headers only.

    Args:
        paths: One file, or several that belong to one checkpoint. The format is decided by the first bytes, not by the
            name.
        backend: `mmap` maps the files, `read` reads each tensor into memory of its own when it is taken; `auto` maps,
            and reads
            where the system refuses to map.
        strict: Also refuse what other readers let pass, such as empty names; otherwise it is listed in `warnings`.

    Raises:
        MissingFileError: a path does not exist; a FileNotFoundError and a ValueError.
        ValueError: no paths.
        FormatError: a file breaks the rules of its format; a ValueError that says where and what to do.
        UnsupportedError: a format that this version cannot read.
    """
    files = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not files:
        raise ValueError("no checkpoint files were given: paths is empty")
    return open_weights(files, backend=backend, strict=strict)
