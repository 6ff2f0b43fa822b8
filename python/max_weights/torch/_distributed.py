"""`load_into` on several ranks: what each has of the module's tensors, and how the bytes get there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from torch.distributed.tensor import DTensor

from max_weights._core import RankPlan, escape
from max_weights._group_options import require_spread
from max_weights._ranks.agreement import agreed_plan, digest, record_of, require_alike
from max_weights._ranks.exchange import exchange, target_of
from max_weights._ranks.placements import ABSENT, Mesh, Meshes, Split, splits_of, together
from max_weights._transaction import Box
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    from max_weights._load_request import ResolvedRequest
    from max_weights._ranks.session import Session
    from max_weights._read_options import ReadOptions
    from max_weights.sharding._by_name import ShardBox
    from max_weights.torch._slots import SlotFill

__all__ = ["CollectiveFill", "Spread"]

Spread = Literal["auto", "rank", "node", "world"]


class CollectiveFill:
    """The plan of all ranks for the tensors of a module: `fills`, by the new names of the weights of `request`."""

    def __init__(
        self, session: Session, request: ResolvedRequest, fills: Mapping[str, SlotFill], spread: Spread
    ) -> None:
        require_spread(spread)
        self._session = session
        self._request = request
        self._fills = [fills[name] for name in request.new_names]
        meshes = Meshes(session.ranks)
        self._sharings: list[int | None] = []
        rows = []
        for fill in self._fills:
            tensor = fill.slot.tensor
            splits: Sequence[Split] = ()
            number = None
            if isinstance(tensor, DTensor):
                try:
                    number = meshes.number(tensor)
                except ArgumentError as error:
                    raise ArgumentError(f"'{escape(fill.name)}': {error}", rule="argument.mesh") from None
                splits = splits_of(tensor)
            self._sharings.append(number)
            rows.append((fill.name, tuple(tensor.shape), str(tensor.dtype), number, splits))
        self._tables = meshes.tables
        self._spread = spread
        self._infos = list(request.infos)
        self.record = record_of(request.node, self._infos, placements=digest(rows), spread=spread, meshes=self._tables)

    def plan(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Make the plan, when all ranks have reported what they see.

        Raises:
            RankError: one of them sees something else.
        """
        session = self._session
        require_alike(
            session,
            records,
            {
                "placements": "has other names, shapes, dtypes or placements of tensors in the module",
                "spread": "was called with another spread=",
            },
        )

        def make() -> RankPlan:
            self._meshes = together([record["meshes"] for record in records])
            self._plan = self._plan_of(self._meshes, session.machines)
            self._take_parts()
            return self._plan

        agreed_plan(session, records, make)

    def _plan_of(self, meshes: Sequence[Mesh], nodes: Sequence[int]) -> RankPlan:
        request = self._request
        return RankPlan(request.node, request.names, self._sharings, meshes=meshes, part_of=[], nodes=nodes)

    def _take_parts(self) -> None:
        for fill, own in zip(self._fills, self._plan.parts(self._session.rank), strict=True):
            whole = fill.info.logical_shape
            fill.size, box = (0, Box.nothing(len(whole))) if own is None else (own[0], Box.of(own[1]))
            fill.shape, there = box.shape, list(fill.memory.local.shape)
            is_other = len(there) == len(fill.shape) and there != fill.shape
            if is_other or math.prod(fill.shape) != math.prod(there):
                raise ArgumentError(
                    f"'{escape(fill.name)}': this rank has a part of the shape {there}, and by the placements it is "
                    f"{fill.shape}",
                    rule="argument.mesh",
                )
            fill.cut = box.cut(whole) if fill.size else None

    @property
    def reads_alone(self) -> bool:
        """Whether each rank reads its own parts, and nothing is exchanged."""
        if self._spread != "auto":
            return self._spread == "rank"
        # What local ranks read of local files is in the page cache for all of them.
        return not any("://" in str(info.file) for info in self._infos)

    def cuts(self) -> dict[str, ShardBox | None]:
        """Return the cut of each weight that this rank has something of."""
        return {fill.name: fill.cut for fill in self._fills if fill.size}

    def run(self, read: ReadOptions, progress: Callable[[int], object] | None) -> None:
        """Read and exchange all that the plan says."""
        device = self._session.device
        targets = [
            target_of(fill.memory, fill.info, fill.size, device, fill.dtype, is_new=fill.is_new) if fill.size else None
            for fill in self._fills
        ]
        if not self._is_of_machines:
            exchange(self._plan, self._request.node, targets, self._session, read, progress)
            return
        session, ranks = self._session.of_this_machine()
        places = {rank: place for place, rank in enumerate(ranks)}
        meshes: list[Mesh] = [
            ([places.get(rank, ABSENT) for rank in of_mesh], sizes, splits) for of_mesh, sizes, splits in self._meshes
        ]
        plan = self._plan_of(meshes, [0] * len(ranks))
        with session:
            exchange(plan, self._request.node, targets, session, read, progress)

    @property
    def _is_of_machines(self) -> bool:
        """Whether the ranks of each machine read for each other, and for no other machine's."""
        if len(set(self._session.machines)) == 1:
            return False
        return self._spread == "node" or (self._spread == "auto" and "nccl" not in self._session.backend)
