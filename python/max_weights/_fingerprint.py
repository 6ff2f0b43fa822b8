"""Fingerprints of weights, which survive layouts: `max_weights.fingerprint`. docs/fingerprint.md specifies them."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from max_weights._checkpoints import opened
from max_weights._core import (
    Buffer,
    WeightsNode,
    digests_of,
    fingerprint_of,
    fingerprints_of,
    infos,
    keys_of_content,
)
from max_weights._dtype import DType
from max_weights._fingerprint_cache import fingerprint_cache
from max_weights._fingerprint_record import Fingerprint, TensorFingerprint
from max_weights._progress import progress_of
from max_weights._selection import selected
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    from max_weights._buffer import DLPackArray
    from max_weights._core import WeightInfo
    from max_weights._progress import Progress
    from max_weights._selection import Select

__all__ = ["fingerprint", "of_tensor", "on_host"]


def fingerprint(
    source: WeightsNode | str | os.PathLike[str] | Mapping[str, DLPackArray] | DLPackArray,
    select: Select | None = None,
    *,
    column_blocks: int = 1,
    digests: bool = False,
    threads: int | None = None,
    progress: Progress | bool | None = None,
) -> Fingerprint:
    """Return the fingerprint of all weights at and below a node, or of tensors in memory.

    A tensor has the same fingerprint in every file, format and memory, and as every dtype that holds its values
    exactly: a bfloat16 as float32, for example. It consists of sums over blocks of rows: where two differ, `compare`
    says in which rows, and the parts of a tensor that several ranks have add up to the whole.

    Args:
        source: A tree of weights, a branch of it, or a weight; the path of a checkpoint; or {name: tensor}, such as the
            state dict of a module.
            Tensors on GPUs are copied to the host, one at a time.
        select: Which; see `WeightsNode.load`.
        column_blocks: Parts, at most 64, that the columns of each block of rows are in, for tensors that are cut there.
        digests: Also take the SHA-256 of each tensor, as `max_weights.digests` does, against somebody who makes tensors
            with the same sums; the bytes are read twice.
        threads: How many; see `WeightsNode.load`. Not for tensors in memory.
        progress: A function of (bytes done, bytes of all), or True for a bar. Not for tensors in memory.

    Raises:
        WeightNotFoundError: `select` names what is not there.
        FileChangedError: a file was truncated meanwhile.
        ArgumentError: `column_blocks` is not 1 to 64, or an option has no effect (a ValueError).
    """
    if isinstance(source, (str, os.PathLike)):
        with opened(source, "fingerprint") as weights:
            return fingerprint(
                weights, select, column_blocks=column_blocks, digests=digests, threads=threads, progress=progress
            )
    if not isinstance(source, WeightsNode):
        if not isinstance(source, Mapping):
            raise ArgumentError(
                f"a fingerprint is taken of weights, or of {{name: tensor}}, not of a {type(source).__name__}: "
                "of a module give module.state_dict()"
            )
        if option := "threads" if threads is not None else "progress" if progress is not None else None:
            raise ArgumentError(
                f"{option} has no effect on tensors in memory, which are hashed one after the other: leave it out"
            )
        names = list(source) if select is None else selected(list(source), select)
        return Fingerprint({name: of_tensor(source[name], column_blocks, digest=digests) for name in names})
    listed = {info.name: info for info in infos(source)}
    names = list(listed) if select is None else selected(list(listed), select)
    records = _records(source, names, column_blocks, threads, progress)
    of_names = _digests(source, names, threads) if digests else {}
    return Fingerprint(
        {
            name: _of_record(
                records[name], str(listed[name].file), of_names.get(name), _dtype(listed[name], records[name])
            )
            for name in names
        }
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


def _digests(node: WeightsNode, names: list[str], threads: int | None) -> dict[str, str]:
    return _once(("digest",), node, names, lambda missing: digests_of(node, missing, threads=threads), len)


_T = TypeVar("_T")


def _once(
    what: tuple[object, ...],
    node: WeightsNode,
    names: list[str],
    compute: Callable[[list[str]], list[_T]],
    size: Callable[[_T], int],
) -> dict[str, _T]:
    """What is computed of weights, or was; of files that stayed what they were meanwhile it is kept."""
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
    """The name of what a digest is of: the kind of packed blocks is theirs."""
    return record[0] if info.encoding is not None else str(getattr(info.dtype, "name", info.dtype))


def of_tensor(tensor: Any, column_blocks: int = 1, *, digest: bool = False) -> TensorFingerprint:
    """Return the fingerprint of one tensor in memory."""
    buffer = on_host(tensor)
    record = fingerprint_of(buffer, column_blocks=column_blocks)
    if not digest:
        return _of_record(record, None)
    elements = buffer.contiguous().view(DType.uint8, (buffer.nbytes,)) if buffer.num_elements else b""
    return _of_record(record, None, f"sha256:{hashlib.sha256(elements).hexdigest()}", buffer.dtype.name)


def on_host(tensor: Any) -> Buffer:
    """Return a tensor of any library as a Buffer of the host."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        # A view that torch conjugates or negates as it reads: its memory holds other values.
        tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    buffer = tensor if isinstance(tensor, Buffer) else Buffer.from_dlpack(tensor)
    return buffer if buffer.device.label == "cpu" else buffer.to("cpu")


def _of_record(
    record: _Record, file: str | None, digest: str | None = None, dtype: str | None = None
) -> TensorFingerprint:
    kind, shape, rows_per_block, column_blocks, blocks = record
    of = None if digest is None else dtype
    return TensorFingerprint(kind, tuple(shape), rows_per_block, column_blocks, blocks, file, digest, of)
