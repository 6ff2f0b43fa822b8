"""Checks before ranks load together: what has to be equal on all, and the error that names a rank that differs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from max_weights._core import __version__, file_identities
from max_weights._ranks.failure import Failure

if TYPE_CHECKING:
    from max_weights._core import RankPlan, RankSave, WeightInfo, WeightsNode
    from max_weights._ranks.session import Session

__all__ = ["agreed_plan", "digest", "record_of", "require_alike"]

_Plan = TypeVar("_Plan", bound="RankPlan | RankSave")


def digest(rows: Iterable[object]) -> str:
    """Return a hash of rows of plain values."""
    hashed = hashlib.sha256()
    for row in rows:
        hashed.update(json.dumps(row, default=str).encode() + b"\n")
    return hashed.hexdigest()


def record_of(node: WeightsNode, infos: Sequence[WeightInfo], **more: object) -> dict[str, Any]:
    """Return the view of this rank: its files and weights, its versions, and the named values that have to be equal."""
    weights = ([info.name, str(info.dtype), info.shape, info.offset] for info in infos)
    versions = f"torch {torch.__version__}, max_weights {__version__}"
    return {"files": file_identities(node), "weights": digest(weights), "versions": versions, **more}


def require_alike(session: Session, records: Sequence[Mapping[str, Any]], alike: Mapping[str, str]) -> None:
    """Raise an error on all ranks if one of them sees other files or weights, or has other values for `alike`.

    The keys of `alike` are those names, its values the message about a rank that differs.
    """
    first, machines = records[0], session.machines
    for rank, record in enumerate(records):
        same_machine = machines[rank] == machines[0]
        why = _other_files(first["files"], record["files"], same_machine)
        if why is None and record["weights"] != first["weights"]:
            why = "sees other weights than rank 0: names, dtypes, shapes or places in the files differ"
        for key, text in alike.items():
            if why is None and record.get(key) != first.get(key):
                why = f"{text} than rank 0"
        if why is not None:
            if record["versions"] != first["versions"]:
                why += f" (it has {record['versions']}, rank 0 has {first['versions']})"
            raise Failure(rank, session.host_of(rank), why).error(session.note)


def agreed_plan(
    session: Session, records: Sequence[Mapping[str, Any]], make: Callable[[], _Plan], why: str = "has another plan"
) -> _Plan:
    """Make a plan on each rank from the records of all, and check that the plans are equal."""
    made: list[_Plan] = []

    def own() -> dict[str, Any]:
        made.append(make())
        return {"plan": made[0].hash().hex()}

    plans = session.agreed(own)
    require_alike(session, [{**old, **new} for old, new in zip(records, plans, strict=True)], {"plan": why})
    return made[0]


def _other_files(first: Sequence[Sequence[Any]], other: Sequence[Sequence[Any]], same_machine: bool) -> str | None:
    """Describe how the files of another rank differ. A copy on another machine may have another time."""
    if len(first) != len(other):
        return f"sees {len(other)} files, and rank 0 sees {len(first)}"
    for number, ((size, _, mark), (other_size, is_object, other_mark)) in enumerate(zip(first, other, strict=True)):
        name = f"file {number + 1} of {len(first)}"
        if size != other_size:
            return f"sees another file than rank 0: {name} has {other_size:,} bytes there, and {size:,} on rank 0"
        if is_object and mark != other_mark:
            return f"sees another object than rank 0: {name} has another ETag or version"
        if same_machine and mark != other_mark:
            return f"sees another file than rank 0: {name} was changed at another time"
    return None
