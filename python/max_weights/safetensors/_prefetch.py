"""`PrefetchLoader`: tensors that are read in the background."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from typing import TYPE_CHECKING, TypeAlias

from max_weights._core import escape
from max_weights._dtype import DType
from max_weights.errors import WeightsError
from max_weights.safetensors._errors import missing_tensor, safetensor_error
from max_weights.safetensors._frameworks import from_capsule, on_gpu, to_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from max_weights._core import Buffer, _SafetensorsFile

__all__ = ["Plan", "PrefetchLoader"]

Plan = dict[str, slice | None]
"""Which tensors to read: `None` for a whole tensor, or a slice of its first dimension."""

_Reads: TypeAlias = "deque[tuple[Future[Buffer], str, slice | None]]"
"""What has not been read yet, in the order of the file."""


class PrefetchLoader:
    """The tensors of one file, copied in the background; the result of `safe_open.prefetch`.

    Each is returned once, by `take` or by iterating. Reading begins at once, in the order of the file. It ends with
    `close`, and when the last reference goes.
    """

    # There is no `__del__`, and no pool of threads, which uses one: Python loses a Ctrl-C that comes in it.
    __slots__ = ("__weakref__", "_convert", "_device", "_names", "_pending", "_reads")

    def __init__(self, file: _SafetensorsFile, plan: Plan | None, device: str | int, threads: int) -> None:
        if threads < 1:
            raise safetensor_error(f"prefetch needs at least one thread, not {threads}")
        if not isinstance(plan, dict | None):
            raise TypeError(f"plan must be a dict or None, not {type(plan).__name__}")
        rows = None if plan is None else {name: _rows(file, name, selection) for name, selection in plan.items()}
        self._names = [name for name in file.names() if rows is None or name in rows]
        if rows is not None and not self._names:
            raise safetensor_error("prefetch plan selects no tensors")
        for dtype in dict.fromkeys(file.dtype(name) for name in self._names):
            try:
                DType(dtype).to_torch()
            except ValueError:
                raise safetensor_error(
                    f"prefetch cannot hand out dtype {escape(dtype)}: torch has no matching dtype"
                ) from None
        self._device = device
        self._convert = from_capsule()
        self._pending: dict[str, Future[Buffer]] = {name: Future() for name in self._names}
        self._reads: _Reads = deque(
            (future, name, None if rows is None else rows[name]) for name, future in self._pending.items()
        )
        for _ in range(min(threads, len(self._reads))):
            target, arguments = _read_all, (weakref.ref(self), self._reads, file, device)
            threading.Thread(target=target, args=arguments, name="max_weights-prefetch").start()

    def names(self) -> list[str]:
        """Return the names of the tensors that it hands out, in the order of the file."""
        return self._names.copy()

    def __len__(self) -> int:
        return len(self._names)

    def take(self, name: str) -> object:
        """Return a tensor, once its bytes have been read; each can be taken once."""
        future = self._pending.pop(name, None)
        if future is None:
            if name not in self._names:
                raise safetensor_error(f"{escape(name)} is not in the prefetch plan")
            raise safetensor_error(f"tensor {escape(name)} was already taken, or the loader was closed")
        return self._tensor(name, future)

    def __iter__(self) -> Iterator[tuple[str, object]]:
        """Iterate over (name, tensor) of all tensors that were not taken, as their bytes arrive."""
        while pending := dict(self._pending):
            done = wait(pending.values(), return_when=FIRST_COMPLETED).done
            for name, future in pending.items():
                if future in done:
                    mine = self._pending.pop(name, None)
                    if mine is not None:
                        yield name, self._tensor(name, mine)

    def _tensor(self, name: str, future: Future[Buffer]) -> object:
        try:
            part = future.result()
            tensor = self._convert(part.__dlpack__(max_version=(1, 0))) if part.is_host else to_torch(part)
        except CancelledError:
            raise safetensor_error("the loader was closed") from None
        except (WeightsError, BufferError) as error:
            raise safetensor_error(f"prefetch cannot hand out tensor {escape(name)}: {error}") from error
        return tensor.to(self._device) if part.is_host and self._device != "cpu" else tensor

    def close(self) -> None:
        """Stop reading, and release what was not taken; tensors that were taken stay valid."""
        self._pending.clear()
        with contextlib.suppress(IndexError):  # there are no more
            while True:
                self._reads.popleft()[0].cancel()

    def __enter__(self) -> PrefetchLoader:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()


def _rows(file: _SafetensorsFile, name: object, selection: object) -> slice | None:
    """Return the requested rows, within the tensor."""
    if not isinstance(name, str):
        raise safetensor_error("prefetch plan keys must be tensor names")
    try:
        _, shape, _ = file.entry(name)
    except KeyError:
        raise missing_tensor(name) from None
    if selection is None:
        return None
    if not isinstance(selection, slice):
        raise safetensor_error(
            f"prefetch plan values must be None or a slice, got {type(selection)} for {escape(name)}"
        )
    if not shape:
        raise safetensor_error(f"cannot slice rows of the 0-d tensor {escape(name)}")
    try:
        start, stop, step = selection.indices(shape[0])
    except (TypeError, ValueError):
        raise safetensor_error(
            f"prefetch plan slice bounds for {escape(name)} must be integers or None, and the step 1"
        ) from None
    if step != 1:
        raise safetensor_error(f"prefetch plan slices must have step 1, got {step} for {escape(name)}")
    return slice(start, max(start, stop))


def _read_all(loader: weakref.ref[PrefetchLoader], reads: _Reads, file: _SafetensorsFile, device: str | int) -> None:
    """Read until all is read, or the loader has been freed."""
    while reads and loader() is not None:
        try:
            future, name, rows = reads.popleft()
        except IndexError:  # another thread has taken the last one
            return
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(_read(file, name, rows, device))
        except BaseException as error:
            future.set_exception(error)
        del future


def _read(file: _SafetensorsFile, name: str, rows: slice | None, device: str | int) -> Buffer:
    part = file.buffer(name) if rows is None else file.part(name, (rows,))
    if (loaded := on_gpu(device, part.to)) is not None:
        return loaded
    return part.copy() if part.is_mapped else part
