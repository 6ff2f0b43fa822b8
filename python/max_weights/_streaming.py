"""Stream weights sequentially, in bounded memory, for programs that take (name, tensor) pairs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from max_weights._core import TensorStream
from max_weights._load_request import LoadRequest
from max_weights._loading import check_device, converter, log_strategy
from max_weights._progress import Progress, progress_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType
    from typing import Self

    from max_weights._core import Buffer, WeightInfo, WeightsNode
    from max_weights._devices import DeviceLike
    from max_weights._loading import Convert
    from max_weights._read_options import ReadOptions

__all__ = ["Tensors", "WeightStream", "stream"]

_REPORT_EVERY = 0.025  # seconds
_Tensor_co = TypeVar("_Tensor_co", covariant=True)


class Tensors(Protocol):
    """The source of a stream: an iterator of (position, tensor)."""

    @property
    def max_memory(self) -> int:
        """The most bytes of host memory that its tensors take."""
        ...

    def __next__(self) -> tuple[int, Buffer]:
        """Return the next one."""
        ...

    def close(self) -> None:
        """End the iterator."""
        ...


class WeightStream(Generic[_Tensor_co]):
    """An iterator of (name, tensor), in which the scales of a quantized weight follow it.

    A thread reads ahead of it, within `max_memory`.

    The stream ends after the last weight, on an error, on `close()`, at the end of a `with` block, and when the last
    reference goes, as after a `break`.
    """

    # There is no `__del__`, in which Python loses a Ctrl-C: `_tensors` is closed when it is freed, and a bar stays.

    def __init__(
        self,
        tensors: Tensors,
        names: Sequence[str],
        infos: Sequence[WeightInfo],
        convert: Convert,
        progress: tuple[Progress | None, Callable[[], None]],
    ) -> None:
        self._tensors = tensors
        self._names = names
        self._infos = infos
        self._convert = convert
        self._report, self._finish = progress
        self._done = 0
        self._left = len(infos)
        self._reported_at = 0.0
        self._bytes = sum(info.bytes for info in infos)

    @property
    def max_memory(self) -> int:
        """The most bytes of host memory that the tensors of this stream take; with a `group`, approximately.

        Tensors count while they are being read, are waiting, were returned last, or are in flight to a device.
        """
        return self._tensors.max_memory

    def __iter__(self) -> Iterator[tuple[str, _Tensor_co]]:
        return self

    def __next__(self) -> tuple[str, _Tensor_co]:
        try:
            position, buffer = next(self._tensors)
            info = self._infos[position]
            self._done += info.bytes
            self._left -= 1
            if self._report is not None and (not self._left or time.monotonic() - self._reported_at >= _REPORT_EVERY):
                self._reported_at = time.monotonic()
                self._report(self._done, self._bytes)
            return self._names[position], self._convert(buffer, info)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the stream; nothing more is read. Returned tensors stay valid, unless `reuse` is set.

        Example:
            >>> stream = weights.stream()
            >>> stream.close()
        """
        self._tensors.close()
        self._finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def stream(
    node: WeightsNode,
    request: LoadRequest,
    how: ReadOptions,
    *,
    framework: str | None,
    device: DeviceLike | None,
    reuse: bool,
    progress: Progress | bool | None,
) -> WeightStream[Any]:
    """Stream the weights below a node sequentially; see `WeightsNode.stream`."""
    check_device(device, None, framework)
    convert = converter(framework)
    resolved = request.resolve(node)
    tensors = TensorStream(
        resolved.node,
        resolved.names,
        resolved.dtypes,
        cuts=resolved.parts,
        backend=how.backend_for(),
        threads=how.threads,
        drop_cache=how.drop_cache,
        max_memory=how.host_bytes,
        reuse=reuse,
        device=device,
        verify=None if how.digests is None else resolved.digests(how.digests),
    )
    log_strategy("stream", tensors.strategy)
    return WeightStream(tensors, resolved.new_names, resolved.infos, convert, progress_of(progress))
