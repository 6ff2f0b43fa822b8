"""Deltas applied by several ranks to distributed tensors. A delta compares blocks of whole tensors, so each tensor that
changes is gathered, sequentially, and each rank writes its part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from max_weights._core import __version__, delta_header, escape, paths_of_deltas, ranges_in_mesh
from max_weights._delta_memory import Applying, MemoryTensors, memory_tensors
from max_weights._progress import progress_of
from max_weights._ranks.agreement import digest, require_alike
from max_weights._ranks.placements import refusal, splits_of
from max_weights._ranks.session import Session
from max_weights._transaction import Box, Transaction, local
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor

    from max_weights._delta_memory import Counts
    from max_weights._load_request import Rename
    from max_weights._progress import Progress

__all__ = ["apply_in_group"]

_BYTES = torch.uint8


def apply_in_group(
    paths: Sequence[str],
    tensors: object,
    rename: Rename | str | None,
    group: dist.ProcessGroup | None,
    rank_timeout: float,
    progress: Progress | bool | None,
) -> Counts:
    """Apply deltas to tensors on all ranks of a group, as one transaction; see `max_weights.delta.apply_into`.

    Raises:
        RankError: on all ranks, the error of one of them.
    """
    # Each rank reports its error to all before it restores its tensors.
    with Transaction() as transaction, Session(group, rank_timeout, "apply_into") as session:
        own = MemoryTensors([], [], [], may_be_tied=False)

        def record() -> dict[str, Any]:
            nonlocal own, paths
            paths = paths_of_deltas(paths)
            own = memory_tensors(tensors, rename, paths)
            return _record(paths, own)

        records = session.agreed(record)
        require_alike(session, records, {"deltas": "has other deltas"})
        applying = Applying(paths, own, {name for one in records for name in one["names"]}, transaction)
        parts: list[_SharedBox] = []

        def apply() -> dict[str, Any]:
            parts.extend(_shared(records, records[session.rank]["changes"]))
            applying.to_own(progress)
            return {}

        session.agreed(apply)
        report, finish = progress_of(progress)
        try:
            _apply_to_parts(session, parts, {name[0]: tensor for name, tensor in own.ranks}, applying, report)
        finally:
            finish()
        return applying.counts


def _apply_to_parts(
    session: Session,
    parts: Sequence[_SharedBox],
    tensors: Mapping[str, DTensor],
    applying: Applying,
    report: Progress | None,
) -> None:
    error: Exception | None = None
    done, total = 0, sum(part.bytes for part in parts)
    for part in parts:
        tensor = next((tensors[name] for name in part.names if name in tensors), None)
        own = None if tensor is None else local(tensor)
        whole = part.gather(session, own, failed=error is not None)
        if whole is None:
            break  # a rank has failed, and reports it below
        try:
            if own is not None and own.numel():
                host = whole.cpu()
                if applying.to(part.names, host):
                    applying.transaction.keep(own)
                    for outer, inner in part.boxes[session.rank].moves():
                        own[inner].copy_(host[outer])
            done += part.bytes
            if report is not None:
                report(done, total)
        except Exception as failed:
            error = failed
    session.agree({}, error)


def _record(paths: Sequence[str], tensors: MemoryTensors) -> dict[str, Any]:
    """Return this rank's boxes, and the deltas that it sees."""
    rows: dict[str, tuple[str, list[int], object]] = {}
    tied: dict[str, list[str]] = {}
    for (name, *others), tensor in tensors.ranks:
        tied[name] = others
        why = refusal(tensor)
        if why is not None:
            raise ArgumentError(f"'{escape(name)}': {why}", rule="argument.mesh")
        box, own = _box(tensor), local(tensor).numel()
        if own != box.elements:
            raise ArgumentError(
                f"'{escape(name)}': this rank has {own:,} elements of it, but its placements give {box.elements:,}",
                rule="argument.mesh",
            )
        rows[name] = (str(tensor.dtype).removeprefix("torch."), list(tensor.shape), box.axes)
    headers = [delta_header(path) for path in paths]
    changes = sorted({name for header in headers for name in (*header[3], *header[4])})
    deltas = digest((header[0], header[1], header[2], sorted(header[3])) for header in headers)
    versions = f"torch {torch.__version__}, max_weights {__version__}"
    alike = {"files": [], "weights": "", "versions": versions, "deltas": deltas}
    return {**alike, "names": tensors.names(), "rows": rows, "tied": tied, "changes": changes}


def _box(tensor: DTensor) -> Box:
    """Return this rank's box of a tensor."""
    mesh, sizes = tensor.device_mesh, list(tensor.device_mesh.shape)
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return Box.nothing(tensor.ndim)
    place = 0
    for size, number in zip(sizes, coordinate, strict=True):
        place = place * size + number
    return Box.of(ranges_in_mesh(sizes, splits_of(tensor), place, list(tensor.shape)))


class _SharedBox:
    """A tensor of which ranks have boxes."""

    def __init__(self, names: Sequence[str], dtype: torch.dtype, shape: Sequence[int], boxes: Sequence[Box]) -> None:
        self.names, self.boxes = names, boxes
        self._dtype, self._shape = dtype, list(shape)
        self._sizes = [box.elements * dtype.itemsize for box in boxes]
        self.bytes = math.prod(shape) * dtype.itemsize
        if (there := sum(dict(zip(boxes, self._sizes, strict=True)).values())) != self.bytes:
            raise ArgumentError(
                f"'{escape(names[0])}': the ranks of this group have {there:,} of its {self.bytes:,} bytes: give the "
                "group of all ranks of its mesh",
                rule="argument.mesh",
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
        for one, length, box in zip(arrived, self._sizes, self.boxes, strict=True):
            if length:
                part = one[:length].clone().view(self._dtype).view(box.shape)
                for outer, inner in box.moves():
                    whole[outer] = part[inner]
        return whole


def _shared(records: Sequence[Mapping[str, Any]], changes: Sequence[str]) -> list[_SharedBox]:
    """Return the tensors that change and of which ranks have boxes, in one order on all of them."""
    changing = set(changes)
    tied: dict[str, set[str]] = {}
    for one in records:
        for name, others in one["tied"].items():
            tied.setdefault(name, set()).update(others)
    shared = []
    for name, others in sorted(tied.items()):
        if changing & {name, *others}:
            rows = [one["rows"].get(name) for one in records]
            kinds = {(dtype, tuple(shape)) for dtype, shape, _ in filter(None, rows)}
            if len(kinds) > 1:
                raise ArgumentError(
                    f"'{escape(name)}': ranks have it with other dtypes or shapes", rule="argument.mesh"
                )
            dtype, shape = kinds.pop()
            boxes = [Box.nothing(len(shape)) if row is None else Box.of(row[2]) for row in rows]
            shared.append(_SharedBox([name, *sorted(others)], getattr(torch, dtype), shape, boxes))
    return shared
