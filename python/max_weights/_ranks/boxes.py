"""What `torch.distributed.checkpoint` reads and writes: boxes of tensors, of which each rank has its own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from max_weights._core import RankPlan, shown
from max_weights._dtype import DType
from max_weights._ranks.agreement import record_of, require_alike
from max_weights._ranks.exchange import Target, exchange
from max_weights._ranks.session import Session
from max_weights._read_options import ReadOptions
from max_weights._typing import known
from max_weights.errors import ArgumentError, RankError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch.distributed as dist
    from torch.distributed.checkpoint.planner import WriteItem

    from max_weights._core import WeightInfo, WeightsNode
    from max_weights.sharding._by_name import Cut

__all__ = ["Box", "read_boxes", "tensors_of"]

Box = list[tuple[int, int]]
"""Where it begins along each axis, and how long it is there."""


def read_boxes(
    node: WeightsNode,
    infos: Mapping[str, WeightInfo],
    boxes: Mapping[str, Sequence[tuple[Box, torch.Tensor]]],
    group: dist.ProcessGroup,
    timeout: float,
) -> set[str]:
    """Fill tensors with boxes of weights, of which each rank of a group has its own.

    Args:
        node: The tree to read from.
        infos: Its weights by name.
        boxes: What this rank reads of each, and where it goes.
        group: The ranks.
        timeout: For how many seconds they wait for each other.

    Returns:
        The names of weights that each rank has to read by itself: those that are packed, or of which a rank has several
        boxes.

    Raises:
        RankError: on all ranks, what went wrong on one of them.
    """
    with Session(group, timeout, "WeightsReader") as session:
        error: Exception | None = None
        record: dict[str, Any] = {}
        try:
            own = {name: of_name[0][0] if len(of_name) == 1 else None for name, of_name in boxes.items()}
            record = record_of(node, list(infos.values()), boxes=own)
        except Exception as failed:
            error = failed
        records = session.agree(record, error)
        require_alike(session, records, {})
        wanted = {name for one in records for name in one["boxes"]}
        alone = {name for one in records for name, box in one["boxes"].items() if box is None}
        alone |= {name for name in wanted if not isinstance(infos[name].dtype, DType) or infos[name].encoding}
        names = [name for name in infos if name in wanted - alone]
        plan: RankPlan | None = None
        targets: list[Target | None] = []
        try:
            cuts = [[_cut(one["boxes"].get(name), infos[name]) for one in records] for name in names]
            ranks = list(range(session.size))
            plan = RankPlan(node, names, cuts, meshes=[], part_of=ranks, nodes=session.machines)
            parts = plan.parts(session.rank)
            targets = [
                _target(infos[name], boxes[name][0][1], part[0]) if part is not None and name in boxes else None
                for name, part in zip(names, parts, strict=True)
            ]
        except Exception as failed:
            error = failed
        hashes = session.agree({"plan": "" if plan is None else plan.hash().hex()}, error)
        require_alike(
            session,
            [old | new for old, new in zip(records, hashes, strict=True)],
            {"plan": "has another plan"},
        )
        try:
            exchange(known(plan), node, targets, session, ReadOptions())
        except RankError:
            raise
        except Exception as failed:
            error = failed
        session.agree({}, error)
    return alone


def _cut(box: Sequence[Sequence[int]] | None, info: WeightInfo) -> Cut | None:
    """Return a box as ranges of axes; an empty one for a rank that has none."""
    shape = list(info.logical_shape)
    if box is None:
        return [(axis, [(0, 0)]) for axis in range(len(shape))] or None
    if all(start == 0 and length == size for (start, length), size in zip(box, shape, strict=True)):
        return None
    return [(axis, [(start, start + length)]) for axis, (start, length) in enumerate(box)]


def _target(info: WeightInfo, tensor: torch.Tensor, size: int) -> Target | None:
    """Return where the bytes of a box go."""
    if not size or not math.prod(tensor.shape):
        return None
    if not isinstance(info.dtype, DType):
        raise UnsupportedError(
            f"'{shown(info.name)}': elements of the type '{shown(info.dtype)}' are not sent to ranks"
        )
    dtype = info.dtype.to_torch()
    if tensor.dtype == dtype and tensor.is_contiguous() and tensor.device.type == "cpu":
        return Target(size, tensor.detach().reshape(-1).view(torch.uint8))

    def store(raw: torch.Tensor) -> None:
        tensor.copy_(raw.view(dtype).view(tensor.shape))

    return Target(size, None, store)


def tensors_of(items: Iterable[WriteItem]) -> list[tuple[str, str, list[int]]]:
    """Return names, dtypes and shapes of the tensors of which ranks write boxes.

    Raises:
        ArgumentError: ranks have different ones under one name, or some elements no rank writes (a ValueError).
    """
    tensors: dict[str, tuple[str, list[int]]] = {}
    elements: dict[str, int] = {}
    for item in items:
        name, data = item.index.fqn, known(item.tensor_data)
        try:
            own = (DType.from_torch(data.properties.dtype).name, list(data.size))
        except ValueError as error:
            raise ArgumentError(f"tensor '{shown(name)}': {error}") from None
        if tensors.setdefault(name, own) != own:
            raise ArgumentError(f"tensor '{shown(name)}': ranks have it as {tensors[name]} and as {own}")
        elements[name] = elements.get(name, 0) + math.prod(data.chunk.sizes)
    for name, (_, shape) in tensors.items():
        if elements[name] != math.prod(shape):
            raise ArgumentError(
                f"tensor '{shown(name)}': ranks write {elements[name]:,} of its {math.prod(shape):,} elements"
            )
    return [(name, *tensors[name]) for name in sorted(tensors)]
