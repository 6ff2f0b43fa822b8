"""The part of a DTensor that each rank has: meshes and placements in the form of the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from max_weights.errors import ArgumentError

__all__ = ["ABSENT", "Mesh", "Meshes", "refusal", "splits_of", "together"]

ABSENT = 2**32 - 1
"""Stands in a mesh for a rank that does not take part in the load."""

Split = tuple[int | None, int]
"""The axis that one dimension of a mesh splits, or `None`; and the split factor of a strided shard, else 0."""
Mesh = tuple[list[int], list[int], list[Split]]
"""Ranks, sizes, and how each dimension splits."""


def refusal(tensor: DTensor) -> str | None:
    """Return why the values of a file cannot be put into a distributed tensor, or `None` if they can."""
    for placement in tensor.placements:
        if isinstance(placement, Partial):
            return (
                f"it is placed as {placement}: its values are sums over ranks, which no file has; redistribute it to "
                "Replicate() or Shard() first"
            )
        if _split(placement) is None:
            return f"it is placed as {placement}, which this version does not know"
    return None


def splits_of(tensor: DTensor) -> list[Split]:
    """Return how each dimension of the mesh splits a tensor that is not refused."""
    return [_split(placement) or (None, 0) for placement in tensor.placements]


def _split(placement: Any) -> Split | None:
    if isinstance(placement, Replicate):
        return None, 0
    # FSDP2 over tensor parallelism has shards of shards; their class is not public, and no subclass of Shard.
    if type(placement).__name__ == "_StridedShard":
        return placement.dim, placement.split_factor
    return (placement.dim, 0) if isinstance(placement, Shard) else None


@dataclass
class Meshes:
    """The different meshes of the tensors of one process."""

    ranks: Sequence[int]
    """The global ranks of the group, by their rank there."""
    tables: list[Mesh] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)
    _known: dict[tuple[int, tuple[Split, ...]], tuple[object, int | None]] = field(default_factory=dict)
    """By the identity of torch's mesh, which is stored with the number: most tensors share a mesh seen before."""

    def number(self, tensor: DTensor) -> int | None:
        """Return the number of the mesh and placements of a tensor; `None` if every rank has all of it.

        Raises:
            ArgumentError: ranks of the mesh are not in the group (a ValueError).
        """
        mesh, splits = tensor.device_mesh, splits_of(tensor)
        key = (id(mesh), tuple(splits))
        if key not in self._known:
            self._known[key] = (mesh, self._looked_at(mesh.mesh, splits))
        return self._known[key][1]

    def _looked_at(self, mesh: torch.Tensor, splits: list[Split]) -> int | None:
        places = {rank: place for place, rank in enumerate(self.ranks)}
        ranks = [places.get(rank, ABSENT) for rank in mesh.flatten().tolist()]
        if ABSENT in ranks:
            outside = sorted(set(mesh.flatten().tolist()) - set(places))
            raise ArgumentError(f"its mesh has the ranks {outside}: give a group that has them", rule="argument.mesh")
        if all(axis is None for axis, _ in splits) and len(ranks) == len(self.ranks):
            return None
        table: Mesh = (ranks, list(mesh.shape), splits)
        if (key := repr(table)) not in self._numbers:
            self._numbers[key] = len(self.tables)
            self.tables.append(table)
        return self._numbers[key]


def together(tables: Sequence[Sequence[Mesh]]) -> list[Mesh]:
    """Merge the meshes of all ranks into one list: the meshes that ranks have under one number are one mesh.

    A rank sees only its part of a larger mesh, as with tensor parallelism within a replica. These parts are joined as
    replicas, each of which has the whole tensor.

    Raises:
        ArgumentError: they are of different sizes, or overlap (a ValueError).
    """
    meshes: list[Mesh] = []
    for distributed_tensors in zip(*tables, strict=True):
        # Tuples became lists when they were sent.
        plain: list[Mesh] = [
            (list(ranks), list(sizes), [(axis, factor) for axis, factor in splits])
            for ranks, sizes, splits in distributed_tensors
        ]
        parts = {repr(one): one for one in plain}
        first, *others = parts.values()
        if any(one[1:] != first[1:] for one in others):
            raise ArgumentError(
                "ranks have meshes of different sizes, or other placements, for the same tensor", rule="argument.mesh"
            )
        if not others:
            meshes.append(first)
            continue
        ranks = [rank for one in parts.values() for rank in one[0]]
        if len(set(ranks)) != len(ranks):
            raise ArgumentError("ranks have meshes that overlap for the same tensor", rule="argument.mesh")
        splits: list[Split] = [(None, 0), *first[2]]
        meshes.append((ranks, [len(parts), *first[1]], splits))
    return meshes
