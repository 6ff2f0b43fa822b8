"""`weights.load(shard=, group=)`: ranks load their parts of a tree together, each byte read by one of them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from max_weights._buffer import Buffer
from max_weights._core import RankPlan, dequantize, escape
from max_weights._dtype import DType
from max_weights._garbage import gc_paused
from max_weights._loading import check_device, converter
from max_weights._progress import progress_of
from max_weights._ranks.agreement import agreed_plan, digest, record_of, require_alike
from max_weights._ranks.exchange import MoveTarget, exchange
from max_weights._ranks.session import Session
from max_weights.errors import ArgumentError, UnsupportedError
from max_weights.sharding._by_name import Shard, shape_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    import torch.distributed as dist

    from max_weights._core import WeightInfo, WeightsNode
    from max_weights._devices import DeviceLike
    from max_weights._load_request import LoadRequest, ResolvedRequest
    from max_weights._progress import Progress
    from max_weights._read_options import ReadOptions
    from max_weights.sharding._by_name import ShardBox

__all__ = ["RankBox", "agreed", "load_in_group", "refuse_options"]

_ROUNDS = 16
"""`max_memory` is divided by this for the bytes that a rank reads in a round: three such reads are in memory, and what
arrives in a round takes up to four, twice."""
_UNIT = 8 << 20


def load_in_group(
    node: WeightsNode,
    request: LoadRequest,
    read: ReadOptions,
    refused: Mapping[str, bool],
    group: dist.ProcessGroup,
    timeout: float,
    *,
    framework: str | None,
    device: DeviceLike | None,
    progress: Progress | bool | None,
) -> dict[str, Any]:
    """Load the weights of a group of ranks, each its part; see `WeightsNode.load`.

    Args:
        node: The node.
        request: This rank's request.
        read: How files are read.
        refused: Options that need a single rank, and whether they are set: an error, if one of them is.
        group: The ranks.
        timeout: For how many seconds they wait for each other.
        framework: The type of tensors.
        device: Where they go.
        progress: A function of (bytes done, total bytes), or True for a bar.
    """
    check_device(device, None, framework)
    convert = converter(framework)
    refuse_options("load", refused)
    with Session(group, timeout, "load") as session:
        resolved, plan, parts = agreed(session, node, request)
        report, finish = progress_of(progress)
        done, total = [0], sum(part.size for part in parts)
        buffers: list[Buffer] = []

        def note(size: int) -> None:
            done[0] += size
            if report is not None:
                report(done[0], total)

        def run() -> dict[str, Any]:
            exchange(plan, resolved.node, [part.target for part in parts], session, read, note)
            made = [part.finish() for part in parts]
            buffers.extend(made if device is None else [buffer.to(str(device)) for buffer in made])
            return {}

        try:
            session.agreed(run)
        finally:
            finish()
    with gc_paused():
        rest = zip(resolved.new_names, buffers, resolved.infos, strict=True)
        return {name: convert(buffer, info) for name, buffer, info in rest}


def refuse_options(call: str, options: Mapping[str, bool]) -> None:
    """Raise an error if one of these options is set, which need a single rank."""
    if option := next((name for name, is_set in options.items() if is_set), None):
        raise ArgumentError(
            f"{call}(group=) has no {option}=: tensors are copies, made as they arrive", rule="argument.conflict"
        )


def agreed(
    session: Session, node: WeightsNode, request: LoadRequest, most: int | None = None
) -> tuple[ResolvedRequest, RankPlan, list[RankBox]]:
    """Return the plan of all ranks, and this rank's parts.

    Args:
        session: The ranks.
        node: The node.
        request: This rank's request.
        most: How many bytes of memory each rank may use at a time; `None` for the default.

    Raises:
        RankError: one of them has another request.
    """
    made: list[ResolvedRequest] = []

    def own() -> dict[str, Any]:
        with gc_paused():
            made.append(request.resolve(node))
        shard = None if request.shard is None else [int(request.shard.rank), int(request.shard.world_size)]
        what = digest(zip(made[0].names, made[0].new_names, map(str, made[0].dtypes), strict=True))
        return record_of(made[0].node, list(made[0].infos), what=what, shard=shard, most=most)

    records = session.agreed(own)
    resolved = made[0]
    alike = {"what": "asks for other weights, names or dtypes", "most": "has another max_memory"}
    require_alike(session, records, alike)
    parts: list[RankBox] = []

    def make() -> RankPlan:
        plan = _plan(session, node, request, resolved, records, most)
        rows = zip(resolved.infos, resolved.dtypes, resolved.parts, plan.parts(session.rank), strict=True)
        parts.extend(RankBox(info, dtype, cut, 0 if part is None else part[0]) for info, dtype, cut, part in rows)
        if most is not None:
            _require_fit(parts, most)
        return plan

    plan = agreed_plan(session, records, make, "has other strategies in its shard")
    return resolved, plan, parts


def _require_fit(parts: Sequence[RankBox], most: int) -> None:
    """Raise an error if a single part takes too much memory."""
    for part in parts:
        if part.memory > most // 2:
            raise ArgumentError(
                f"max_memory: {most:,} bytes are too few for '{escape(part.name)}', of which {part.memory:,} bytes "
                "come to this rank: several ranks need twice as much as the largest",
                rule="argument.memory",
            )


def _plan(
    session: Session,
    node: WeightsNode,
    request: LoadRequest,
    resolved: ResolvedRequest,
    records: Sequence[Mapping[str, Any]],
    most: int | None,
) -> RankPlan:
    """Return the plan of all ranks, whose shards differ only in the rank."""
    shards = sorted({tuple(record["shard"]) for record in records if record["shard"] is not None})
    if shards and any(record["shard"] is None for record in records):
        raise ArgumentError(
            "some ranks have a shard, and some have none: give each one its own, or none to all", rule="argument.mesh"
        )
    sharings: list[list[ShardBox | None] | None] = [None] * len(resolved.names)
    part_of: list[int] = []
    if shards and request.shard is not None:
        strategies = request.shard.strategies
        of_all = [replace(request, shard=Shard(one[0], one[1], strategies)).resolve(node).parts for one in shards]
        sharings = [None if all(cut is None for cut in cuts) else list(cuts) for cuts in zip(*of_all, strict=True)]
        part_of = [shards.index(tuple(record["shard"])) for record in records]
    return RankPlan(
        resolved.node,
        resolved.names,
        sharings,
        meshes=[],
        part_of=part_of,
        nodes=session.machines,
        unit_bytes=None if most is None else min(most // _ROUNDS, _UNIT),
        round_bytes=None if most is None else most // _ROUNDS,
    )


class RankBox:
    """This rank's part of one weight, and its destination."""

    def __init__(self, info: WeightInfo, dtype: DType | None, cut: ShardBox | None, size: int) -> None:
        self.name = info.name
        self.size = size
        self._info = info
        self._dtype = dtype
        self._shape = list(shape_of(cut, info.logical_shape))
        if not isinstance(info.dtype, DType) and info.encoding is None:
            raise UnsupportedError(
                f"'{escape(info.name)}': its elements are of the type '{escape(str(info.dtype))}', which group= does "
                "not load; omit group",
                rule="unsupported.dtype",
            )
        self._made: Buffer | None = None
        self.target = MoveTarget(size, self._bytes) if size else None

    @property
    def memory(self) -> int:
        """How many bytes it takes, in the form of the file and in the requested form."""
        return self.size + (0 if self._dtype is None else math.prod(self._shape) * self._dtype.size_in_bytes)

    def _memory(self) -> Buffer:
        """Return the destination of the bytes of the file."""
        if self._made is None:
            info = self._info
            if info.encoding is not None:
                *rest, last = self._shape
                stored = [*rest, last // info.encoding.elements_per_block * info.encoding.block_size]
                self._made = Buffer._any(stored, DType.uint8)
            else:
                if not isinstance(info.dtype, DType):
                    raise TypeError(f"'{escape(info.name)}' has the type '{escape(info.dtype)}'")  # refused before
                self._made = Buffer._any(self._shape, info.dtype)
        return self._made

    def _bytes(self) -> torch.Tensor:
        return self._memory().view(DType.uint8, [self.size]).torch()

    def finish(self) -> Buffer:
        """Return the tensor in the requested form; the part releases it."""
        info, dtype, made = self._info, self._dtype, self._memory()
        self._made = self.target = None
        if dtype is None:
            return made
        if info.encoding is not None:
            return dequantize(made, info.encoding, dtype, self._shape)
        return made.astype(dtype)
