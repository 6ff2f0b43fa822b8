"""Executes a plan: this rank reads its units ahead of the exchange, and writes its parts to their destinations."""

from __future__ import annotations

import struct
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist

from max_weights._ranks.failure import Failure

if TYPE_CHECKING:
    from max_weights._core import RankPlan, WeightInfo, WeightsNode
    from max_weights._dtype import DType
    from max_weights._ranks.session import Session
    from max_weights._read_options import ReadOptions
    from max_weights._transaction import Destination

__all__ = ["MoveTarget", "exchange", "rounds", "target_of"]

_READAHEAD = 2
"""The number of rounds to read ahead of the exchange, if there is memory for them."""
_ROUND = 64 << 20
"""About how many bytes are read for a round, and how many are sent and received."""
_STATUS = 64
"""The size of the header for every rank in each round: the first byte is 1 if the sender has failed."""
_IN_FLIGHT = 4
"""The most broadcasts in flight."""


class MoveTarget:
    """The destination of the bytes of this rank's part of a tensor.

    Args:
        size: The number of bytes.
        memory: The memory to write to directly, as bytes, or a function that allocates it for the first bytes; `None`
            if they have to be converted.
        finish: Called with all bytes of the part, if they were not written directly.
        is_new: Whether the memory is not shared: only into such memory may bytes arrive after an error.
    """

    def __init__(
        self,
        size: int,
        memory: torch.Tensor | Callable[[], torch.Tensor] | None,
        finish: Callable[[torch.Tensor], None] | None = None,
        *,
        is_new: bool = True,
    ) -> None:
        self._left = size
        self._size = size
        self._memory = memory
        self._finish = None if memory is not None else finish
        self._is_new = is_new

    @property
    def is_straight(self) -> bool:
        """Whether bytes may be received into the memory directly, without a later conversion."""
        return self._finish is None and self._is_new

    def bytes_on(self, device: torch.device) -> torch.Tensor:
        """Return the memory to write to."""
        if self._memory is None:
            self._memory = torch.empty(self._size, dtype=torch.uint8, device=device)
        elif not isinstance(self._memory, torch.Tensor):
            self._memory = self._memory()
        return self._memory

    def add(self, count: int) -> None:
        """Count bytes that have been written."""
        self._left -= count
        if self._left == 0 and self._finish is not None and isinstance(self._memory, torch.Tensor):
            memory, self._memory = self._memory, None
            self._finish(memory)


def target_of(
    memory: Destination,
    info: WeightInfo,
    size: int,
    device: torch.device,
    dtype: DType | None = None,
    *,
    is_new: bool = False,
) -> MoveTarget:
    """Return the destination of `size` bytes of a weight: this memory directly, or a conversion into it."""
    raw = memory.raw(info, device)
    store = None if raw is not None else lambda arrived: memory.store(arrived, info, dtype)
    return MoveTarget(size, raw, store, is_new=is_new)


class _Action(IntEnum):
    """The action of a record of a round, by the core's numbers."""

    READ = 0
    SEND = 1
    RECEIVE = 2
    KEEP = 3
    BROADCAST = 4
    TAKE = 5


class _Move(NamedTuple):
    """A record of a round: rows of bytes, their starts in the source and the destination, and the strides there."""

    action: int
    rank: int
    unit: int
    tensor: int
    start: int
    stride: int
    to: int
    to_stride: int
    rows: int
    size: int

    @property
    def bytes(self) -> int:
        """All of their bytes."""
        return self.rows * self.size


_RECORD = struct.Struct("<10q")


class _Round:
    """The records of this rank for one round, and the units that it has read for it."""

    def __init__(self, packed: bytes) -> None:
        self._of: dict[int, list[_Move]] = defaultdict(list)
        for move in map(_Move._make, _RECORD.iter_unpack(packed)):
            self._of[move.action].append(move)
        self.units: dict[int, torch.Tensor] = {}
        self.error: Exception | None = None

    def of(self, action: _Action) -> list[_Move]:
        """Return all records of an action."""
        return self._of[action]

    def by_rank(self, action: _Action, ranks: int) -> list[list[_Move]]:
        """Return the records of an action, by rank."""
        distributed_tensors: list[list[_Move]] = [[] for _ in range(ranks)]
        for move in self._of[action]:
            distributed_tensors[move.rank].append(move)
        return distributed_tensors


def exchange(
    plan: RankPlan,
    node: WeightsNode,
    targets: Sequence[MoveTarget | None],
    session: Session,
    read: ReadOptions,
    progress: Callable[[int], object] | None = None,
) -> None:
    """Read and exchange everything in a plan, and fill the targets.

    Args:
        plan: The plan, equal on all ranks.
        node: The tree to read from.
        targets: This rank's destination for each tensor of the plan.
        session: The ranks.
        read: How files are read.
        progress: Called with the number of bytes filled since the last call.

    Raises:
        RankError: a rank could not read, or is gone.
    """
    for _ in rounds(plan, node, targets, session, read, progress):
        pass


def rounds(
    plan: RankPlan,
    node: WeightsNode,
    targets: Sequence[MoveTarget | None],
    session: Session,
    read: ReadOptions,
    progress: Callable[[int], object] | None = None,
) -> Generator[int, None, None]:
    """Do the same round by round: a round runs when its number is requested."""
    runner = _Runner(plan, node, targets, session, read, progress)
    executor = ThreadPoolExecutor(1, "max_weights-read")
    most = read.host_bytes
    readahead = _READAHEAD if most is None else max(0, min(_READAHEAD, most // _ROUND - 2))
    try:
        waiting: deque[Future[_Round]] = deque()
        for number in range(plan.rounds):
            while len(waiting) <= readahead and number + len(waiting) < plan.rounds:
                waiting.append(executor.submit(runner.read, number + len(waiting)))
            runner.run(runner.result(waiting.popleft()))
            yield number
    finally:
        # After an error, the reads in flight are not needed.
        plan.end()
        executor.shutdown(wait=False, cancel_futures=True)


class _Runner:
    def __init__(
        self,
        plan: RankPlan,
        node: WeightsNode,
        targets: Sequence[MoveTarget | None],
        session: Session,
        read: ReadOptions,
        progress: Callable[[int], object] | None,
    ) -> None:
        self._plan, self._node, self._targets, self._session = plan, node, targets, session
        self._read, self._progress = read, progress
        self._device = session.device

    def read(self, number: int) -> _Round:
        """Read this rank's units for a round; runs readahead, on another thread."""
        rank, options = self._session.rank, self._read
        one = _Round(self._plan.round(number, rank))
        reads = one.of(_Action.READ)
        try:
            extents = self._plan.read(
                self._node,
                number,
                rank,
                backend=options.backend_for(),
                threads=options.threads,
                drop_cache=options.drop_cache,
                max_memory=options.host_bytes and options.host_bytes // 4,
            )
            if len(extents) != len(reads):
                raise ValueError(f"{len(reads)} units were to be read, and {len(extents)} were")
            for unit in reversed(reads):  # the extents of a unit are released once it is joined
                parts = [buffer.torch() for buffer in extents.pop()]
                one.units[unit.unit] = parts[0] if len(parts) == 1 else torch.cat(parts)
        except Exception as failed:
            one.error = failed
            one.units = {unit.unit: torch.zeros(unit.size, dtype=torch.uint8) for unit in reads}
        return one

    def result(self, future: Future[_Round]) -> _Round:
        """Wait for a round's units, and check for errors of other ranks meanwhile."""
        while True:
            try:
                return future.result(0.1)
            except FutureTimeoutError:
                if future.done():
                    raise
                self._session.check()

    def run(self, one: _Round) -> None:
        """Exchange one round."""
        session, device = self._session, self._device
        units = one.units if device.type == "cpu" else {n: unit.to(device) for n, unit in one.units.items()}
        if session.size == 1:
            if one.error is not None:
                raise one.error
            self._keep(one, units)
            return
        sends, receives = (one.by_rank(action, session.size) for action in (_Action.SEND, _Action.RECEIVE))
        to, of = ([_STATUS + sum(move.bytes for move in peer) for peer in peers] for peers in (sends, receives))
        message = torch.empty(sum(to), dtype=torch.uint8, device=device)
        for peer, own in zip(torch.split(message, to), sends, strict=True):
            peer[:_STATUS] = 0
            peer[0] = one.error is not None
            body = peer[_STATUS:]
            for move in own:
                _copy(body, units[move.unit], move)
        arrived = torch.empty(sum(of), dtype=torch.uint8, device=device)
        work = session.connection.all_to_all(arrived, message, of, to)
        if one.error is None:
            self._keep(one, units)
        session.wait(work)
        self._require_all(arrived, of, one.error)
        for peer, own in zip(torch.split(arrived, of), receives, strict=True):
            body = peer[_STATUS:]
            for move in own:
                self._put(body, move)
        self._broadcast(one, units)

    def _require_all(self, arrived: torch.Tensor, of: Sequence[int], error: Exception | None) -> None:
        """Raise the error of a rank that could not read for this round."""
        starts = [sum(of[:peer]) for peer in range(len(of))]
        if not bool(arrived[starts].any()):
            return
        session = self._session
        own = b"" if error is None else Failure.of(error, session.number, session.host).encoded()
        failures = [Failure.decoded(declared) for declared in session.gather(own) if declared]
        raise failures[0].error(session.note) from error

    def _broadcast(self, one: _Round, units: dict[int, torch.Tensor]) -> None:
        in_flight: deque[tuple[dist.Work, torch.Tensor, Sequence[_Move]]] = deque()
        session = self._session
        takes: dict[int, list[_Move]] = defaultdict(list)
        for move in one.of(_Action.TAKE):
            takes[move.unit].append(move)

        def finish() -> None:
            work, unit, own = in_flight.popleft()
            session.wait(work)
            for move in own:
                self._put(unit, move)

        for whole in one.of(_Action.BROADCAST):
            own = takes[whole.unit]
            straight = None if whole.rank == session.rank else self._straight(own, whole.size)
            if whole.rank == session.rank:
                unit = units[whole.unit]
            elif straight is not None:
                unit = straight
            else:
                unit = torch.empty(whole.size, dtype=torch.uint8, device=self._device)
            work = session.connection.broadcast(unit, whole.rank)
            if straight is not None:
                in_flight.append((work, unit, ()))
                self._count(own[0])
            else:
                in_flight.append((work, unit, own))
            if len(in_flight) >= _IN_FLIGHT:
                finish()
        while in_flight:
            finish()

    def _straight(self, own: Sequence[_Move], length: int) -> torch.Tensor | None:
        """Return the destination of a whole unit, if a tensor receives it in one piece without a later conversion."""
        if len(own) != 1 or own[0].rows != 1 or own[0].size != length:
            return None
        target, start = self._targets[own[0].tensor], own[0].to
        if target is None or not target.is_straight:
            return None
        memory = target.bytes_on(self._device)
        return memory[start : start + length] if memory.device == self._device else None

    def _keep(self, one: _Round, units: dict[int, torch.Tensor]) -> None:
        for move in one.of(_Action.KEEP):
            self._put(units[move.unit], move)

    def _put(self, source: torch.Tensor, move: _Move) -> None:
        target = self._targets[move.tensor]
        if target is not None:
            _copy(target.bytes_on(self._device), source, move)
            self._count(move)

    def _count(self, move: _Move) -> None:
        target = self._targets[move.tensor]
        if target is not None:
            target.add(move.bytes)
        if self._progress is not None:
            self._progress(move.bytes)


def _copy(to: torch.Tensor, source: torch.Tensor, move: _Move) -> None:
    """Copy rows of bytes."""
    place, at, size = (move.to, move.to_stride), (move.start, move.stride), move.size
    if move.rows == 1:
        to[place[0] : place[0] + size].copy_(source[at[0] : at[0] + size])
        return
    # Copy as larger integers if all offsets and sizes are multiples of their width: fewer elements to copy.
    for dtype, width in ((torch.int64, 8), (torch.int16, 2)):
        starts = (*place, *at, size, to.storage_offset(), source.storage_offset(), to.numel(), source.numel())
        if not any(number % width for number in starts):
            to, source = to.view(dtype), source.view(dtype)
            place, at, size = (place[0] // width, place[1] // width), (at[0] // width, at[1] // width), size // width
            break
    target = to.as_strided((move.rows, size), (place[1], 1), to.storage_offset() + place[0])
    target.copy_(source.as_strided((move.rows, size), (at[1], 1), source.storage_offset() + at[0]))
