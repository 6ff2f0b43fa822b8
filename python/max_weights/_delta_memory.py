"""Deltas applied to tensors of this process as one transaction: those of the host, and copies of those of devices."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from max_weights._core import DeltaLog, apply_deltas_to, shown
from max_weights._delta_layout import in_hub_layout
from max_weights._progress import progress_of
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    from max_weights._progress import Progress
    from max_weights._transaction import Transaction

__all__ = ["Applying", "Counts", "MemoryTensors", "Rename", "memory_tensors", "named_tensors"]

Rename: TypeAlias = "Callable[[str], str | None] | Mapping[str, str] | str | None"
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


def named_tensors(tensors: Any, rename: Rename) -> dict[str, Any]:
    """Return the tensors of a mapping or a module by their names in the checkpoint.

    Raises:
        ArgumentError: `rename` gives two tensors one name; a layout is not known, or cannot be undone in memory.
    """
    torch = sys.modules.get("torch")
    config = None
    if torch is not None and isinstance(tensors, torch.nn.Module):
        config = getattr(tensors, "config", None)
        tensors = tensors.state_dict()
    elif not isinstance(tensors, Mapping):
        raise ArgumentError(f"tensors are a module, or a mapping of names to tensors, not a {type(tensors).__name__}")
    if isinstance(rename, str):
        return in_hub_layout(tensors, rename, config)
    named: dict[str, Any] = {}
    for name, tensor in tensors.items():
        own = _renamed(name, rename)
        if own in named:
            raise ArgumentError(f"rename= gives two tensors the name '{shown(own)}'; the second is '{shown(name)}'")
        if own is not None:
            named[own] = tensor
    return named


def memory_tensors(tensors: Any, rename: Rename) -> MemoryTensors:
    """Sort tensors by where they are."""
    torch = sys.modules.get("torch")
    named = named_tensors(tensors, rename)
    # An array that is given twice is a mistake; a module's state dict has tied weights under each of their names.
    is_of_torch = torch is not None and any(isinstance(tensor, torch.Tensor) for tensor in named.values())
    sorted_tensors = MemoryTensors([], [], [], is_of_torch)
    memory: dict[object, list[str]] = {}
    for name, tensor in named.items():
        if torch is None or not isinstance(tensor, torch.Tensor):
            sorted_tensors.host.append((name, tensor))
            continue
        is_part = hasattr(tensor, "device_mesh") and not all(place.is_replicate() for place in tensor.placements)
        local = tensor.detach().to_local() if hasattr(tensor, "device_mesh") else tensor.detach()
        if not is_part and local.device.type == "cpu":
            sorted_tensors.host.append((name, local))
            continue
        if local.device.type == "meta":
            raise ArgumentError(f"'{shown(name)}' is on the meta device: it has no values that a delta could change")
        place = (local.device, local.data_ptr(), local.dtype, local.shape, local.stride(), is_part)
        if local.nbytes and place in memory:
            memory[place].append(name)
            continue
        names = memory.setdefault(place, [name]) if local.nbytes else [name]
        if is_part:
            sorted_tensors.ranks.append((names, tensor.detach()))
        else:
            sorted_tensors.devices.append((names, local))
    return sorted_tensors


def _renamed(name: str, rename: Callable[[str], str | None] | Mapping[str, str] | None) -> str | None:
    if rename is None:
        return name
    if isinstance(rename, Mapping):
        return rename.get(name, name)
    if not callable(rename):
        raise ArgumentError(f"rename= is a mapping, a function or the name of a layout, not a {type(rename).__name__}")
    return rename(name)


class Applying:
    """Deltas that are applied to the memory of this process, as a part of a transaction.

    `names` are those of all tensors that deltas may change, also of those that other ranks have.
    """

    def __init__(
        self, paths: Sequence[str], tensors: MemoryTensors, names: Iterable[str], transaction: Transaction
    ) -> None:
        self._paths, self._tensors, self._names, self.transaction = paths, tensors, sorted(names), transaction
        self._log = DeltaLog()
        self.counts: Counts = (0, 0, 0)

    def to_own(self, progress: Progress | bool | None) -> None:
        """Change the tensors of the host, and those of devices, which are copied to the host one after the other."""
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
