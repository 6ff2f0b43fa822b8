"""Deltas: what changed between two versions of a checkpoint, as a small safetensors file.

A trainer writes one after each step, and engines apply them. A base and a chain of deltas are opened as one checkpoint:
`load_weights([base, delta, ...])`. The format of the files is specified in docs/delta.md.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, overload

from max_weights._checkpoints import opened, paths_of, tensors_of
from max_weights._core import (
    RangeSource,
    WeightsNode,
    delta_header,
    escape,
    fold_deltas,
    identity_of,
    infos,
    opened_paths,
    paths_of_deltas,
    update_files,
    write_delta,
)
from max_weights._delta_layout import fitting_layout
from max_weights._delta_memory import Applying, has_parts, memory_tensors, renamed_tensors
from max_weights._group_options import TIMEOUT, refuse_group_options
from max_weights._memory_source import host_buffer
from max_weights._progress import progress_of
from max_weights._threads import threads_of_call
from max_weights._transaction import Transaction
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    import torch.distributed as dist

    from max_weights._buffer import Buffer
    from max_weights._checkpoints import Checkpoint, Tensors
    from max_weights._load_request import Rename
    from max_weights._progress import Progress

__all__ = ["Delta", "DeltaSummary", "Version", "apply", "apply_into", "create", "fold", "follow", "read"]

# The files that other libraries write last into the folder of a delta, so that it is complete once one exists.
_WRITTEN_LAST = ("model.safetensors.index.json", "sparse_update_manifest.json")

_Path: TypeAlias = "str | os.PathLike[str]"


@dataclass(frozen=True)
class Delta:
    """The header of a delta: `max_weights.delta.read(path)`."""

    path: Path | str
    """The path; a URL is text."""
    dialect: str
    """The format: `"max-weights"`, or that of other libraries, `"xor"`, `"overwrite"` or `"sparse"`."""
    base: str
    """The identity of the version before, or the name that another library gives it; empty if the header has none."""
    target: str
    """The identity of the version after, or the name that another library gives it."""
    changed: dict[str, tuple[str, tuple[int, ...]] | None]
    """The tensors that changed in part: dtype, as safetensors names it, and shape; None where the delta has neither."""
    whole: tuple[str, ...]
    """The tensors stored with all of their elements: new ones, and those of which most changed."""
    removed: tuple[str, ...]
    """Removed tensors of the base."""
    folded: tuple[str, ...] = ()
    """The identities of the versions in between, if the delta was folded from a chain."""


@dataclass(frozen=True)
class DeltaSummary:
    """What a written delta contains, or what applying deltas changed."""

    changed: int = 0
    """Tensors that changed in part; of `apply_into`, changed blocks of 65,536 elements, or tensors if the delta is
    another library's."""
    unchanged: int = 0
    """Unchanged tensors; of `apply_into`, the blocks or tensors that had the new values already."""
    whole: int = 0
    """Tensors stored with all of their elements: new ones, and those of which most changed."""
    removed: int = 0
    """Removed tensors of the base."""
    elements: int = 0
    """Elements that are replaced in the tensors that changed in part."""
    base: str = ""
    """The identity of the version before."""
    target: str = ""
    """The identity of the version after, or the name that another library gives it."""
    path: Path | str | None = None
    """Where the delta was written; a URL is text."""
    applied_before: int = 0
    """Of `apply`: how many of the deltas the files had already."""
    files: tuple[Path, ...] = ()
    """The files that `apply` wrote; empty if nothing had to change."""


@dataclass(frozen=True)
class Version:
    """A base, and the deltas that lead from it to one version."""

    base: str | list[str]
    deltas: tuple[Path, ...]
    identity: str

    def weights(self) -> WeightsNode:
        """Open this version as one checkpoint. Only headers are read.

        Returns:
            The tree of the base with the deltas.

        Raises:
            FormatError: a delta does not fit.

        Example:
            >>> import os
            >>> os.mkdir("deltas")
            >>> _ = max_weights.delta.create("model.safetensors", "new.safetensors", "deltas/1.safetensors")
            >>> version = next(max_weights.delta.follow("model.safetensors", "deltas"))
            >>> len(version.weights())
            5
        """
        from max_weights._weights import load_weights

        base = [self.base] if isinstance(self.base, str) else self.base
        return load_weights([*base, *self.deltas])


def create(
    base: Checkpoint | Tensors,
    new: Checkpoint | Tensors,
    path: _Path,
    *,
    dialect: Literal["max-weights", "xor", "overwrite", "sparse"] = "max-weights",
    version: str | None = None,
    base_version: str | None = None,
    checksum: Literal["xxh3-128", "blake3", "adler32"] = "xxh3-128",
    rename: Rename | str | None = None,
    sync: bool = True,
    threads: int | None = None,
    progress: Progress | bool | None = None,
) -> DeltaSummary:
    """Write the difference between two versions of a checkpoint as a delta.

    Both versions are read once, in blocks, on all cores.

    Args:
        base: The version before: a checkpoint, such as a path or `[path, delta]`, a module, or {name: tensor} (tensors
            of a device are copied). Comparing with tensors in memory is twice as fast.
        new: The version after, likewise.
        path: The file or URL to write; an existing file is replaced atomically. With `"xor"` and `"overwrite"`, a
            folder without index.
        dialect: The format. `"xor"` and `"overwrite"` are folders that slime, miles, SkyRL and others read; `"sparse"`
            is a file that TRL reads. These three cannot add or remove tensors.
        version: The name that another library gives the new version (a number for `"sparse"`). Default: the number at
            the end of the name of `path`: a folder `weight_v000012`, or a file such as `step_000012.safetensors`.
        base_version: The name of the version before; default: one less than a `version` that is a number.
        checksum: The checksum of each tensor in such a folder.
        rename: Maps names in the checkpoint to those of the tensors in memory: a mapping or a function, as for `load`.
            Or the layout of the module, such as `"transformers5"`, whose experts are compared one by one.
        sync: Wait until the bytes are on the disk.
        threads: How many threads compare; default: that of `max_weights.set_threads`.
        progress: Called with the bytes compared and the total; True shows a bar.

    Returns:
        The number of tensors and elements that the delta has.

    Raises:
        UnsupportedError: elements in packed blocks, or of a dtype that only PyTorch has.
        ValueError: `path` is a file or folder of `base` or of `new`, or lies in such a folder.
        ArgumentError: a tree that is not a root; `base` was renamed or converted; `rename` without tensors in memory,
            or without a checkpoint whose names it changes.

    Example:
        >>> max_weights.delta.create("model.safetensors", "new.safetensors", "step-1.safetensors").removed
        0
    """
    memory = [tensors_of(one) for one in (base, new)]
    config = next((one.config for one in (new, base) if hasattr(one, "config") and tensors_of(one) is not None), None)
    with ExitStack() as files, threads_of_call(threads):
        trees = [
            None if named is not None else _whole(files.enter_context(opened(one, "delta.create")))
            for one, named in zip((base, new), memory, strict=True)
        ]
        if trees[0] is not None and trees[0]._scheme is not None:
            raise ArgumentError(
                "the base was renamed or converted, and a delta is opened with its files: give the checkpoint itself, "
                "and compare it with tensors under the names in its files",
                rule="argument.conflict",
            )
        names = next(([info.name for info in infos(tree)] for tree in trees if tree is not None), None)
        if rename is not None and (
            all(tree is not None for tree in trees) or (names is None and not isinstance(rename, str))
        ):
            raise ArgumentError(
                "rename= maps the names of a checkpoint to those of tensors in memory: give one of each; of a "
                "checkpoint, give renamed(weights, ...)",
                rule="argument.conflict",
            )
        versions: list[WeightsNode | list[tuple[str, Buffer]]] = []
        for tree, named in zip(trees, memory, strict=True):
            tensors = {} if named is None else renamed_tensors(named, rename, names, config)
            own = [(name, host_buffer(name, one)) for name, one in tensors.items()]
            versions.append(own if tree is None else tree)
        before, after = versions
        _warn_of_names(_names(before), _names(after), memory[1], config)
        report, close = progress_of(progress)
        try:
            form = (dialect, checksum, version, base_version)
            return _summary(write_delta(before, after, os.fspath(path), dialect=form, sync=sync, progress=report), path)
        finally:
            close()


def _summary(written: Sequence[Any], path: _Path) -> DeltaSummary:
    base, target, changed, whole, removed, unchanged, elements = written[:7]
    return DeltaSummary(changed, unchanged, whole, removed, elements, base, target, _place(path))


def _place(path: _Path) -> Path | str:
    """Return a path as `Path`, and a URL as text."""
    text = os.fspath(path)
    return text if "://" in text else Path(text)


def _whole(weights: WeightsNode) -> WeightsNode:
    if weights.name:
        raise ArgumentError(f"'{escape(weights.name)}' is a part of a tree: give the root", rule="argument.part")
    return weights


def _names(version: WeightsNode | list[tuple[str, Buffer]]) -> list[str]:
    return [info.name for info in infos(version)] if isinstance(version, WeightsNode) else [name for name, _ in version]


def _warn_of_names(base: list[str], new: list[str], tensors: Mapping[str, object] | None, config: object) -> None:
    """Warn if two versions share few names, because the delta is then nearly as large as the new version."""
    shared = len(set(base) & set(new))
    if not base or not new or 2 * shared >= len(base):
        return
    layout = None if tensors is None else fitting_layout(base, tensors, config)
    hint = "give rename=, a mapping, a function, or a layout such as 'transformers5'"
    if layout is not None:
        hint = f"they fit the layout {layout!r}: give rename={layout!r}"
    elif config is None and tensors is not None:
        hint += " with the module that has the config"
    warnings.warn(
        f"the new version has {shared} of the {len(base)} names of the base, so that the delta has all of the others "
        f"as whole tensors; {hint}",
        stacklevel=3,
    )


def read(path: _Path) -> Delta:
    """Read the header of a delta, and nothing else.

    Args:
        path: A file, a URL, or a folder `weight_v000012` as slime, miles and others write it; sparse files of TRL and
            folders of prime-rl are deltas, too.

    Returns:
        Its format, the versions before and after, and the names that it changes.

    Raises:
        FormatError: the file is no delta (rule `delta.header`).

    Example:
        >>> _ = max_weights.delta.create("model.safetensors", "new.safetensors", "step-1.safetensors")
        >>> max_weights.delta.read("step-1.safetensors").dialect
        'max-weights'
    """
    dialect, base, target, changed, whole, removed, folded = delta_header(os.fspath(path))
    shapes = {name: declared and (declared[0], tuple(declared[1])) for name, declared in changed.items()}
    return Delta(_place(path), dialect, base, target, shapes, tuple(whole), tuple(removed), tuple(folded))


def apply(
    checkpoint: _Path,
    *deltas: _Path,
    sync: bool = True,
    read_back: bool = False,
    threads: int | None = None,
    progress: Progress | bool | None = None,
) -> DeltaSummary:
    """Update the files of a checkpoint with deltas.

    Whole files are replaced, atomically: a reader sees the old version or the new one, also if the process is killed.
    Before that, all bytes and the identity of the result are compared. Files that have the first deltas already get the
    others; files that have all stay unchanged.

    Args:
        checkpoint: A safetensors file, or a folder or index of several, on a local disk.
        deltas: Paths, in the order in which they build on each other.
        sync: Wait until the bytes are on the disk.
        read_back: Read back what was written before it replaces the file.
        threads: How many threads compare and write; default: that of `max_weights.set_threads`.
        progress: Called with the bytes done and the total; True shows a bar.

    Returns:
        The new version (`target`), the `files` that were written, and how many deltas were `applied_before`.

    Raises:
        FormatError: the checkpoint is no version of the chain (rule `delta.base`); a delta is missing or out of order
            (`delta.chain`). Then nothing has changed.

    Example:
        >>> _ = max_weights.delta.create("model.safetensors", "new.safetensors", "step-1.safetensors")
        >>> max_weights.delta.apply("model.safetensors", "step-1.safetensors").applied_before
        0
    """
    if not isinstance(checkpoint, (str, os.PathLike)):
        what = escape(type(checkpoint).__name__)
        raise ArgumentError(
            f"delta.apply replaces files: give the path of the checkpoint, not a {what}", rule="argument.conflict"
        )
    report, close = progress_of(progress)
    paths = [os.fspath(path) for path in deltas]
    try:
        with threads_of_call(threads):
            now, before, files = update_files(
                os.fspath(checkpoint), paths, sync=sync, verify=read_back, progress=report
            )
    finally:
        close()
    return DeltaSummary(target=now, applied_before=before, files=tuple(map(Path, files)))


def apply_into(
    tensors: Tensors,
    *deltas: _Path,
    rename: Rename | str | None = None,
    group: dist.ProcessGroup | None = None,
    rank_timeout: float = TIMEOUT,
    threads: int | None = None,
    progress: Progress | bool | None = None,
) -> DeltaSummary:
    """Apply deltas to tensors in memory, in place, on all cores, as one transaction.

    Every block that changes is compared with the base before it is written, and with the new version after that. An
    error or an interrupt restores all tensors, on the host, on devices and on all ranks. The replaced values are kept
    until the end: they take as much memory as the deltas, beyond 32 MB a temporary file. Applying again changes
    nothing. Tensors of a device are copied to the host sequentially. The tensors must not be used meanwhile.

    Of distributed tensors (`DTensor`, as of FSDP2 and tensor parallelism) each rank has a part, and all ranks call
    this. Each tensor that changes is gathered on every rank, sequentially, and compared; each rank then writes its
    part. This takes memory for two of the largest tensors, and for the replaced parts.

    Args:
        tensors: A module, or {name: tensor}, each contiguous and writable. For a tensor fused with others, give the
            view of its rows. Tied tensors may have several names, if the deltas
            change alike all of these names that the checkpoint has.
        deltas: Paths, in the order in which they build on each other; or a folder of several.
        rename: Maps names in the checkpoint to those of the tensors: a mapping, or a function that returns None for a
            tensor that is not given, as for `load`. Or the layout of a module, such as `"transformers5"`.
        group: The ranks that apply them together; errors are collective. Default: all ranks for distributed tensors,
            and otherwise this process alone.
        rank_timeout: For how many seconds ranks wait for one that does not answer.
        threads: How many threads compare and write; default: that of `max_weights.set_threads`.
        progress: Called with the bytes done and the total; True shows a bar.

    Returns:
        The numbers of `changed`, `unchanged` and `whole` blocks or tensors.

    Raises:
        FormatError: a tensor is no version of the chain (rule `delta.base`). It is missing, has another dtype or shape,
            or is tied to one that stays (`delta.tensor`). Or a delta is damaged (`delta.changes`).
        ArgumentError: tensors that overlap in part; a layout that cannot be undone in memory.
        RankError: on all ranks, the error of one of them.

    Example:
        >>> _ = max_weights.delta.create("model.safetensors", "new.safetensors", "step-1.safetensors")
        >>> tensors = max_weights.load_file("model.safetensors", copy=True)
        >>> max_weights.delta.apply_into(tensors, "step-1.safetensors").unchanged
        0
    """
    paths = [os.fspath(path) for path in deltas]
    with threads_of_call(threads):
        if group is None and not has_parts(tensors):
            refuse_group_options("apply_into", rank_timeout=rank_timeout)
            own = memory_tensors(tensors, rename, paths)
            with Transaction() as transaction:
                applying = Applying(paths, own, own.names(), transaction)
                applying.to_own(progress)
            return DeltaSummary(*applying.counts)
        from max_weights._ranks.deltas import apply_in_group

        return DeltaSummary(*apply_in_group(paths, tensors, rename, group, rank_timeout, progress))


@overload
def fold(
    base: _Path | Sequence[_Path], *deltas: _Path, path: _Path, sync: bool = True, threads: int | None = None
) -> DeltaSummary: ...
@overload
def fold(
    base: _Path | Sequence[_Path], *deltas: _Path, keep: int, sync: bool = True, threads: int | None = None
) -> DeltaSummary | None: ...
def fold(
    base: _Path | Sequence[_Path],
    *deltas: _Path,
    path: _Path | None = None,
    keep: int | None = None,
    sync: bool = True,
    threads: int | None = None,
) -> DeltaSummary | None:
    """Merge a chain of deltas into one, from the base to the last version.

    Elements that changed several times are stored once, and those that changed back are not stored.

    With `keep`, the oldest deltas are replaced: the newest `keep` stay, and the folded one atomically replaces the
    newest of the others, which are then removed. A reader sees the old deltas or the folded one, also if the process is
    killed; folding again removes what is left.

    Args:
        base: The version that the first delta changes.
        deltas: Paths, in the order in which they build on each other; or a folder of several.
        path: The file to write. The deltas stay.
        keep: Instead of `path`, how many of the newest deltas stay.
        sync: Wait until the bytes are on the disk.
        threads: How many threads compare; default: that of `max_weights.set_threads`.

    Returns:
        The content of the folded delta; with `keep`, None if there are fewer than two older deltas to fold.

    Raises:
        FormatError: the base is not the version that the first delta changes (rule `delta.base`).
        ArgumentError: neither `path` nor `keep`; a tree; `keep` with deltas of other libraries, or on a server.

    Example:
        >>> _ = max_weights.delta.create("model.safetensors", "new.safetensors", "step-1.safetensors")
        >>> max_weights.delta.fold("model.safetensors", "step-1.safetensors", path="all.safetensors").removed
        0
    """
    if isinstance(base, WeightsNode):
        raise ArgumentError("give the paths of the base, with which the deltas can be opened", rule="argument.conflict")
    if (path is None) == (keep is None):
        raise ArgumentError(
            "give path=, the file to write, or keep=, how many deltas stay unchanged", rule="argument.conflict"
        )
    if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 0):
        raise ArgumentError(f"keep= is a number of deltas, 0 or more, not {keep!r}", rule="argument.number")
    own = [base] if isinstance(base, str | os.PathLike) else base
    with threads_of_call(threads):
        written = fold_deltas(
            [os.fspath(one) for one in own],
            [os.fspath(delta) for delta in deltas],
            path=None if path is None else os.fspath(path),
            keep=keep or 0,
            sync=sync,
        )
    return None if written is None else _summary(written, written[7][0])


def follow(base: Checkpoint, folder: _Path, *, every: float = 0.2, timeout: float | None = None) -> Iterator[Version]:
    """Yield each version that deltas in a folder lead to from a base: existing ones, then new ones as they appear.

    A delta of `create` is complete once it has its final name; one in a folder that other libraries write, once its
    index exists. Versions come in the order in which the deltas build on each other, whatever their file names. Other
    files are skipped, and so are deltas that lead to the base, or that belong to another one.

    Args:
        base: The loaded checkpoint: any version of the chain. Its identity is compared, for which every byte is read
            once.
        folder: Where the deltas appear.
        every: The poll interval, in seconds.
        timeout: End after this many seconds without a new version; None: never.

    Yields:
        The versions after the base, each with the deltas that lead to it.

    Raises:
        FormatError: a file of the folder is a delta that cannot be read.
        ArgumentError: two deltas change the same version; a delta of TRL follows one with a higher version.

    Example:
        >>> import os
        >>> os.mkdir("deltas")
        >>> _ = max_weights.delta.create("model.safetensors", "new.safetensors", "deltas/1.safetensors")
        >>> [len(version.deltas) for version in max_weights.delta.follow("model.safetensors", "deltas", timeout=0)]
        [1]
    """
    first = _base_of(base)
    again = base if isinstance(base, WeightsNode) else first  # a generator of paths is empty now
    waiting: dict[str, list[Delta]] = {}
    passed: dict[str, Delta] = {}
    seen: set[str] = set()
    chain: tuple[Path, ...] = ()
    now: str | None = None
    looked = time.monotonic()
    while True:
        found = list(_new_deltas(Path(folder), seen))
        # A delta of TRL does not name its base: its versions are increasing numbers.
        for delta in sorted((delta for delta in found if not delta.base), key=lambda delta: int(delta.target)):
            if now is not None and int(delta.target) <= int(now):
                raise ArgumentError(
                    f"'{escape(str(delta.path))}' leads to {delta.target}, but {now} was there before",
                    rule="delta.order",
                )
            chain, now = (*chain, Path(delta.path)), delta.target
            yield Version(first, chain, now)
            looked = time.monotonic()
        # A delta that changes nothing leads to no new version.
        for delta in (delta for delta in found if delta.base and delta.base != delta.target):
            waiting.setdefault(delta.base, []).append(delta)
        if now is None and waiting:
            now = _version_of(again, [delta for deltas in waiting.values() for delta in deltas])
        while now is not None and now in waiting:
            delta = _one_of(waiting.pop(now))
            chain, now = (*chain, Path(delta.path)), delta.target
            passed[delta.base] = delta
            yield Version(first, chain, now)
            looked = time.monotonic()
        for version in waiting.keys() & passed.keys():
            _one_of([passed[version], *waiting.pop(version)])
        if timeout is not None and time.monotonic() - looked > timeout:
            return
        time.sleep(every)


def _base_of(base: Checkpoint) -> str | list[str]:
    """Return the paths to open a base again with; a folder of deltas as its single deltas."""
    if isinstance(base, WeightsNode):
        paths = opened_paths(base)
        return paths[0] if len(paths) == 1 else paths
    given: list[str] = []
    for path in paths_of(base, "follow"):
        if isinstance(path, RangeSource):
            raise ArgumentError(
                "follow opens the base again with each version: give its path or URL, not a source",
                rule="argument.conflict",
            )
        given.append(os.fspath(path))
    if isinstance(base, str | os.PathLike):
        return given[0]
    first, *others = given
    return [first, *(one for path in others for one in (paths_of_deltas([path]) if os.path.isdir(path) else [path]))]


def _version_of(base: Checkpoint, deltas: Sequence[Delta]) -> str | None:
    """Return the version of a base: its identity, or, for dialects without any, the base that no delta leads to."""
    if any(delta.dialect == "max-weights" for delta in deltas):
        with opened(base, "follow") as weights:
            return identity_of(_whole(weights))
    targets = {delta.target for delta in deltas}
    return next((delta.base for delta in deltas if delta.base not in targets), None)


def _one_of(deltas: Sequence[Delta]) -> Delta:
    """Return the one of several deltas that change one version: the one folded from the others."""
    folds = [delta for delta in deltas if delta.folded]
    left = [delta for delta in deltas if not any(delta.target in fold.folded for fold in folds)]
    for other in left[1:]:
        if other.target != left[0].target:
            _refuse_fork(left[0], other)
    return left[0]


def _refuse_fork(one: Delta, other: Delta) -> NoReturn:
    raise ArgumentError(
        f"'{escape(str(one.path))}' and '{escape(str(other.path))}' change the same version", rule="delta.order"
    )


def _new_deltas(folder: Path, seen: set[str]) -> Iterator[Delta]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        is_complete = entry.name.endswith(".safetensors") or any(
            os.path.exists(os.path.join(entry.path, name)) for name in _WRITTEN_LAST
        )
        if entry.name in seen or entry.name.startswith(".") or not is_complete:
            continue
        seen.add(entry.name)
        yield read(entry.path)
