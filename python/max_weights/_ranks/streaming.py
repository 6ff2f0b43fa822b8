"""`weights.stream(shard=, group=)`: ranks stream their parts of a tree together, in bounded memory."""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from max_weights._loading import check_device, converter
from max_weights._progress import progress_of
from max_weights._ranks.exchange import rounds
from max_weights._ranks.loading import agreed, refuse_options
from max_weights._ranks.session import Session
from max_weights._streaming import WeightStream
from max_weights._typing import known

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from types import TracebackType

    import torch.distributed as dist

    from max_weights._buffer import Buffer
    from max_weights._core import WeightsNode
    from max_weights._devices import DeviceLike
    from max_weights._load_request import LoadRequest
    from max_weights._loading import Convert
    from max_weights._progress import Progress
    from max_weights._ranks.loading import RankBox
    from max_weights._read_options import ReadOptions

__all__ = ["stream_in_group"]

_MAX = 1 << 30
"""The memory budget of a rank, in bytes; at least twice the size of the largest weight."""


def stream_in_group(
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
) -> WeightStream[Any]:
    """Stream the weights of a group of ranks, each its part; see `WeightsNode.stream`.

    Args:
        node: The node.
        request: This rank's request.
        read: How files are read.
        refused: Options that need a single rank, and whether they are set: an error, if one of them is.
        group: The ranks.
        timeout: For how many seconds they wait for each other.
        framework: The type of tensors.
        device: Where they go.
        progress: A function of (bytes streamed, total bytes), or True for a bar.
    """
    check_device(device, None, framework)
    convert = converter(framework)
    refuse_options("stream", refused)
    return _RankStream(_RankTensors(node, request, read, group, timeout, device), convert, progress)


class _RankStream(WeightStream[Any]):
    """A stream of one of several ranks; an error within its `with` block is raised on all of them."""

    def __init__(self, tensors: _RankTensors, convert: Convert, progress: Progress | bool | None) -> None:
        self._of_rank = tensors
        resolved = tensors.resolved
        super().__init__(tensors, resolved.new_names, resolved.infos, convert, progress_of(progress))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._of_rank.fail(error)
        self.close()


class _RankTensors:
    """An iterator of (position, tensor): the weights of a request in one order on all ranks, of each this rank's part.

    A round of the exchange runs when a rank requests a weight that has not arrived, and waits for the other ranks. A
    weight is returned after the round in which all ranks have it. So ranks that stop at the same weight have run the
    same rounds, and none waits for another.

    Args:
        node: The node.
        request: This rank's request.
        read: How files are read.
        group: The ranks.
        timeout: For how many seconds they wait for each other.
        device: Where tensors go.
    """

    def __init__(
        self,
        node: WeightsNode,
        request: LoadRequest,
        read: ReadOptions,
        group: dist.ProcessGroup,
        timeout: float,
        device: DeviceLike | None,
    ) -> None:
        self._end: ExitStack | None = None
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._device = device
        with ExitStack() as stack:
            self._session = stack.enter_context(Session(group, timeout, "stream"))
            self.resolved, plan, parts = agreed(self._session, node, request, read.host_bytes)
            self._parts: list[RankBox | None] = list(parts)
            self._targets = [part.target for part in parts]
            self._rounds: Generator[int, None, None] = rounds(
                plan, self.resolved.node, self._targets, self._session, read
            )
            self._complete: dict[int, list[int]] = {}
            for position, number in enumerate(plan.last_rounds()):
                self._complete.setdefault(number, []).append(position)
            self._ready: deque[int] = deque() if plan.rounds else deque(range(len(parts)))
            self._given, self._all = 0, len(parts)
            largest = max((part.memory for part in parts), default=0)
            self._most = read.host_bytes or max(_MAX, 2 * largest)
            self._end = stack.pop_all()

    @property
    def max_memory(self) -> int:
        """About how much memory a rank uses at a time."""
        return self._most

    def __next__(self) -> tuple[int, Buffer]:
        with self._lock:
            if self._end is None:
                raise StopIteration
            if self._given == self._all:
                self._close(None)
                raise StopIteration
            try:
                return self._next()
            except BaseException as error:
                self._close(error)
                raise

    def _next(self) -> tuple[int, Buffer]:
        while not self._ready:
            self._ready.extend(self._complete.get(next(self._rounds), ()))
        position = self._ready.popleft()
        part = known(self._parts[position])
        buffer = part.finish()
        self._parts[position] = self._targets[position] = None
        if self._device is not None:
            buffer = buffer.to(str(self._device))
        self._given += 1
        if self._given == self._all:
            self._session.agree({})  # an error with the last weight is collective, too
            self._close(None)
        return position, buffer

    def fail(self, error: BaseException) -> None:
        """End it because of an error in the consumer of the weights: the others raise it, too."""
        with self._lock:
            self._close(error)

    def close(self) -> None:
        """End it. If other ranks request more weights, they get an error."""
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._end is not None and self._given < self._all:
                self._session.leave(f"has ended the stream after {self._given:,} of {self._all:,} weights")
            self._close(None)

    def _close(self, error: BaseException | None) -> None:
        end, self._end = self._end, None
        if end is not None:
            self._rounds.close()
            self._parts, self._targets, self._ready = [], [], deque()
            end.__exit__(type(error) if error is not None else None, error, None)
