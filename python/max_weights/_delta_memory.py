"""Deltas applied to tensors of this process as one transaction: in place on the host, and as copies from devices."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from max_weights._checkpoints import tensors_of
from max_weights._core import DeltaLog, apply_deltas_to, delta_header, escape, paths_of_deltas, renamed_names
from max_weights._delta_layout import in_hub_layout
from max_weights._progress import progress_of
from max_weights._transaction import is_distributed, local
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    from max_weights._load_request import Rename
    from max_weights._progress import Progress
    from max_weights._transaction import Transaction

__all__ = ["Applying", "Counts", "MemoryTensors", "has_parts", "memory_tensors", "renamed_tensors"]

Counts = tuple[int, int, int]
"""Blocks that were changed, blocks that had the changes already, and tensors that were replaced."""


class MemoryTensors(NamedTuple):
    """Tensors by their names in the checkpoint; of tied ones, all names."""

    host: list[tuple[str, Any]]
    devices: list[tuple[list[str], Any]]
    ranks: list[tuple[list[str], Any]]
    """Distributed tensors, of which this rank has a part."""
    may_be_tied: bool
    """Whether names that the checkpoint does not have may be other names of tensors that it has."""

    def names(self) -> list[str]:
        """Return all names."""
        several = (name for names, _ in (*self.devices, *self.ranks) for name in names)
        return [*(name for name, _ in self.host), *several]


def _named(tensors: object) -> dict[str, Any]:
    named = tensors_of(tensors)
    if named is None:
        what = escape(type(tensors).__name__)
        raise ArgumentError(
            f"tensors are a module, or a mapping of names to tensors, not a {what}", rule="argument.type"
        )
    return named


def has_parts(tensors: object) -> bool:
    """Whether some of them are distributed, so that this process has a part."""
    return any(map(_is_part, _named(tensors).values()))


def _is_part(tensor: Any) -> bool:
    return is_distributed(tensor) and not all(place.is_replicate() for place in tensor.placements)


def renamed_tensors(
    named: Mapping[str, Any], rename: Rename | str | None, names: Sequence[str] | None, config: object
) -> dict[str, Any]:
    """Return tensors by their names in a checkpoint that has these names.

    Raises:
        ArgumentError: `rename` gives two of them one name, or matches no tensor; a layout is not known, or cannot be
            undone in memory.
    """
    if isinstance(rename, str):
        return in_hub_layout(named, rename, config)
    if rename is None or names is None:
        return dict(named)
    if isinstance(rename, Mapping):
        table = renamed_names(list(names), list(rename.items()))
        new = {name: name if own is None else own for name, own in zip(names, table, strict=True)}
    elif callable(rename):
        new = {name: own for name in names if (own := rename(name)) is not None}
    else:
        raise ArgumentError(
            f"rename= is a mapping, a function or the name of a layout, not a {escape(type(rename).__name__)}",
            rule="argument.type",
        )
    files: dict[str, str] = {}
    for name, own in new.items():
        if (first := files.setdefault(own, name)) != name:
            raise ArgumentError(
                f"rename= gives '{escape(first)}' and '{escape(name)}' the same name, '{escape(own)}'",
                rule="argument.name-twice",
            )
    if names and named and not any(own in named for own in files):
        old, there = names[0], next(iter(named))
        raise ArgumentError(
            f"rename= makes '{escape(str(new.get(old)))}' of '{escape(old)}', and no tensor has such a name; one is "
            f"'{escape(there)}': it maps names of the checkpoint to those of the tensors",
            rule="argument.name",
        )
    # A tensor without a name in the checkpoint keeps its own, unless another tensor has that name there.
    kept = set(named) - files.keys() - set(names)
    return {files.get(name, name): tensor for name, tensor in named.items() if name in files or name in kept}


def memory_tensors(tensors: object, rename: Rename | str | None, paths: Sequence[str]) -> MemoryTensors:
    """Sort the tensors of a mapping or a module by their location, under their names in the checkpoint of deltas."""
    torch = sys.modules.get("torch")
    names = None
    if rename is not None and not isinstance(rename, str):
        headers = [delta_header(path) for path in paths_of_deltas(paths)]
        names = sorted({name for header in headers for of_kind in header[3:6] for name in of_kind})
    named = renamed_tensors(_named(tensors), rename, names, getattr(tensors, "config", None))
    # An array that is given twice is a mistake; a module's state dict has tied weights under each of their names.
    is_of_torch = torch is not None and any(isinstance(tensor, torch.Tensor) for tensor in named.values())
    sorted_tensors = MemoryTensors([], [], [], is_of_torch)
    memory: dict[object, list[str]] = {}
    for name, tensor in named.items():
        if torch is None or not isinstance(tensor, torch.Tensor):
            sorted_tensors.host.append((name, tensor))
            continue
        is_part, own = _is_part(tensor), local(tensor).detach()
        if not is_part and own.device.type == "cpu":
            sorted_tensors.host.append((name, own))
            continue
        if own.device.type == "meta":
            raise ArgumentError(
                f"'{escape(name)}' is on the meta device: it has no values that a delta could change",
                rule="argument.meta",
            )
        place = (own.device, own.data_ptr(), own.dtype, own.shape, own.stride(), is_part)
        if own.nbytes and place in memory:
            memory[place].append(name)
            continue
        others = memory.setdefault(place, [name]) if own.nbytes else [name]
        if is_part:
            sorted_tensors.ranks.append((others, tensor.detach()))
        else:
            sorted_tensors.devices.append((others, own))
    return sorted_tensors


class Applying:
    """Deltas that are applied to the memory of this process, as a part of a transaction.

    The tensors that deltas may change, on this or other ranks, are named `names`.
    """

    def __init__(
        self, paths: Sequence[str], tensors: MemoryTensors, names: Iterable[str], transaction: Transaction
    ) -> None:
        self._paths, self._tensors, self._names, self.transaction = paths, tensors, sorted(names), transaction
        self._log = DeltaLog()
        self.counts: Counts = (0, 0, 0)

    def to_own(self, progress: Progress | bool | None) -> None:
        """Change the tensors of the host, and those of devices, which are copied to the host sequentially."""
        report, close = progress_of(progress)
        try:
            host = self._tensors.host
            self.transaction.on_undo(lambda: self._log.undo(host))
            self._apply(host, report)
            for names, tensor in self._tensors.devices:
                self.transaction.on_undo(partial(self._undo_on_device, names, tensor))
                copy = tensor.cpu()
                if self.to(names, copy):
                    tensor.copy_(copy)
        finally:
            close()

    def to(self, names: Sequence[str], host: Any) -> bool:
        """Change a copy of a tensor that has these names, and return whether it was changed."""
        changed = self._apply([(name, host) for name in names])
        return bool(changed[0] or changed[2])

    def _apply(self, tensors: Sequence[tuple[str, Any]], progress: Progress | None = None) -> Counts:
        tied = self._tensors.may_be_tied
        done = apply_deltas_to(self._paths, tensors, self._log, others=self._names, may_be_tied=tied, progress=progress)
        self.counts = tuple(map(sum, zip(self.counts, done, strict=True)))  # type: ignore[assignment]
        return done

    def _undo_on_device(self, names: Sequence[str], tensor: Any) -> None:
        copy = tensor.cpu()
        self._log.undo([(name, copy) for name in names])
        tensor.copy_(copy)
