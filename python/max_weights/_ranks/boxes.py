"""Boxes of tensors that `torch.distributed.checkpoint` reads and writes; each rank has its own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from max_weights._core import RankPlan, escape
from max_weights._dtype import DType
from max_weights._ranks.agreement import agreed_plan, record_of, require_alike
from max_weights._ranks.exchange import exchange, target_of
from max_weights._read_options import ReadOptions
from max_weights._transaction import Box, Destination
from max_weights._typing import known
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch
    from torch.distributed.checkpoint.planner import WriteItem

    from max_weights._core import WeightInfo, WeightsNode
    from max_weights._ranks.exchange import MoveTarget
    from max_weights._ranks.session import Session
    from max_weights.sharding._by_name import ShardBox

__all__ = ["read_boxes", "tensors_of"]


def read_boxes(
    session: Session,
    node: WeightsNode,
    infos: Mapping[str, WeightInfo],
    boxes: Mapping[str, Sequence[tuple[Box, torch.Tensor]]],
) -> set[str]:
    """Fill tensors with boxes of weights, which differ on each rank.

    Returns:
        The names of weights that each rank has to read by itself: packed ones, and those of several boxes on one rank.

    Raises:
        RankError: on all ranks, the error of one of them.
    """

    def own() -> dict[str, Any]:
        axes = {name: of_name[0][0].axes if len(of_name) == 1 else None for name, of_name in boxes.items()}
        return record_of(node, list(infos.values()), boxes=axes)

    records = session.agreed(own)
    require_alike(session, records, {})
    named = {name for one in records for name in one["boxes"]}
    alone = {name for one in records for name, box in one["boxes"].items() if box is None}
    alone |= {name for name in named if not isinstance(infos[name].dtype, DType) or infos[name].encoding}
    names = [name for name in infos if name in named - alone]
    targets: list[MoveTarget | None] = []

    def make() -> RankPlan:
        cuts = [[_cut(one["boxes"].get(name), infos[name].logical_shape) for one in records] for name in names]
        plan = RankPlan(node, names, cuts, meshes=[], part_of=list(range(session.size)), nodes=session.machines)
        targets.extend(
            target_of(Destination(boxes[name][0][1]), infos[name], part[0], session.device)
            if part and part[0]
            else None
            for name, part in zip(names, plan.parts(session.rank), strict=True)
        )
        return plan

    exchange(agreed_plan(session, records, make), node, targets, session, ReadOptions())
    return alone


def _cut(axes: list[list[list[int]]] | None, shape: Sequence[int]) -> ShardBox | None:
    """Return a rank's box in the form of plans: an empty range for a rank that reads nothing."""
    return (Box.nothing(len(shape)) if axes is None else Box.of(axes)).cut(shape) if shape else None


def tensors_of(items: Iterable[WriteItem]) -> list[tuple[str, str, list[int]]]:
    """Return names, dtypes and shapes of the tensors that ranks write boxes of.

    Raises:
        ArgumentError: ranks have different tensors under one name, or no rank writes some elements (a ValueError).
    """
    tensors: dict[str, tuple[str, list[int]]] = {}
    elements: dict[str, int] = {}
    for item in items:
        name, data = item.index.fqn, known(item.tensor_data)
        try:
            own = (DType.from_torch(data.properties.dtype).name, list(data.size))
        except ValueError as error:
            raise ArgumentError(f"tensor '{escape(name)}': {error}", rule="argument.mesh") from None
        if tensors.setdefault(name, own) != own:
            raise ArgumentError(
                f"tensor '{escape(name)}': ranks have it as {tensors[name]} and as {own}", rule="argument.mesh"
            )
        elements[name] = elements.get(name, 0) + math.prod(data.chunk.sizes)
    for name, (_, shape) in tensors.items():
        if elements[name] != math.prod(shape):
            raise ArgumentError(
                f"tensor '{escape(name)}': ranks write {elements[name]:,} of its {math.prod(shape):,} elements",
                rule="argument.mesh",
            )
    return [(name, *tensors[name]) for name in sorted(tensors)]
