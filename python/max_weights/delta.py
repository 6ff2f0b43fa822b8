"""Deltas: what changed between two versions of a checkpoint, as a small safetensors file.

A trainer writes one after each step, engines apply them; `load_weights([base, delta, ...])` opens a base and a chain of
deltas as one checkpoint. docs/delta.md specifies the files.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

from max_weights._core import (
    WeightsNode,
    apply_deltas_to,
    delta_header,
    identity_of,
    shown,
    update_files,
    write_delta,
)
from max_weights._group_options import refuse_group_options
from max_weights._progress import progress_of
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from max_weights._buffer import Buffer, DLPackArray
    from max_weights._progress import Progress

__all__ = [
    "AppliedDelta",
    "Checksum",
    "Delta",
    "DeltaSummary",
    "Dialect",
    "UpdatedFiles",
    "Version",
    "apply",
    "apply_into",
    "create",
    "fold",
    "follow",
    "identity",
    "read",
]

# What other libraries write last into a folder that is a delta.
_WRITTEN_LAST = ("model.safetensors.index.json", "sparse_update_manifest.json")

_Path: TypeAlias = "str | os.PathLike[str]"
_Checkpoint: TypeAlias = "WeightsNode | _Path | Sequence[_Path]"
_Tensors: TypeAlias = "Mapping[str, DLPackArray]"
Dialect: TypeAlias = Literal["max-weights", "xor", "overwrite", "sparse"]
"""The forms of deltas that are written: this library's, those of folders `weight_v000012`, and the file of TRL."""
Checksum: TypeAlias = Literal["xxh3-128", "blake3", "adler32"]
"""How the checksums of such folders are taken."""


@dataclass(frozen=True)
class Delta:
    """What a delta says of itself: `max_weights.delta.read(path)`."""

    path: Path
    dialect: str
    """Its form: `"max-weights"`, or that of other libraries, `"xor"`, `"overwrite"` or `"sparse"`."""
    base: str
    """The identity of the version that it was made from, or what another library calls it; empty if it does not say."""
    target: str
    """The identity of the version that it leads to, or what another library calls that."""
    changed: dict[str, tuple[str, tuple[int, ...]] | None]
    """The tensors of which some elements changed: the dtype, as safetensors names it, and the shape of each; None where
    the delta does not say them."""
    whole: tuple[str, ...]
    """The tensors that it has with all of their elements: new ones, and those of which most changed."""
    removed: tuple[str, ...]
    """The tensors of the base that are no more."""


@dataclass(frozen=True)
class DeltaSummary:
    """What was written by `max_weights.delta.create`."""

    base: str
    """The identity of the version before."""
    target: str
    """The identity of the version after."""
    changed: int
    """Tensors of which some elements changed."""
    whole: int
    """Tensors that are there with all of their elements: new ones, and those of which most changed."""
    removed: int
    unchanged: int
    elements: int
    """Elements that are replaced in the tensors that changed in part."""
    path: Path


@dataclass(frozen=True)
class UpdatedFiles:
    """What `max_weights.delta.apply` did."""

    identity: str
    """The identity of the version that is there now, or what another library's delta calls it."""
    applied_before: int
    """How many of the deltas were in the files before."""
    files: tuple[Path, ...]
    """The files that were written; none if there was nothing to do."""


@dataclass(frozen=True)
class AppliedDelta:
    """What `max_weights.delta.apply_into` did, in blocks of 65,536 elements; with other dialects, in tensors."""

    changed: int
    unchanged: int
    """Blocks that the deltas change and that were as they should be already."""
    whole: int
    """Tensors that were replaced with all of their elements."""


@dataclass(frozen=True)
class Version:
    """A base and the deltas that lead to one version of it."""

    base: str | list[str]
    deltas: tuple[Path, ...]
    identity: str

    def weights(self) -> WeightsNode:
        """Open it as one checkpoint. Only headers are read."""
        from max_weights._weights import load_weights

        base = [self.base] if isinstance(self.base, str) else self.base
        return load_weights([*base, *self.deltas])


def create(
    base: _Checkpoint | _Tensors,
    new: _Checkpoint | _Tensors,
    path: _Path,
    *,
    dialect: Dialect = "max-weights",
    version: str | None = None,
    base_version: str | None = None,
    checksum: Checksum = "xxh3-128",
    sync: bool = True,
    progress: Progress | bool | None = None,
) -> DeltaSummary:
    """Write what changed from one version of a checkpoint to another as a delta.

    Both are read once, in blocks, on all cores.

    Args:
        base: The version before: a tree that is open, what `load_weights` takes, such as `[checkpoint, delta]`, or
            tensors of any library by their names (those of a device are copied). From memory it is twice as fast.
        new: The version after, likewise.
        path: The file; what is there is replaced as a whole. Or a URL. With `"xor"` and `"overwrite"`, a folder without
            index.
        dialect: `"xor"` and `"overwrite"` are folders that slime, miles, SkyRL and others read, `"sparse"` is a file
            that TRL reads; they have no place for tensors that are new or removed.
        version: What another library calls the new version; that of the name of `path`, if it is a folder
            `weight_v000012`, or a file that ends with a number, such as `step_000012.safetensors`.
        base_version: What it calls the version before; one less than `version`.
        checksum: Of each tensor in such a folder.
        sync: Wait until the bytes are on the disk.
        progress: Called with the bytes that were compared and those of all; True shows a bar.

    Raises:
        UnsupportedError: elements that are packed in blocks, or that only PyTorch has.
        ArgumentError: a tree is a part of a tree, or one that was renamed or converted.
    """
    versions = _version(base), _version(new)
    report, close = progress_of(progress)
    try:
        own = (dialect, checksum, version, base_version)
        summary = write_delta(*versions, os.fspath(path), dialect=own, sync=sync, progress=report)
    finally:
        close()
    return DeltaSummary(*summary[:7], Path(path))


def read(path: _Path) -> Delta:
    """Read what a delta says of itself: its header, and nothing else.

    A folder `weight_v000012`, as slime, miles and others write it, is a delta, too, and so are sparse files of TRL and
    folders of prime-rl.

    Raises:
        FormatError: the file is no delta (rule `delta.header`).
    """
    dialect, base, target, changed, whole, removed = delta_header(os.fspath(path))
    shapes = {name: said and (said[0], tuple(said[1])) for name, said in changed.items()}
    return Delta(Path(path), dialect, base, target, shapes, tuple(whole), tuple(removed))


def identity(weights: _Checkpoint) -> str:
    """Return what tells a version from others, as deltas have it: 32 hexadecimal digits. Every byte is read.

    It is that of names, dtypes, shapes and bytes, whatever files they are in; a cast makes another version, unlike with
    `max_weights.fingerprint`.
    """
    return identity_of(_whole_tree(weights))


def apply(
    target: _Path,
    *deltas: _Path,
    sync: bool = True,
    verify: bool = False,
    progress: Progress | bool | None = None,
) -> UpdatedFiles:
    """Make the files of a checkpoint what deltas say.

    Files are replaced as wholes: whoever is killed leaves the version before or the new one. All bytes of the target
    are compared first. A target that has the first deltas already gets the others; one that has all stays as it is.

    Args:
        target: A safetensors file, or a folder or index of several.
        deltas: Paths, in the order in which they build on each other.
        sync: Wait until the bytes are on the disk.
        verify: Read back what was written before it takes its place.
        progress: Called with the bytes that are done and those of all; True shows a bar.

    Raises:
        FormatError: the target is no version of the chain (rule `delta.base`); a delta is missing or out of order
            (`delta.chain`). Then nothing has changed.
    """
    report, close = progress_of(progress)
    paths = [os.fspath(path) for path in deltas]
    try:
        now, before, files = update_files(os.fspath(target), paths, sync=sync, verify=verify, progress=report)
    finally:
        close()
    return UpdatedFiles(now, before, tuple(map(Path, files)))


def apply_into(
    tensors: Mapping[str, DLPackArray] | torch.nn.Module,
    *deltas: _Path,
    rename: Callable[[str], str | None] | Mapping[str, str] | None = None,
    group: dist.ProcessGroup | None = None,
    timeout: float = 600.0,
    progress: Progress | bool | None = None,
) -> AppliedDelta:
    """Make tensors in memory what deltas say, in place, on all cores.

    Every block that changes is compared with the base before it is written, and with what it should be after that. If
    one cannot be done, those before it are undone: what blocks had is kept, which takes as much memory as the deltas
    have, beyond 32 MB a temporary file. A block may have the changes already, so that applying again changes nothing,
    and finishes what was interrupted. Tensors of a device are taken to the host one after the other, and each is
    compared and written by itself. Nobody may use the tensors meanwhile.

    Of distributed tensors (`DTensor`, as of FSDP2 and tensor parallelism) each rank has a part, and all ranks call this
    together. Those that change are put together on each rank, one after the other, compared as wholes, and each rank
    writes its part; memory is taken for two of the largest.

    Args:
        tensors: Tensors by their names in the checkpoint, each contiguous and writable; or a module. Of one that is
            fused with others, the rows are a view that may be given.
        deltas: Paths, in the order in which they build on each other; or of a folder of several.
        rename: The name in the checkpoint of each name of `tensors`: a mapping, or a function that returns None for a
            tensor that is not in the checkpoint.
        group: The ranks that apply them together: an error of one is that of all. Default: all ranks for distributed
            tensors, and otherwise this process alone.
        timeout: For how many seconds ranks wait for one that does not answer.
        progress: Called with the bytes that are done and those of all; True shows a bar.

    Raises:
        FormatError: a tensor is no version of the chain (rule `delta.base`), has another dtype or shape, or is not
            there (`delta.tensor`), or a delta is damaged (`delta.changes`): then all are what they were, without a
            group.
        RankError: on all ranks, what went wrong on one of them. Some tensors may be those of the new version then;
            applying again finishes it.
    """
    of_host, of_devices, of_ranks = _tensors(tensors, rename)
    paths = [os.fspath(path) for path in deltas]
    names = [name for name, _ in (*of_host, *of_devices, *of_ranks)]

    def apply(names: Sequence[str]) -> tuple[int, int, int]:
        report, close = progress_of(progress)
        try:
            changed, unchanged, whole = apply_deltas_to(paths, of_host, others=names, progress=report)
            for name, tensor in of_devices:
                host = tensor.cpu()
                counts = apply_deltas_to(paths, [(name, host)], others=names, progress=None)
                if counts[0] or counts[2]:
                    tensor.copy_(host)
                changed, unchanged, whole = changed + counts[0], unchanged + counts[1], whole + counts[2]
        finally:
            close()
        return changed, unchanged, whole

    if group is None and not of_ranks:
        refuse_group_options("apply_into", timeout=timeout)
        return AppliedDelta(*apply(names))
    from max_weights._ranks.deltas import apply_in_group

    return AppliedDelta(
        *apply_in_group(paths, names, apply, dict(of_ranks), group=group, timeout=timeout, progress=progress)
    )


def fold(base: _Checkpoint, *deltas: _Path, path: _Path, sync: bool = True) -> DeltaSummary:
    """Write one delta that does what a chain does, from the base to the last version.

    Elements that changed several times are in it once, and those that changed back are not.
    """
    from max_weights._weights import load_weights

    if isinstance(base, WeightsNode):
        raise ArgumentError("give the paths of the base, with which the deltas can be opened")
    paths = [base] if isinstance(base, str | os.PathLike) else base
    return create(paths, load_weights([*paths, *deltas]), path, sync=sync)


def follow(
    base: _Path | Sequence[_Path], folder: _Path, *, every: float = 0.2, timeout: float | None = None
) -> Iterator[Version]:
    """Yield each version of a base that deltas in a folder lead to, those that are there and those that come.

    A delta is there when it has its name, which `create` gives it when it is complete; of a folder that other libraries
    write, when its index is there. Other files are passed over.
    Versions come in the order in which the deltas build on each other, whatever the files are called.

    Args:
        base: What the first delta was made from.
        folder: Where the deltas appear.
        every: Seconds between two looks.
        timeout: Seconds without a new version after which it ends; None to go on for ever.

    Raises:
        FormatError: a file of the folder is a delta that cannot be read.
        ArgumentError: two deltas change the same version; one of TRL comes after a higher version.
    """
    first = os.fspath(base) if isinstance(base, str | os.PathLike) else [os.fspath(path) for path in base]
    by_base: dict[str, Delta] = {}
    passed: dict[str, Delta] = {}
    seen: set[str] = set()
    chain: tuple[Path, ...] = ()
    now: str | None = None
    looked = time.monotonic()
    while True:
        found = list(_new_deltas(Path(folder), seen))
        # Of TRL: what such a delta changes is not said, and versions are numbers that rise.
        for delta in sorted((delta for delta in found if not delta.base), key=lambda delta: int(delta.target)):
            if now is not None and int(delta.target) <= int(now):
                raise ArgumentError(f"'{shown(str(delta.path))}' leads to {delta.target}, but {now} was there before")
            chain, now = (*chain, delta.path), delta.target
            yield Version(first, chain, now)
            looked = time.monotonic()
        # What changes nothing is no new version.
        for delta in (delta for delta in found if delta.base and delta.base != delta.target):
            other = by_base.setdefault(delta.base, delta)
            if other is not delta:
                raise ArgumentError(
                    f"'{shown(str(other.path))}' and '{shown(str(delta.path))}' change the same version"
                )
        if now is None:
            targets = {delta.target for delta in by_base.values()}
            now = next((version for version in by_base if version not in targets), None)
        while now is not None and now in by_base:
            delta = by_base.pop(now)
            chain, now = (*chain, delta.path), delta.target
            passed[delta.base] = delta
            yield Version(first, chain, now)
            looked = time.monotonic()
        for delta in by_base.values():
            if delta.base in passed:
                _refuse_fork(passed[delta.base], delta)
        if timeout is not None and time.monotonic() - looked > timeout:
            return
        time.sleep(every)


def _refuse_fork(one: Delta, other: Delta) -> NoReturn:
    raise ArgumentError(f"'{shown(str(one.path))}' and '{shown(str(other.path))}' change the same version")


def _new_deltas(folder: Path, seen: set[str]) -> Iterator[Delta]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        is_complete = entry.name.endswith(".safetensors") or any(
            os.path.exists(os.path.join(entry.path, name)) for name in _WRITTEN_LAST
        )
        if entry.name in seen or entry.name.startswith(".") or not is_complete:
            continue
        seen.add(entry.name)
        yield read(entry.path)


def _version(version: _Checkpoint | _Tensors) -> WeightsNode | list[tuple[str, Buffer]]:
    """What a version is for the native code."""
    if not isinstance(version, Mapping):
        return _whole_tree(version)
    from max_weights._saving import buffer_of

    return [(name, buffer_of(name, tensor)) for name, tensor in version.items()]


def _whole_tree(weights: _Checkpoint) -> WeightsNode:
    if not isinstance(weights, WeightsNode):
        from max_weights._weights import load_weights

        return load_weights(weights)
    if weights.name:
        raise ArgumentError(f"'{shown(weights.name)}' is a part of a tree: give the root")
    return weights


def _tensors(
    tensors: Any, rename: Callable[[str], str | None] | Mapping[str, str] | None
) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]], list[tuple[str, Any]]]:
    """Sort tensors, by their names in the checkpoint: those of the host, of devices, and parts of distributed ones.

    Memory that there is twice, as of tied weights, is there once.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensors, torch.nn.Module):
        tensors = tensors.state_dict()
    of_host: list[tuple[str, Any]] = []
    of_devices: list[tuple[str, Any]] = []
    of_ranks: list[tuple[str, Any]] = []
    memory: set[object] = set()
    for name, tensor in tensors.items():
        own = _renamed(name, rename)
        if own is None:
            continue
        if torch is None or not isinstance(tensor, torch.Tensor):
            of_host.append((own, tensor))
            continue
        is_part = hasattr(tensor, "device_mesh") and not all(place.is_replicate() for place in tensor.placements)
        local = tensor.detach().to_local() if hasattr(tensor, "device_mesh") else tensor.detach()
        place = (local.device, local.data_ptr(), local.nbytes)
        if local.nbytes and place in memory:
            continue
        memory.add(place)
        if is_part:
            of_ranks.append((own, tensor.detach()))
        else:
            (of_host if local.device.type == "cpu" else of_devices).append((own, local))
    return of_host, of_devices, of_ranks


def _renamed(name: str, rename: Callable[[str], str | None] | Mapping[str, str] | None) -> str | None:
    if rename is None:
        return name
    return rename.get(name, name) if isinstance(rename, Mapping) else rename(name)
