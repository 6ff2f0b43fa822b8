"""Checks replicated tensors before they are saved: replicas that differ would be written as a mixture of all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from max_weights._core import escape, fingerprint_of
from max_weights._ranks.agreement import digest
from max_weights._ranks.failure import Failure
from max_weights._ranks.placements import splits_of

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

    from max_weights._core import Buffer
    from max_weights._ranks.session import Session

__all__ = ["require_same_replicas", "shared_part"]

_HASH_BYTES = 16
_NAMED = 5
"""How many ranks an error lists."""


def shared_part(tensor: DTensor | None, sharing: int | None, size: int) -> str | None:
    """Return which part of a tensor a rank has; `None` if no other rank has it.

    Args:
        tensor: The distributed tensor, or `None` for a plain one, which each rank has whole.
        sharing: The number of its mesh and placements; `None` if every rank has all of it.
        size: The number of ranks that save.
    """
    if tensor is None or sharing is None:
        return None if size == 1 else "all"
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return None
    own = [place for place, (axis, _) in zip(coordinate, splits_of(tensor), strict=True) if axis is not None]
    if len(own) == len(coordinate) and mesh.size() == size:
        return None
    return f"{sharing}/{own}"


def require_same_replicas(session: Session, replicas: Iterable[tuple[str, str, Buffer]]) -> None:
    """Raise an error on all ranks if two of them have other elements of the same part of a tensor.

    Replicas are names, parts (equal on the ranks that have the same part), and elements. One hash per part is
    exchanged, and those of single tensors only if these differ.
    """
    hashes: dict[str, list[tuple[str, str]]] = {}

    def own() -> dict[str, str]:
        for name, part, elements in replicas:
            hashes.setdefault(part, []).append((name, _hash(elements)))
        return {part: digest(rows) for part, rows in hashes.items()}

    records = session.agreed(own)
    parts = {part for record in records for part in record}
    differing = {part for part in parts if len({record[part] for record in records if part in record}) > 1}
    if not differing:
        return
    distributed_tensors = session.agree({part: hashes[part] for part in sorted(differing & set(hashes))})
    for part in sorted(differing):
        having = [rank for rank, record in enumerate(distributed_tensors) if part in record]
        for number, (name, own) in enumerate(distributed_tensors[having[0]][part]):
            others = [rank for rank in having if distributed_tensors[rank][part][number][1] != own]
            if others:
                raise _failure(session, name, others, having[0]).error(session.note)


def _failure(session: Session, name: str, others: list[int], first: int) -> Failure:
    more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    ranks = ", ".join(map(str, others[:_NAMED])) + more
    which = f" (differing ranks: {ranks})" if len(others) > 1 else ""
    why = (
        f"tensor '{escape(name)}' has other values than on rank {first}{which}, and each rank would write a range of "
        "it: give all ranks the same values, or save what one of them has"
    )
    return Failure(others[0], session.host_of(others[0]), why, tensor=name)


def _hash(elements: Buffer) -> str:
    """Return a hash of elements, which are copied to the host if they are not there."""
    own = elements if elements.is_host else elements.to("cpu")
    blocks = fingerprint_of(own if own.is_contiguous else own.contiguous())[4]
    return hashlib.blake2b(blocks, digest_size=_HASH_BYTES).hexdigest()
