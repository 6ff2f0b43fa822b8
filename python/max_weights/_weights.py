"""Weights of checkpoints by hierarchical names: `load_weights`, `Weights`, and the classes of the formats."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

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
    printable,
)
from max_weights._node import WeightsNode
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Literal

    from max_weights._buffer import DLPackArray
    from max_weights._checkpoints import CheckpointPath
    from max_weights._devices import DeviceRef
    from max_weights._dim import Dim
    from max_weights._dtype import DType
    from max_weights._quantization import QuantizationEncoding
    from max_weights._remote import Remote
    from max_weights._weight_data import WeightData
    from max_weights.graph._weight import Weight

# fmt: off
__all__ = [
    "RESERVED", "GGUFWeights", "Metadata", "Objects", "Placeholder", "PytorchWeights", "SafetensorWeights",
    "WeightInfo", "WeightInfos", "Weights", "WeightsAdapter", "WeightsFormat", "WeightsNode", "load_weights",
    "weights_format",
]
# fmt: on


@runtime_checkable
class Weights(Protocol):
    """One node of a tree of weights.

    `weights.model.layers[0].weight` is the node named `model.layers.0.weight`: each attribute or index adds a
    component, and nothing is looked up before a method is called. A node may be a weight, a prefix of others, both, or
    neither.
    """

    @property
    def name(self) -> str:
        """The full name of this node; empty at the root."""
        ...

    @property
    def allocated_weights(self) -> dict[str, DLPackArray]:
        """The values of all weights that `allocate` created, by full name; shared by all nodes of one tree."""
        ...

    if TYPE_CHECKING:  # not a member at run time, because isinstance() would look for a method of that name

        def __getattr__(self, attr: str, /) -> Weights:
            """Return the child with that name."""
            ...

    def __getitem__(self, key: int | str, /) -> Weights:
        """Return the child with that index or name; a name may contain dots."""
        ...

    def exists(self) -> bool:
        """Return whether there is a weight with exactly this name.

        Example:
            >>> weights.model.norm.weight.exists(), weights.model.norm.exists()
            (True, False)
        """
        ...

    def items(self) -> Iterator[tuple[str, Weights]]:
        """Iterate over this weight, if it is one, and all below it, as (full name, node), in file order.

        Example:
            >>> [name for name, _ in weights.model.norm.items()]
            ['model.norm.weight']
        """
        ...

    def data(self) -> WeightData:
        """Return the weight's tensor, without a copy where the file allows it.

        Raises:
            WeightNotFoundError: there is no such weight (a KeyError); the message suggests up to three similar names.

        Example:
            >>> weights.model.norm.weight.data().shape
            [Dim(8)]
        """
        ...

    def allocate(
        self,
        dtype: DType | None = None,
        shape: Iterable[int | str | Dim] | None = None,
        quantization_encoding: QuantizationEncoding | None = None,
        device: DeviceRef | None = None,
    ) -> Weight:
        """Return a `Weight` of this name for a graph, and record its value in `allocated_weights`.

        Args:
            dtype: Converts the value to this dtype; default: the dtype in the file.
            shape: Must equal the weight's shape, except where a dimension is symbolic.
            quantization_encoding: The encoding in the file. If a file has several, a weight keeps its own, and a
                warning says so.
            device: The target device; default: the CPU.

        Raises:
            WeightNotFoundError: there is no such weight.
            ValueError: the shape differs, or an encoding is given for a weight that is not quantized.

        Example:
            >>> weights.model.norm.weight.allocate("float16").dtype
            float16
        """
        ...


# fmt: off
RESERVED = (
    "allocate", "allocate_as_bytes", "allocated_weights", "children", "close", "data", "exists", "items", "load",
    "metadata", "name", "numpy", "save", "stream", "torch",
)
# fmt: on
"""Names that a node keeps for itself: a weight or a branch of such a name is reached by `weights["name"]`."""

WeightsAdapter = Callable[..., "Mapping[str, Any]"]
"""Turns the weights of a checkpoint into a state dict.

It is called with a mapping of names to weights, and with keyword arguments of its own.
"""


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
        raise ArgumentError("there is no path from which to tell the format of the weights")
    by_format: dict[WeightsFormat, list[str]] = {}
    unknown = []
    for name in names:
        kind = _SUFFIXES.get(os.path.splitext(name)[1].lower())
        if kind is None:
            unknown.append(name)
        else:
            by_format.setdefault(kind, []).append(name)
    if unknown:
        raise ArgumentError(f"no known suffix ({', '.join(_SUFFIXES)}): {_listed(unknown)}")
    if len(by_format) > 1:
        parts = "; ".join(f"{kind.value}: {_listed(members)}" for kind, members in by_format.items())
        raise ArgumentError(
            f"the files of one checkpoint must have the same format, but these have {len(by_format)}: {parts}"
        )
    (kind,) = by_format
    return kind


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(printable, names[:_NAMED])) + more


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
            a list of files that belong to one checkpoint, or the name of a model in the local Hugging Face cache
            (`ORG/MODEL` or `ORG/MODEL@REVISION`). The format is recognised by the first bytes of a file, not by its
            name. Or a URL of a file or a folder: `s3://`, `gs://`, `az://`, `https://`, `hf://ORG/MODEL@REVISION`; the
            network is used for these alone. Or a `max_weights.remote.source`.
        backend: `mmap` maps the files; `read` reads each tensor into memory of its own when it is used; `auto` maps,
            and reads if the system refuses to map.
        strict: Refuse an index that disagrees with its shards (a missing shard or tensor, a tensor in another shard, an
            unindexed one, one in two shards, another total size), and faults that other readers accept, such as empty
            names. Otherwise everything that can be opened is opened, the log reports the faults, and `warnings` lists
            them.
        max_header_bytes: The longest header that is read; default: 100,000,000, the format's own limit.
        remote: How URLs are opened: a `max_weights.remote.Remote`.

    Returns:
        The root of the tree. It is a context manager, which closes the files.

    Raises:
        MissingFileError: a path does not exist (a FileNotFoundError and a ValueError); the message lists similar paths.
        ArgumentError: it is no path, there is none, or it is open already (a ValueError).
        FormatError: a file breaks the rules of its format (a ValueError); the message says where, and what to do.
        UnsupportedError: a format that this version cannot read.

    Example:
        >>> max_weights.load_weights("model.safetensors").model.norm.weight.shape
        (8,)
    """
    if isinstance(paths, WeightsNode):
        raise ArgumentError(
            "a path of a checkpoint is needed, and these weights are open already: weights.load(framework=...) gives "
            "their tensors, weights.save saves them"
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
