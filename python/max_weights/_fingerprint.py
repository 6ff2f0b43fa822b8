"""Fingerprints of weights, independent of files and formats: `max_weights.fingerprint`, see docs/fingerprint.md."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from max_weights._checkpoints import opened, tensors_of
from max_weights._core import (
    WeightsNode,
    digests_of,
    fingerprint_of,
    fingerprints_of,
    identity_of,
    infos,
    keys_of_content,
    verify_checksums,
)
from max_weights._dtype import DType
from max_weights._fingerprint_cache import fingerprint_cache
from max_weights._fingerprint_record import Fingerprint, TensorFingerprint
from max_weights._memory_source import host_buffer
from max_weights._progress import progress_of
from max_weights._selection import selected
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    from max_weights._checkpoints import Checkpoint, Tensors
    from max_weights._core import WeightInfo
    from max_weights._progress import Progress
    from max_weights._selection import Select

__all__ = ["fingerprint", "of_tensor"]


def fingerprint(
    checkpoint: Checkpoint | Tensors,
    select: Select | None = None,
    *,
    column_blocks: int = 1,
    digests: bool = False,
    identity: bool = False,
    checksums: bool = False,
    threads: int | None = None,
    progress: Progress | bool | None = None,
) -> Fingerprint:
    """Return the fingerprint of all weights at and below a node, or of tensors in memory.

    A tensor has the same fingerprint in every file, format and memory, and in every dtype that holds its values
    exactly: a bfloat16 as float32, for example. It consists of sums over blocks of rows. So `compare` reports the rows
    that differ, and the parts of a tensor that several ranks have add up to the whole.

    Args:
        checkpoint: A tree, a branch or a weight; anything that `load_weights` opens; {name: tensor}, or a module.
            Tensors on GPUs are copied to the host, one at a time.
        select: Which; see `WeightsNode.load`.
        column_blocks: The number of blocks of columns, at most 64, for tensors that ranks split along columns.
        digests: Also compute the SHA-256 of each tensor: `Fingerprint.digests`. The bytes are read twice.
        identity: Also compute the identity of this version of a checkpoint, which deltas use: `Fingerprint.identity`.
            The bytes are read once more.
        checksums: First compare every storage of PyTorch files with the checksum of its archive:
            `Fingerprint.checksums` counts them. Opening a file only does so for the pickle.
        threads: How many; see `WeightsNode.load`. Not for tensors in memory.
        progress: A function of (bytes done, total bytes), or True for a bar. Not for tensors in memory.

    Returns:
        A mapping {name: fingerprint of the tensor}, which compares, and reads and writes JSON.

    Raises:
        WeightNotFoundError: `select` names a weight that does not exist.
        FormatError: a storage has another checksum than its file says.
        FileChangedError: a file was truncated meanwhile.
        ArgumentError: `column_blocks` is not 1 to 64, or an option has no effect (a ValueError).

    Example:
        >>> taken = max_weights.fingerprint("model.safetensors", digests=True)
        >>> taken.digests["model.norm.weight"]
        'sha256:...'
        >>> bool(taken.compare(max_weights.fingerprint("model.pt")))
        True
    """
    if (tensors := tensors_of(checkpoint)) is not None:
        of_files = {"identity": identity, "checksums": checksums, "threads": threads is not None}
        for option, given in (of_files | {"progress": progress is not None}).items():
            if given:
                raise ArgumentError(
                    f"{option} has no effect on tensors in memory: leave it out", rule="argument.no-effect"
                )
        names = list(tensors) if select is None else selected(list(tensors), select)
        return Fingerprint({name: of_tensor(name, tensors[name], column_blocks, digest=digests) for name in names})
    with opened(checkpoint, "fingerprint", tensors=True) as weights:
        if identity and (select is not None or weights.name):
            raise ArgumentError(
                "identity is that of a whole checkpoint: give its root, and no select", rule="argument.part"
            )
        compared = verify_checksums(weights) if checksums else None
        listed = {info.name: info for info in infos(weights)}
        names = list(listed) if select is None else selected(list(listed), select)
        records = _records(weights, names, column_blocks, threads, progress)
        hashed = partial(digests_of, weights, threads=threads)
        of_names = _once(("digest",), weights, names, hashed, len) if digests else {}
        return Fingerprint(
            {
                name: _of_record(record, str(info.file), of_names.get(name), _dtype(info, record))
                for name, record, info in ((name, records[name], listed[name]) for name in names)
            },
            identity=identity_of(weights) if identity else None,
            checksums=compared,
        )


_Record: TypeAlias = tuple[str, list[int], int, int, bytes]


def _records(
    node: WeightsNode, names: list[str], column_blocks: int, threads: int | None, progress: Progress | bool | None
) -> dict[str, _Record]:
    def compute(missing: list[str]) -> list[_Record]:
        report, finish = progress_of(progress)
        try:
            return fingerprints_of(node, missing, column_blocks=column_blocks, threads=threads, progress=report)
        finally:
            finish()

    # The blocks of a record are nearly all of it.
    return _once(("fingerprint", column_blocks), node, names, compute, lambda record: len(record[4]))


_T = TypeVar("_T")


def _once(
    what: tuple[object, ...],
    node: WeightsNode,
    names: list[str],
    compute: Callable[[list[str]], list[_T]],
    size: Callable[[_T], int],
) -> dict[str, _T]:
    """Compute results of weights, or take them from the cache; they are cached if no file changed meanwhile."""
    keys = dict(zip(names, keys_of_content(node, names), strict=True))
    results: dict[str, _T] = {}
    for name, key in keys.items():
        if key is not None and (kept := fingerprint_cache.get((*what, key), None)) is not None:
            results[name] = kept
    missing = [name for name in names if name not in results]
    results |= zip(missing, compute(missing), strict=True)
    for name, key in zip(missing, keys_of_content(node, missing), strict=True):
        if key is not None and key == keys[name]:
            fingerprint_cache.put((*what, key), results[name], size(results[name]))
    return results


def _dtype(info: WeightInfo, record: _Record) -> str:
    """Return the dtype of a digest; for packed blocks, their encoding."""
    return record[0] if info.encoding is not None else str(getattr(info.dtype, "name", info.dtype))


def of_tensor(name: str, tensor: Any, column_blocks: int = 1, *, digest: bool = False) -> TensorFingerprint:
    """Return the fingerprint of one tensor in memory, of any library."""
    buffer = host_buffer(name, tensor)
    record = fingerprint_of(buffer, column_blocks=column_blocks)
    if not digest:
        return _of_record(record, None)
    elements = buffer.view(DType.uint8, (buffer.nbytes,)) if buffer.num_elements else b""
    return _of_record(record, None, f"sha256:{hashlib.sha256(elements).hexdigest()}", buffer.dtype.name)


def _of_record(
    record: _Record, file: str | None, digest: str | None = None, dtype: str | None = None
) -> TensorFingerprint:
    kind, shape, rows_per_block, column_blocks, blocks = record
    of = None if digest is None else dtype
    return TensorFingerprint(kind, tuple(shape), rows_per_block, column_blocks, blocks, file, digest, of)
