"""`Checkpoint`: the argument of every verb. An open tree stays open; paths are opened, and closed again."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from max_weights._core import RangeSource, WeightInfos, WeightsNode, escape, open_weights
from max_weights._core import infos as infos_of
from max_weights.errors import ArgumentError

TYPE_CHECKING = False  # typing is not imported: it takes longer than all of this
if TYPE_CHECKING:
    from typing import Protocol, TypeAlias

    class Module(Protocol):
        """A module of torch or of `max_weights.nn`."""

        def state_dict(self) -> Mapping[str, object]:
            """Return its tensors by name."""
            ...


# fmt: off
__all__ = [
    "Checkpoint", "CheckpointPath", "Tensors", "infos", "opened", "paths_of", "tensors_of",
    "tree_of",
]
# fmt: on

CheckpointPath: TypeAlias = "str | os.PathLike[str] | RangeSource"
"""A file, a folder, an index, the name of a model, a URL, or a `max_weights.remote.source`."""
Checkpoint: TypeAlias = "WeightsNode | CheckpointPath | Iterable[CheckpointPath]"
"""A tree of weights, a branch of it or one weight; or what `load_weights` opens: a path, a URL, a source, a list."""


Tensors: TypeAlias = "Mapping[str, object] | Module"
"""Tensors in memory: {name: tensor} of any library, or a module."""


@contextmanager
def opened(checkpoint: Checkpoint | Tensors, verb: str, *, tensors: bool = False) -> Iterator[WeightsNode]:
    """Give the tree of a checkpoint. An open one stays open, also after an error; paths are closed at the end.

    Args:
        checkpoint: The tree, or the paths.
        verb: The name of the operation, for messages.
        tensors: Take {name: tensor} and modules, too: the tree is one over their memory, which is not copied.

    Raises:
        ArgumentError: it is something else, or there are no paths (a ValueError).
        MissingFileError: a path does not exist.
        FormatError: a file is damaged.
    """
    weights = tree_of(checkpoint, verb, tensors=tensors)
    try:
        yield weights
    finally:
        if weights is not checkpoint:
            weights.close()


def tree_of(checkpoint: Checkpoint | Tensors, verb: str, *, tensors: bool = False) -> WeightsNode:
    """Return the tree of a checkpoint, and leave it open, for results that read from it later. See `opened`.

    Files are closed when the last reference to the tree goes.
    """
    if isinstance(checkpoint, WeightsNode):
        return checkpoint
    if tensors and (named := tensors_of(checkpoint)) is not None:
        from max_weights._memory_source import source_of

        return open_weights([source_of(named)])
    return open_weights(paths_of(checkpoint, verb, tensors=tensors))


def tensors_of(checkpoint: object) -> dict[str, object] | None:
    """Return {name: tensor} of a mapping or a module; `None` for anything else, such as a tree or a path."""
    if isinstance(checkpoint, WeightsNode):
        return None
    if hasattr(type(checkpoint), "state_dict"):
        checkpoint = checkpoint.state_dict()  # type: ignore[attr-defined]
    return dict(checkpoint) if isinstance(checkpoint, Mapping) else None


def paths_of(checkpoint: object, verb: str, *, tensors: bool = False) -> list[CheckpointPath]:
    """Return the paths of a checkpoint that is not an open tree. ArgumentError for anything else."""
    if isinstance(checkpoint, (str, os.PathLike, RangeSource)):
        return [checkpoint]
    wrong: object = checkpoint
    if isinstance(checkpoint, Iterable) and not isinstance(checkpoint, (bytes, bytearray, Mapping)):
        paths = list(checkpoint)
        odd = [path for path in paths if not isinstance(path, (str, os.PathLike, RangeSource))]
        if paths and not odd:
            return paths
        wrong = odd[0] if odd else paths
    what = "an empty list" if isinstance(wrong, list) and not wrong else f"a {escape(type(wrong).__name__)}"
    also = ", or {name: tensor}, or a module" if tensors else ""
    takes = f"{verb} takes a checkpoint, which is a tree of load_weights, a path, a URL or a source, or a list"
    if verb == "load_weights":
        takes = "load_weights opens a path, a URL or a source, or a list"
    raise ArgumentError(f"{takes} of these{also}, not {what}", rule="argument.type")


def infos(checkpoint: Checkpoint) -> WeightInfos:
    """List the weights of a checkpoint: name, dtype, shape, bytes, file and offset of each. Only headers are read.

    Args:
        checkpoint: A tree, a branch or one weight; or anything that `load_weights` opens.

    Returns:
        A sequence of `WeightInfo` in file order. Each has `name`, `dtype`, `shape`, `bytes`, `file`, `offset` (of the
        first byte in the file) and `aligned` (whether it can be a view). Packed weights have `encoding`, and their
        `logical_shape` counts elements. The sequence has `aliases` (groups of tied weights) and `objects` (values
        that are not tensors) of PyTorch files, and `warnings` (accepted faults of the files).

    Raises:
        ArgumentError: `checkpoint` is not a checkpoint (a ValueError).

    Example:
        >>> max_weights.infos("model.safetensors")[0].shape
        (16, 8)
    """
    return infos_of(tree_of(checkpoint, "infos"))
