"""A checkpoint that a verb is given: a tree that is open, or the paths that it opens and closes again."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from max_weights._core import RangeSource, WeightsNode, open_weights, shown
from max_weights.errors import ArgumentError

__all__ = ["Checkpoint", "opened", "require_tree"]

Checkpoint: TypeAlias = "WeightsNode | str | os.PathLike[str] | RangeSource | Iterable[str | os.PathLike[str]]"
"""A tree of weights, a branch of it or a weight, or anything that `load_weights` opens."""


@contextmanager
def opened(checkpoint: Checkpoint, verb: str) -> Iterator[WeightsNode]:
    """Give the tree of a checkpoint. One that was open stays open, whatever happens; paths are closed at the end.

    Args:
        checkpoint: The tree, or the paths.
        verb: What is done, for messages.

    Raises:
        ArgumentError: it is something else, or there are no paths (a ValueError).
        MissingFileError: a path does not exist.
        FormatError: a file is damaged.
    """
    if isinstance(checkpoint, WeightsNode):
        yield checkpoint
        return
    weights = open_weights(_paths(checkpoint, verb))
    try:
        yield weights
    finally:
        weights.close()


def require_tree(checkpoint: object, verb: str) -> None:
    """Refuse what is no open tree, where the result of a verb reads from the tree later.

    Raises:
        ArgumentError: it is a path, or something else (a ValueError).
    """
    if isinstance(checkpoint, WeightsNode):
        return
    path = "path"
    if isinstance(checkpoint, (str, os.PathLike)):
        path = repr(os.fspath(checkpoint))
    raise ArgumentError(
        f"{verb} takes a tree of weights, which its result reads from, not a {shown(type(checkpoint).__name__)}: open "
        f"the checkpoint first, with max_weights.load_weights({shown(path)})"
    )


def _paths(checkpoint: object, verb: str) -> list[str | os.PathLike[str] | RangeSource]:
    if isinstance(checkpoint, (str, os.PathLike, RangeSource)):
        return [checkpoint]
    wrong: object = checkpoint
    if (
        isinstance(checkpoint, Iterable)
        and not isinstance(checkpoint, (bytes, bytearray))
        and not _has_names(checkpoint)
    ):
        paths = list(checkpoint)
        odd = [path for path in paths if not isinstance(path, (str, os.PathLike, RangeSource))]
        if paths and not odd:
            return paths
        wrong = odd[0] if odd else paths
    what = "an empty list" if isinstance(wrong, list) and not wrong else f"a {shown(type(wrong).__name__)}"
    raise ArgumentError(
        f"{verb} takes a checkpoint, which is a tree of max_weights.load_weights, a path or a list of paths, not {what}"
    )


def _has_names(value: object) -> bool:
    """Whether it holds tensors by their names, as state dicts do."""
    return callable(getattr(value, "keys", None))
