"""Weights of checkpoints by hierarchical names: `load_weights`, and the classes of the formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from max_weights._checkpoints import paths_of
from max_weights._core import (
    GGUFWeights,
    Metadata,
    Objects,
    Placeholder,
    PytorchWeights,
    SafetensorWeights,
    WeightInfo,
    WeightInfos,
    _reopen_weights,
    open_weights,
)
from max_weights._node import WeightsNode
from max_weights.errors import ArgumentError

TYPE_CHECKING = False  # neither typing nor enum is imported, which take longer than all of this
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Literal

    from max_weights._checkpoints import CheckpointPath
    from max_weights._remote import Remote

# fmt: off
__all__ = [
    "RESERVED", "GGUFWeights", "Metadata", "Objects", "Placeholder", "PytorchWeights", "SafetensorWeights",
    "WeightInfo", "WeightInfos", "WeightsAdapter", "WeightsNode", "load_weights",
]
# fmt: on


# fmt: off
RESERVED = (
    "allocate", "allocate_as_bytes", "allocated_weights", "children", "close", "data", "exists", "items", "load",
    "metadata", "name", "numpy", "save", "stream", "torch",
)
# fmt: on
"""Names that a node keeps for itself: a weight or a branch of such a name is reached by `weights["name"]`."""

WeightsAdapter = Callable[..., "Mapping[str, Any]"]
"""Turns the weights of a checkpoint into a state dict.

It is called with a mapping of names to weights, and with the caller's keyword arguments.
"""


def load_weights(
    paths: CheckpointPath | Iterable[CheckpointPath],
    *,
    backend: Literal["auto", "mmap", "read"] = "auto",
    strict: bool = True,
    max_header_bytes: int | None = None,
    remote: Remote | None = None,
) -> WeightsNode:
    """Open a checkpoint as one tree of weights. Only headers are read.

    Args:
        paths: A file, a directory (its index, else its set of shards, else its single file), an index (`*.index.json`),
            or a list of files that belong to one checkpoint. Or the name of a model in the local Hugging Face cache
            (`ORG/MODEL` or `ORG/MODEL@REVISION`). Or a URL of a file or a folder: `s3://`, `gs://`, `az://`,
            `https://`, `hf://ORG/MODEL@REVISION`; the network is used for these alone. Or a
            `max_weights.remote.source`. The first bytes of a file decide its format, not its name.
        backend: How files are read: `mmap` maps them; `read` reads each tensor into a copy when it is used; `auto`
            maps, and reads if the system refuses to map.
        strict: Refuse an index that disagrees with its shards: a missing shard or tensor, one in another shard or in
            two, an unindexed one, another total size. Refuse faults that other readers accept, such as empty names,
            too. Otherwise everything that can be opened is opened, the log reports the faults, and
            `infos(weights).warnings` lists them.
        max_header_bytes: The longest header that is read; default: 100,000,000, the format's own limit.
        remote: How URLs are opened: a `max_weights.remote.Remote`.

    Returns:
        The root of the tree. It is a context manager, which closes the files.

    Raises:
        MissingFileError: a path does not exist (a FileNotFoundError and a ValueError); the message lists similar paths.
        ArgumentError: no path, an empty list, or weights that are open already (a ValueError).
        FormatError: a file breaks the rules of its format (a ValueError); the message says where, and what to do.
        UnsupportedError: a format that this version cannot read.

    Example:
        >>> max_weights.load_weights("model.safetensors").model.norm.weight.shape
        (8,)
    """
    if isinstance(paths, WeightsNode):
        raise ArgumentError(
            "a path of a checkpoint is needed, and these weights are open already: weights.load(framework=...) gives "
            "their tensors, weights.save saves them",
            rule="argument.type",
        )
    files, store = paths_of(paths, "load_weights"), None if remote is None else remote._store
    return open_weights(files, backend=backend, strict=strict, max_header_bytes=max_header_bytes, store=store)


# The functions that pickles of trees name.
def _reopened(paths: list[str], arguments: dict[str, object], marks: list[tuple[int, int]], name: str) -> WeightsNode:
    return _reopen_weights(paths, arguments, marks, name)


def _reopened_renamed(file: WeightsNode, scheme: str, rules: Any, name: str) -> WeightsNode:
    from max_weights._renaming import renamed
    from max_weights.conversion._view import converted_by

    tree = renamed(file, scheme) if rules is None else converted_by(file, rules[0], rules[1], scheme)
    return tree[name] if name else tree
