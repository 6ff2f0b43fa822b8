"""Deltas applied to tensors of this process as one transaction: those of the host, and copies of those of devices."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from max_weights._core import DeltaLog, apply_deltas_to, shown
from max_weights._delta_layout import in_hub_layout
from max_weights._progress import progress_of
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    from max_weights._progress import Progress

__all__ = ["Counts", "MemoryTensors", "Rename", "Transaction", "memory_tensors", "named_tensors"]

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


class Transaction:
    """What deltas change in the memory of this process, until it is undone or kept."""

    def __init__(self, paths: Sequence[str], tensors: MemoryTensors) -> None:
        self._paths, self._tensors = paths, tensors
        self._log = DeltaLog()
        self._written: list[tuple[list[str], Any]] = []

    def apply(self, names: Sequence[str], progress: Progress | bool | None) -> Counts:
        """Change the tensors of the host and of devices. If one cannot be changed, all are what they were."""
        report, close = progress_of(progress)
        try:
            self._written.extend(([name], tensor) for name, tensor in self._tensors.host)
            counts = self.apply_to(self._tensors.host, names, report)
            for own, tensor in self._tensors.devices:
                host = tensor.cpu()
                changed = self.apply_to([(name, host) for name in own], names)
                if changed[0] or changed[2]:
                    self._written.append((own, tensor))
                    tensor.copy_(host)
                counts = (counts[0] + changed[0], counts[1] + changed[1], counts[2] + changed[2])
        except BaseException as error:
            self._undo_after(error)
            raise
        finally:
            close()
        return counts

    def apply_to(
        self,
        tensors: Sequence[tuple[str, Any]],
        names: Sequence[str],
        progress: Callable[[int, int], object] | None = None,
    ) -> Counts:
        """Change tensors of the host, and keep what is replaced; `names` are those of all tensors."""
        tied = self._tensors.may_be_tied
        return apply_deltas_to(self._paths, tensors, self._log, others=names, may_be_tied=tied, progress=progress)

    def undo(self) -> None:
        """Make all tensors of the host and of devices what they were."""
        written, self._written = self._written, []
        host = [(names[0], tensor) for names, tensor in written if not _is_on_device(tensor)]
        self._log.undo(host)
        for names, tensor in written:
            if _is_on_device(tensor):
                copy = tensor.cpu()
                self.undo_in([(name, copy) for name in names])
                tensor.copy_(copy)

    def undo_in(self, tensors: Sequence[tuple[str, Any]]) -> None:
        """Make tensors of the host what they were."""
        self._log.undo(tensors)

    def _undo_after(self, error: BaseException) -> None:
        try:
            self.undo()
        except Exception as failed:
            error.add_note(f"not all tensors could be made what they were: {failed}; load the weights again")


def _is_on_device(tensor: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor) and tensor.device.type != "cpu"
