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
    max_header_bytes: int | None = None,
) -> WeightsNode:
    """Open a checkpoint as one tree of weights. Reads headers only.

    Args:
        paths: A file, a directory (its index, else its set of shards, else its single file), an index
            (`*.index.json`), a list of files that belong to one checkpoint, or the name of a model in the local
            Hugging Face cache (`ORG/MODEL` or `ORG/MODEL@REVISION`; the network is never used). The format is
            decided by the first bytes of a file, not by its name.
        backend: `mmap` maps the files, `read` reads each tensor into memory of its own when it is taken; `auto` maps,
            and reads where the system refuses to map.
        strict: Refuse an index that disagrees with its shards (a missing shard or tensor, a tensor in another shard, an
            unindexed one, one in two shards, another total size), and what other readers let pass, such as empty
            names. Otherwise what can be opened is, and the disagreements are listed in `warnings`.

        max_header_bytes: The longest header that is read; default: 100,000,000, the format's own limit.

    Raises:
        MissingFileError: a path does not exist; a FileNotFoundError and a ValueError.
        ValueError: no paths.
        FormatError: a file breaks the rules of its format; a ValueError that says where and what to do.
        UnsupportedError: a format that this version cannot read.
    """
    files = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not files:
        raise ValueError("no checkpoint files were given: paths is empty")
    if len(files) == 1 and isinstance(files[0], str) and not os.path.lexists(files[0]):
        from max_weights.graph.weights.hub import find_in_cache

        files = [find_in_cache(files[0]) or files[0]]
    return open_weights(files, backend=backend, strict=strict, max_header_bytes=max_header_bytes)
