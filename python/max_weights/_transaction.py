"""Every change of memory is one transaction: check all, write with an undo log, commit.

`Transaction` is the log, `Destination` the memory of a tensor that is written to, `Box` a region of a tensor.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, TypeGuard

from max_weights._buffer import Buffer
from max_weights._core import dequantize
from max_weights._devices import torch_gpu
from max_weights._dtype import DType
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    import torch
    from torch.distributed.tensor import DTensor

    from max_weights._core import WeightInfo
    from max_weights.sharding._by_name import ShardBox

# fmt: off
__all__ = [
    "Box", "Destination", "Transaction", "copy_into", "is_distributed", "known_dtype", "local",
    "overlaps_itself", "shared_memory", "torch_dtype",
]
# fmt: on

_IN_MEMORY = 1 << 30
"""How many bytes of replaced values stay in host memory; the rest goes to a temporary file."""
_AT_A_TIME = 64 << 20


class Transaction:
    """A group of changes: an error or an interrupt within its `with` block restores everything.

    With `undo=False` no values are kept, which takes no memory and no time: an error reports that some are new.
    """

    def __init__(self, *, undo: bool = True) -> None:
        if not isinstance(undo, bool):
            raise ArgumentError(f"undo must be True or False, not {undo!r}", rule="argument.number")
        self._keeps, self._changed = undo, False
        self._undo: list[Callable[[], object]] = []
        self._space = _IN_MEMORY
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        while error is not None and self._undo:
            # After another interrupt, the undo is started again, so that it is never half done.
            with contextlib.suppress(KeyboardInterrupt):
                self._roll_back(error)
        self._undo = []
        if error is not None and self._changed:
            error.add_note("undo=False: some tensors hold new values, others the old ones; load the weights again")
        if self._file is not None:
            self._file.close()

    def _roll_back(self, error: BaseException) -> None:
        while self._undo:
            try:
                self._undo[-1]()
            except Exception as failed:
                error.add_note(f"not everything could be restored: {failed}; load the weights again")
            self._undo.pop()

    def on_undo(self, undo: Callable[[], object]) -> None:
        """Record how to undo a change, before it is made. The undo may be called twice."""
        self._undo.append(undo)

    def keep(self, tensor: torch.Tensor) -> None:
        """Record the values of a torch tensor, or of this process's part of a distributed one, before a write."""
        own = local(tensor).detach()
        if own.is_meta or not own.numel():
            return
        if self._keeps:
            self.on_undo(self._kept(own))
        else:
            self._changed = True

    def _kept(self, tensor: torch.Tensor) -> Callable[[], object]:
        size, is_plain = tensor.nbytes, not (tensor.is_conj() or tensor.is_neg())
        if tensor.device.type != "cpu" and size <= _free_on(tensor.device) // 2:
            return functools.partial(tensor.copy_, tensor.clone())
        if size <= self._space or not is_plain:
            self._space -= size
            return functools.partial(tensor.copy_, _copied(tensor))
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="max-weights-undo-")  # noqa: SIM115
            file, start = self._file, self._file.seek(0, os.SEEK_END)
            for part in _parts_of(tensor.contiguous()):
                file.write(part.cpu().numpy().data)
        except OSError as error:
            error.add_note(
                f"replaced values are kept in {tempfile.gettempdir()} until all is written: set TMPDIR to a folder "
                "with room for it, or give undo=False, which keeps nothing"
            )
            raise
        return functools.partial(_read_back, file, start, tensor)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy on the host."""
    is_plain = tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())
    if tensor.device.type == "cpu" and is_plain and known_dtype(tensor) is not None:
        return Buffer.of(tensor).copy().torch()  # into large pages: twice as fast as torch's
    return tensor.to("cpu", copy=True)


def _read_back(file: IO[bytes], start: int, tensor: torch.Tensor) -> None:
    import torch

    whole = tensor if tensor.is_contiguous() else torch.empty_like(tensor, memory_format=torch.contiguous_format)
    file.seek(start)
    for part in _parts_of(whole):
        part.copy_(torch.frombuffer(bytearray(file.read(len(part))), dtype=torch.uint8))
    if whole is not tensor:
        tensor.copy_(whole)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.reshape(-1).view(torch.uint8)


def _parts_of(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    whole = _bytes_of(tensor)
    return (whole[start : start + _AT_A_TIME] for start in range(0, len(whole), _AT_A_TIME))


def _free_on(device: torch.device) -> int:
    import torch

    module = torch.get_device_module(device)
    return int(module.mem_get_info(device)[0]) if hasattr(module, "mem_get_info") else 0


@dataclass(frozen=True)
class Box:
    """A region of a tensor: for each axis, ranges of it."""

    axes: tuple[tuple[tuple[int, int], ...], ...]

    @classmethod
    def of(cls, axes: Iterable[Iterable[Iterable[int]]]) -> Box:
        """Return the box of ranges in any form, such as the one that ranks send."""
        return cls(tuple(tuple((start, stop) for start, stop in axis) for axis in axes))

    @classmethod
    def at(cls, offsets: Sequence[int], lengths: Sequence[int]) -> Box:
        """Return the box that begins at these offsets."""
        return cls(tuple(((start, start + length),) for start, length in zip(offsets, lengths, strict=True)))

    @classmethod
    def nothing(cls, axes: int) -> Box:
        """Return a box without elements."""
        return cls((((0, 0),),) * max(1, axes))

    @property
    def shape(self) -> list[int]:
        """The shape of the region."""
        return [sum(stop - start for start, stop in axis) for axis in self.axes]

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def cut(self, whole: Sequence[int]) -> ShardBox | None:
        """Return it in the form of plans: the axes that it does not cover; `None` for a whole tensor of this shape."""
        rows = enumerate(zip(self.axes, whole, strict=True))
        return [(axis, list(own) or [(0, 0)]) for axis, (own, size) in rows if own != ((0, size),)] or None

    def moves(self) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
        """Yield, for each block, its slices in the tensor and its slices in the region."""
        axes = []
        for ranges in self.axes:
            ends = list(itertools.accumulate((stop - start for start, stop in ranges), initial=0))
            inner = itertools.pairwise(ends)
            axes.append([(slice(*own), slice(*place)) for own, place in zip(ranges, inner, strict=True)])
        for block in itertools.product(*axes):
            yield tuple(outer for outer, _ in block), tuple(inner for _, inner in block)


class Destination:
    """The memory of a tensor of torch: on the host or a device, or this process's part of a distributed tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.local = local(tensor).detach()

    def straight(self, shape: Sequence[int]) -> torch.Tensor | None:
        """Return it in this shape for the engine to write to; `None` if it has to be filled in another way."""
        import torch

        own = self.local
        is_reached = own.device.type == "cpu" or torch_gpu(torch, own.device) is not None
        if not is_reached or not own.is_contiguous() or own.is_conj() or own.is_neg() or known_dtype(own) is None:
            return None
        return own.view(tuple(shape))

    def raw(self, info: WeightInfo, device: torch.device) -> torch.Tensor | None:
        """Return it as bytes, if those of the file go there unchanged; `None` if `store` has to convert them."""
        own = self.local
        is_same = info.encoding is None and own.dtype == torch_dtype(info) and own.device == device
        return _bytes_of(own) if is_same and own.is_contiguous() and not (own.is_conj() or own.is_neg()) else None

    def store(self, raw: torch.Tensor, info: WeightInfo, dtype: DType | None = None) -> None:
        """Convert bytes of a file, and write them; packed blocks are decoded to `dtype` first."""
        own, known = self.local, known_dtype(self.local)
        is_straight = own.device.type == "cpu" and own.is_contiguous() and not (own.is_conj() or own.is_neg())
        if info.encoding is not None:
            shape = list(own.shape) if own.ndim else [1]
            out = own.view(shape) if is_straight and known is not None else None
            decoded = known if out is not None and known is not None else dtype or DType.float32
            made = dequantize(Buffer.of(raw.cpu()), info.encoding, decoded, shape, out=out)
            if out is None:
                copy_into(own, made.torch().view(own.shape))
            return
        typed = raw.view(torch_dtype(info)).view(own.shape)
        is_straight = is_straight and raw.device.type == "cpu"
        if is_straight and known is not None and isinstance(info.dtype, DType) and info.dtype != known:
            Buffer.of(typed).astype(known, out=own)
        else:
            copy_into(own, typed)


def copy_into(own: torch.Tensor, values: torch.Tensor) -> None:
    """Write values into memory, converted to its dtype."""
    # torch's own conversion loses the sign where it writes to a negated view of another dtype.
    own.copy_(values.to(own.dtype) if own.is_neg() or own.is_conj() else values)


def is_distributed(tensor: torch.Tensor) -> TypeGuard[DTensor]:
    """Whether a tensor is distributed, so that each of several processes has a part."""
    library = sys.modules.get("torch.distributed.tensor")
    return library is not None and isinstance(tensor, library.DTensor)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this process's part of a distributed tensor, or the tensor."""
    if not is_distributed(tensor):
        return tensor
    own: Any = tensor.to_local()
    part: torch.Tensor = own.wait() if hasattr(own, "wait") else own
    return part


class _Memory:
    """Exposes the address of a tensor's elements to NumPy, which does not access them."""

    def __init__(self, tensor: torch.Tensor) -> None:
        size = tensor.element_size()
        strides = tuple(stride * size for stride in tensor.stride())
        self.__array_interface__ = {
            "version": 3, "data": (tensor.data_ptr(), True), "typestr": f"|V{size}",
            "shape": tuple(tensor.shape), "strides": strides,
        }  # fmt: skip


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements of a tensor may have the same memory, as after expand() or as_strided()."""
    if not tensor.numel():
        return False
    reached = 1
    for stride, size in sorted((stride, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        if size > 1 and stride < reached:
            return True
        reached += stride * max(0, size - 1)
    return False


def shared_memory(tensors: Sequence[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, str]]:
    """Yield pairs of names of tensors that overlap in memory, or may: each with one other."""
    import numpy as np

    spans = []
    for name, tensor in tensors:
        own = local(tensor).detach()
        if own.is_meta or not own.numel():
            continue
        last = sum(stride * (size - 1) for size, stride in zip(own.shape, own.stride(), strict=True))
        start = own.data_ptr()
        spans.append((str(own.device), start, start + (last + 1) * own.element_size(), name, own))
    spans.sort(key=lambda span: span[:3])
    open_spans: list[tuple[str, int, int, str, torch.Tensor]] = []
    for span in spans:
        open_spans = [one for one in open_spans if one[0] == span[0] and one[2] > span[1]]
        for other in open_spans:
            first, second = (np.asarray(_Memory(one[4])) for one in (other, span))
            try:
                # NumPy's stubs allow only two values of max_work, but any number works.
                is_shared = np.shares_memory(first, second, max_work=100_000)  # type: ignore[arg-type]
            except np.exceptions.TooHardError:
                is_shared = True
            if is_shared:
                yield other[3], span[3]
                break
        open_spans.append(span)


def known_dtype(tensor: torch.Tensor) -> DType | None:
    """Return the dtype of a tensor; `None` for one that only torch has."""
    try:
        return DType.from_torch(tensor.dtype)
    except (TypeError, ValueError):
        return None


def torch_dtype(info: WeightInfo) -> torch.dtype:
    """Return the torch dtype of the elements of a weight in its file."""
    import torch

    own: torch.dtype = info.dtype.to_torch() if isinstance(info.dtype, DType) else getattr(torch, info.dtype)
    return own
