"""Deltas applied by several ranks to tensors of which each has its part: a delta compares blocks of whole tensors, so
that each tensor that changes is put together, one after the other, and each rank writes its part.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from max_weights._core import __version__, delta_header, paths_of_deltas, ranges_in_mesh, shown
from max_weights._delta_memory import Transaction
from max_weights._progress import progress_of
from max_weights._ranks.agreement import digest, require_alike
from max_weights._ranks.placements import refusal, splits_of
from max_weights._ranks.session import Session
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor

    from max_weights._delta_memory import Counts, MemoryTensors
    from max_weights._progress import Progress

__all__ = ["apply_in_group"]

_Ranges = list[list[tuple[int, int]]]
"""Of each axis, what a rank has of it."""
_Row = tuple[str, list[int], _Ranges]
"""Dtype and shape of a tensor, and what a rank has of it."""
_BYTES = torch.uint8


def apply_in_group(
    paths: Sequence[str],
    tensors: MemoryTensors,
    *,
    group: dist.ProcessGroup | None,
    timeout: float,
    progress: Progress | bool | None,
) -> Counts:
    """Make tensors what deltas say, on all ranks of a group, as one transaction; see `max_weights.delta.apply_into`.

    Args:
        paths: The deltas.
        tensors: The tensors of this rank, and its parts of distributed ones.
        group: The ranks; `None` for all.
        timeout: For how many seconds they wait for each other.
        progress: As of `apply_into`.

    Raises:
        RankError: on all ranks, what went wrong on one of them.
    """
    with Session(group, timeout, "apply_into") as session:
        error: Exception | None = None
        record: dict[str, Any] = {}
        try:
            paths = paths_of_deltas(paths)
            record = _record(paths, tensors)
        except Exception as failed:
            error = failed
        records = session.agree(record, error)
        require_alike(session, records, {"deltas": "has other deltas"})
        names = sorted({name for one in records for name in one["names"]})
        counts: Counts = (0, 0, 0)
        parts: list[_Part] = []
        transaction = Transaction(paths, tensors)
        try:
            parts = _parts(records, record["changes"])
            counts = transaction.apply(names, progress)
        except Exception as failed:
            error = failed
        report, finish = progress_of(progress)
        try:
            session.agree({}, error)
            own = {name[0]: tensor for name, tensor in tensors.ranks}
            return _sum(counts, _apply_to_parts(session, names, parts, own, transaction, report))
        except BaseException:
            transaction.undo()
            raise
        finally:
            finish()


def _apply_to_parts(
    session: Session,
    names: Sequence[str],
    parts: Sequence[_Part],
    tensors: Mapping[str, DTensor],
    transaction: Transaction,
    report: Progress | None,
) -> Counts:
    error: Exception | None = None
    counts: Counts = (0, 0, 0)
    done, total = 0, sum(part.bytes for part in parts)
    written: list[_Part] = []
    begun = 0
    for part in parts:
        local = _local(part, tensors)
        whole = part.gather(session, local, failed=error is not None)
        if whole is None:
            break  # a rank has failed, and says so below
        begun += 1
        try:
            if local is not None and local.numel():
                host = whole.cpu()
                own = transaction.apply_to([(name, host) for name in part.names], names)
                written.append(part)
                if own[0] or own[2]:
                    _write(local, host, part.ranges[session.rank])
                counts = _sum(counts, own)
            done += part.bytes
            if report is not None:
                report(done, total)
        except Exception as failed:
            error = failed
    if _has_failed(session, error is not None):
        for part in parts[:begun]:
            local = _local(part, tensors)
            whole = part.gather(session, local, failed=False)
            if whole is not None and local is not None and part in written:
                host = whole.cpu()
                transaction.undo_in([(name, host) for name in part.names])
                _write(local, host, part.ranges[session.rank])
    session.agree({}, error)
    return counts


def _local(part: _Part, tensors: Mapping[str, DTensor]) -> torch.Tensor | None:
    """Return what this rank has of a tensor."""
    tensor = next((tensors[name] for name in part.names if name in tensors), None)
    return None if tensor is None else tensor.to_local().detach()


def _has_failed(session: Session, failed: bool) -> bool:
    """Return whether any rank has failed."""
    own = torch.tensor([int(failed)], dtype=_BYTES, device=session.device)
    if session.size == 1:
        return failed
    arrived = [torch.empty_like(own) for _ in range(session.size)]
    session.wait(session.connection.all_gather(arrived, own))
    return any(int(one[0]) for one in arrived)


def _sum(one: Counts, other: Counts) -> Counts:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def _record(paths: Sequence[str], tensors: MemoryTensors) -> dict[str, Any]:
    """Return what this rank has, and which deltas it sees."""
    rows: dict[str, _Row] = {}
    tied: dict[str, list[str]] = {}
    for (name, *others), tensor in tensors.ranks:
        tied[name] = others
        why = refusal(tensor)
        if why is not None:
            raise ArgumentError(f"'{shown(name)}': {why}")
        ranges, own = _ranges(tensor), tensor.to_local().numel()
        if own != (expected := _elements(ranges)):
            raise ArgumentError(
                f"'{shown(name)}': this rank has {own:,} elements of it, and by its placements {expected:,}"
            )
        rows[name] = (str(tensor.dtype).removeprefix("torch."), list(tensor.shape), ranges)
    headers = [delta_header(path) for path in paths]
    changes = sorted({name for header in headers for name in (*header[3], *header[4])})
    deltas = digest((header[0], header[1], header[2], sorted(header[3])) for header in headers)
    versions = f"torch {torch.__version__}, max_weights {__version__}"
    alike = {"files": [], "weights": "", "versions": versions, "deltas": deltas}
    return {**alike, "names": tensors.names(), "rows": rows, "tied": tied, "changes": changes}


def _ranges(tensor: DTensor) -> _Ranges:
    """Return what this rank has of each axis."""
    mesh, sizes = tensor.device_mesh, list(tensor.device_mesh.shape)
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return [[] for _ in tensor.shape] or [[]]
    place = 0
    for size, number in zip(sizes, coordinate, strict=True):
        place = place * size + number
    return ranges_in_mesh(sizes, splits_of(tensor), place, list(tensor.shape))


class _Part:
    """A tensor of which ranks have parts."""

    def __init__(
        self, names: Sequence[str], dtype: torch.dtype, shape: Sequence[int], ranges: Sequence[_Ranges | None]
    ) -> None:
        name = names[0]
        self.names = list(names)
        """All names of it; several of one that is tied."""
        self._dtype, self._shape = dtype, list(shape)
        self.ranges: list[_Ranges] = [[[]] if of_rank is None else of_rank for of_rank in ranges]
        """By rank; one that has nothing of it has an axis without ranges."""
        self._sizes = [_elements(of_rank) * dtype.itemsize for of_rank in self.ranges]
        self.bytes = math.prod(shape) * dtype.itemsize
        different = {str(of_rank): size for of_rank, size in zip(self.ranges, self._sizes, strict=True)}
        if (there := sum(different.values())) != self.bytes:
            raise ArgumentError(
                f"'{shown(name)}': the ranks of this group have {there:,} of its {self.bytes:,} bytes: give the group "
                "of all ranks of its mesh"
            )

    def gather(self, session: Session, local: torch.Tensor | None, *, failed: bool) -> torch.Tensor | None:
        """Return the whole tensor; `None` if a rank has failed, which is sent with its part."""
        size, longest = self._sizes[session.rank], max(self._sizes)
        message = torch.zeros(longest + 1, dtype=_BYTES, device=session.device)
        message[longest] = int(failed)
        if local is not None and size and not failed:
            message[:size] = local.contiguous().reshape(-1).view(_BYTES).to(session.device)
        arrived = [message]
        if session.size > 1:
            arrived = [torch.empty_like(message) for _ in range(session.size)]
            session.wait(session.connection.all_gather(arrived, message))
        if any(int(one[longest]) for one in arrived):
            return None
        whole = torch.empty(self._shape, dtype=self._dtype, device=session.device)
        for one, length, ranges in zip(arrived, self._sizes, self.ranges, strict=True):
            if length:
                shape = [sum(stop - start for start, stop in axis) for axis in ranges]
                part = one[:length].clone().view(self._dtype).view(shape)
                for outer, inner in _boxes(ranges):
                    whole[outer] = part[inner]
        return whole


def _parts(records: Sequence[Mapping[str, Any]], changes: Sequence[str]) -> list[_Part]:
    """Return the tensors of which ranks have parts and that change, in one order on all of them."""
    parts = []
    changing = set(changes)
    tied: dict[str, set[str]] = {}
    for one in records:
        for name, others in one["tied"].items():
            tied.setdefault(name, set()).update(others)
    for name, others in sorted(tied.items()):
        if not changing & {name, *others}:
            continue
        rows = [one["rows"].get(name) for one in records]
        kinds = {(dtype, tuple(shape)) for dtype, shape, _ in filter(None, rows)}
        if len(kinds) > 1:
            raise ArgumentError(f"'{shown(name)}': ranks have it with other dtypes or shapes")
        dtype, shape = kinds.pop()
        parts.append(
            _Part(
                [name, *sorted(others)], getattr(torch, dtype), shape, [None if row is None else row[2] for row in rows]
            )
        )
    return parts


def _elements(ranges: _Ranges) -> int:
    return math.prod(sum(stop - start for start, stop in axis) for axis in ranges)


def _boxes(ranges: _Ranges) -> list[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """Return where each box of a part lies in the tensor, and where in the part."""
    axes = []
    for axis in ranges:
        at, boxes = 0, []
        for start, stop in axis:
            boxes.append((slice(start, stop), slice(at, at + stop - start)))
            at += stop - start
        axes.append(boxes)
    return [(tuple(outer for outer, _ in box), tuple(inner for _, inner in box)) for box in itertools.product(*axes)]


def _write(local: torch.Tensor, whole: torch.Tensor, ranges: _Ranges) -> None:
    """Put this rank's part of a tensor into its memory."""
    with torch.no_grad():
        for outer, inner in _boxes(ranges):
            local[inner].copy_(whole[outer])
