"""`weights.load(shard=, group=)`: several ranks take their parts of a tree, each byte read by one of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from max_weights._buffer import Buffer
from max_weights._core import RankPlan, dequantize, shown
from max_weights._loading import check_device, converter, gc_paused
from max_weights._progress import progress_of
from max_weights._ranks.agreement import digest, record_of, require_alike
from max_weights._ranks.exchange import Target, exchange
from max_weights._ranks.session import Session
from max_weights.dtype import DType
from max_weights.errors import ArgumentError, RankError, UnsupportedError
from max_weights.sharding._by_name import Shard, shape_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch.distributed as dist

    from max_weights._core import WeightInfo, WeightsNode
    from max_weights._load_request import LoadRequest, ResolvedRequest
    from max_weights._progress import Progress
    from max_weights._read_options import ReadOptions
    from max_weights.devices import DeviceLike
    from max_weights.sharding._by_name import Cut

__all__ = ["load_in_group"]


def load_in_group(
    node: WeightsNode,
    request: LoadRequest,
    read: ReadOptions,
    refused: Mapping[str, object],
    group: dist.ProcessGroup,
    timeout: float,
    *,
    framework: str | None,
    device: DeviceLike | None,
    progress: Progress | bool | None,
) -> dict[str, Any]:
    """Load what the ranks of a group ask for, each its own part; see `WeightsNode.load`.

    Args:
        node: The node.
        request: What this rank loads.
        read: How files are read.
        refused: Options that are not for several ranks, with their values: an error, if one of them is set.
        group: The ranks.
        timeout: For how many seconds they wait for each other.
        framework: What tensors are.
        device: Where they go.
        progress: A function of (bytes done, bytes of all), or True for a bar.
    """
    check_device(device, None, framework)
    convert = converter(framework)
    if option := next((name for name, value in refused.items() if value is not None), None):
        raise ArgumentError(f"load(group=) has no {option}=: tensors get memory of their own")
    with Session(group, timeout, "load") as session:
        error: Exception | None = None
        resolved: ResolvedRequest | None = None
        record: dict[str, Any] = {}
        try:
            with gc_paused():
                resolved = request.resolve(node)
            shard = None if request.shard is None else [int(request.shard.rank), int(request.shard.world_size)]
            what = digest(zip(resolved.names, resolved.new_names, map(str, resolved.dtypes), strict=True))
            record = record_of(resolved.node, list(resolved.infos), what=what, shard=shard)
        except Exception as failed:
            error = failed
        records = session.agree(record, error)
        assert resolved is not None
        alike = {"what": "asks for other weights, names or dtypes"}
        require_alike(session, records, alike)
        plan: RankPlan | None = None
        parts: list[_Part] = []
        try:
            plan = _plan(session, node, request, resolved, records)
            rows = zip(resolved.infos, resolved.dtypes, resolved.parts, plan.parts(session.rank), strict=True)
            parts = [_Part(info, dtype, cut, 0 if own is None else own[0]) for info, dtype, cut, own in rows]
        except Exception as failed:
            error = failed
        hashes = session.agree({"plan": "" if plan is None else plan.hash().hex()}, error)
        assert plan is not None
        one_plan = {"plan": "has other strategies in its shard"}
        require_alike(session, [old | new for old, new in zip(records, hashes, strict=True)], one_plan)
        report, finish = progress_of(progress)
        done, total = [0], sum(part.size for part in parts)

        def note(size: int) -> None:
            done[0] += size
            if report is not None:
                report(done[0], total)

        try:
            targets = [part.target if part.size else None for part in parts]
            exchange(plan, resolved.node, targets, session, read, note)
            buffers = [part.finish() for part in parts]
            if device is not None:
                buffers = [buffer.to(str(device)) for buffer in buffers]
        except RankError:
            raise
        except Exception as failed:
            error = failed
        finally:
            finish()
        session.agree({}, error)
    with gc_paused():
        rest = zip(resolved.new_names, buffers, resolved.infos, strict=True)
        return {name: convert(buffer, info) for name, buffer, info in rest}


def _plan(
    session: Session,
    node: WeightsNode,
    request: LoadRequest,
    resolved: ResolvedRequest,
    records: Sequence[Mapping[str, Any]],
) -> RankPlan:
    """Return the plan of all ranks, of whose shards only the numbers differ."""
    shards = sorted({tuple(record["shard"]) for record in records if record["shard"] is not None})
    if shards and any(record["shard"] is None for record in records):
        raise ArgumentError("some ranks have a shard, and some have none: give each one its own, or none to all")
    sharings: list[list[Cut | None] | None] = [None] * len(resolved.names)
    part_of: list[int] = []
    if shards and request.shard is not None:
        strategies = request.shard.strategies
        of_all = [replace(request, shard=Shard(one[0], one[1], strategies)).resolve(node).parts for one in shards]
        sharings = [None if all(cut is None for cut in cuts) else list(cuts) for cuts in zip(*of_all, strict=True)]
        part_of = [shards.index(tuple(record["shard"])) for record in records]
    return RankPlan(resolved.node, resolved.names, sharings, meshes=[], part_of=part_of, nodes=session.machines)


class _Part:
    """What this rank has of one weight, and what becomes of it."""

    def __init__(self, info: WeightInfo, dtype: DType | None, cut: Cut | None, size: int) -> None:
        self.size = size
        self._info = info
        self._dtype = dtype
        self._shape = list(shape_of(cut, info.logical_shape))
        if isinstance(info.dtype, DType) and info.encoding is None:
            self.made = Buffer.zeros(self._shape, info.dtype)
        elif info.encoding is not None:
            self.made = Buffer.zeros(self._stored_shape(), DType.uint8)
        else:
            raise UnsupportedError(
                f"'{shown(info.name)}': its elements are of the type '{shown(str(info.dtype))}', which group= does not "
                "load; leave group out"
            )
        self.target = Target(size, self.made.view(DType.uint8, [size]).torch() if size else None)

    def _stored_shape(self) -> list[int]:
        encoding = self._info.encoding
        assert encoding is not None
        *rest, last = self._shape
        return [*rest, last // encoding.elements_per_block * encoding.block_size]

    def finish(self) -> Buffer:
        """Return the tensor as it was asked for."""
        info, dtype = self._info, self._dtype
        if dtype is None:
            return self.made
        if info.encoding is not None:
            return dequantize(self.made, info.encoding, dtype, self._shape)
        return self.made.astype(dtype)
