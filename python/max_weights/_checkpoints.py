"""`Checkpoint`: what every verb takes. A tree that is open stays open; paths are opened, and closed again."""

from __future__ import annotations

import bisect
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from itertools import accumulate
from typing import Protocol, TypeAlias, runtime_checkable

from max_weights._core import Buffer, RangeSource, WeightInfos, WeightsNode, open_weights, shown
from max_weights._core import infos as infos_of
from max_weights._dtype import DType
from max_weights.errors import ArgumentError, UnsupportedError

__all__ = [
    "SAFETENSORS_DTYPES",
    "Checkpoint",
    "CheckpointPath",
    "Tensors",
    "infos",
    "opened",
    "paths_of",
    "tensors_of",
    "tree_of",
]

CheckpointPath: TypeAlias = "str | os.PathLike[str] | RangeSource"
"""A file, a folder, an index, the name of a model, a URL, or a `max_weights.remote.source`."""
Checkpoint: TypeAlias = "WeightsNode | CheckpointPath | Iterable[CheckpointPath]"
"""A tree of weights, a branch of it or one weight; or what `load_weights` opens: a path, a URL, a source, a list."""


@runtime_checkable
class Module(Protocol):
    """A module of torch or of `max_weights.nn`."""

    def state_dict(self) -> Mapping[str, object]:
        """Return its tensors by name."""
        ...


Tensors: TypeAlias = "Mapping[str, object] | Module"
"""Tensors in memory: {name: tensor} of any library, or a module."""

SAFETENSORS_DTYPES: dict[DType | str, str] = {
    DType.bool: "BOOL",
    DType.uint8: "U8",
    DType.int8: "I8",
    DType.uint16: "U16",
    DType.int16: "I16",
    DType.uint32: "U32",
    DType.int32: "I32",
    DType.uint64: "U64",
    DType.int64: "I64",
    DType.float16: "F16",
    DType.bfloat16: "BF16",
    DType.float32: "F32",
    DType.float64: "F64",
    DType.complex64: "C64",
    DType.float8_e4m3fn: "F8_E4M3",
    DType.float8_e4m3fnuz: "F8_E4M3FNUZ",
    DType.float8_e5m2: "F8_E5M2",
    DType.float8_e5m2fnuz: "F8_E5M2FNUZ",
    DType.float8_e8m0fnu: "F8_E8M0",
}
"""What safetensors files call dtypes."""


@contextmanager
def opened(checkpoint: Checkpoint | Tensors, verb: str, *, tensors: bool = False) -> Iterator[WeightsNode]:
    """Give the tree of a checkpoint. One that was open stays open, whatever happens; paths are closed at the end.

    Args:
        checkpoint: The tree, or the paths.
        verb: What is done, for messages.
        tensors: Take {name: tensor} and modules, too: the tree is one over their memory, which is not copied.

    Raises:
        ArgumentError: it is something else, or there are no paths (a ValueError).
        MissingFileError: a path does not exist.
        FormatError: a file is damaged.
    """
    weights = tree_of(checkpoint, verb, tensors=tensors)
    try:
        yield weights
    finally:
        if weights is not checkpoint:
            weights.close()


def tree_of(checkpoint: Checkpoint | Tensors, verb: str, *, tensors: bool = False) -> WeightsNode:
    """Return the tree of a checkpoint, and leave it open: for results that read from it later. As `opened` otherwise.

    Files are closed when the last reference to the tree goes.
    """
    if isinstance(checkpoint, WeightsNode):
        return checkpoint
    if tensors and (named := tensors_of(checkpoint)) is not None:
        return open_weights([_source(named)])
    return open_weights(paths_of(checkpoint, verb, tensors=tensors))


def tensors_of(checkpoint: object) -> dict[str, object] | None:
    """Return {name: tensor} of a mapping or a module; `None` for anything else, such as a tree or a path."""
    if isinstance(checkpoint, WeightsNode):
        return None
    if hasattr(type(checkpoint), "state_dict"):
        checkpoint = checkpoint.state_dict()  # type: ignore[attr-defined]
    return dict(checkpoint) if isinstance(checkpoint, Mapping) else None


def _buffer(name: str, tensor: object) -> Buffer:
    if not isinstance(name, str):
        raise TypeError(f"the names of tensors must be text, not {name!r}")
    if isinstance(tensor, WeightsNode):
        tensor = tensor.data()
    if isinstance(refusal := getattr(tensor, "refusal", None), Exception):
        raise refusal.with_traceback(None)  # what it has are bytes, and no values
    if getattr(getattr(tensor, "quantization_encoding", None), "is_gguf", False):
        raise ArgumentError(f"tensor '{shown(name)}' is packed in blocks: decode it with astype(), or give its tree")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        # A view that torch conjugates or negates as it reads: its memory holds other values.
        tensor = tensor.detach().resolve_conj().resolve_neg()
    return Buffer.of(tensor, f"tensor '{shown(name)}'")


def _source(tensors: Mapping[str, object]) -> RangeSource:
    """Return tensors as a safetensors file that reads from their memory; those of devices come when they are read."""
    import json

    buffers = [_buffer(name, tensor) for name, tensor in tensors.items()]
    ends = list(accumulate((buffer.nbytes for buffer in buffers), initial=0))
    header: dict[str, object] = {}
    for name, buffer, start, end in zip(tensors, buffers, ends, ends[1:], strict=False):
        dtype = SAFETENSORS_DTYPES.get(buffer.dtype)
        if dtype is None or name == "__metadata__":
            what = f"'{shown(name)}' is no name of a tensor" if dtype else f"tensor '{shown(name)}' is {buffer.dtype!r}"
            raise UnsupportedError(f"{what}: safetensors files, as which tensors in memory are read, have none such")
        header[name] = {"dtype": dtype, "shape": list(buffer.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    head = len(text).to_bytes(8, "little") + text

    @lru_cache(maxsize=4)
    def content(number: int) -> memoryview:
        if number < 0:
            return memoryview(head)
        buffer = buffers[number]
        host = (buffer if buffer.device.label == "cpu" else buffer.to("cpu")).contiguous()
        return memoryview(host.view(DType.uint8, (host.nbytes,)))

    starts = [0, *(len(head) + end for end in ends)]

    def read(ranges: list[tuple[int, int]]) -> Iterator[bytearray | memoryview]:
        for start, end in ranges:
            parts = []
            number = bisect.bisect_right(starts, start) - 1
            while start < end:
                stop = min(end, starts[number + 1])
                if start < stop:
                    parts.append(content(number - 1)[start - starts[number] : stop - starts[number]])
                start, number = max(start, stop), number + 1
            yield parts[0] if len(parts) == 1 else bytearray().join(parts)

    return RangeSource(read, starts[-1], "memory://tensors", b"")


def paths_of(checkpoint: object, verb: str, *, tensors: bool = False) -> list[CheckpointPath]:
    if isinstance(checkpoint, (str, os.PathLike, RangeSource)):
        return [checkpoint]
    wrong: object = checkpoint
    if isinstance(checkpoint, Iterable) and not isinstance(checkpoint, (bytes, bytearray, Mapping)):
        paths = list(checkpoint)
        odd = [path for path in paths if not isinstance(path, (str, os.PathLike, RangeSource))]
        if paths and not odd:
            return paths
        wrong = odd[0] if odd else paths
    what = "an empty list" if isinstance(wrong, list) and not wrong else f"a {shown(type(wrong).__name__)}"
    also = ", or {name: tensor}, or a module" if tensors else ""
    raise ArgumentError(
        f"{verb} takes a checkpoint, which is a tree of max_weights.load_weights, a path, a URL or a source, or a list "
        f"of these{also}, not {what}"
    )


def infos(checkpoint: Checkpoint) -> WeightInfos:
    """List the weights of a checkpoint: name, dtype, shape, bytes, file and offset of each. Only headers are read.

    Args:
        checkpoint: A tree, a branch or one weight; or anything that `load_weights` opens.

    Returns:
        A sequence of `WeightInfo` in file order. Its `aliases`, `objects` and `warnings` are those of the files.

    Raises:
        ArgumentError: `checkpoint` is none (a ValueError).
        ClosedError: the tree was closed.

    Example:
        >>> max_weights.infos("model.safetensors")[0].shape
        (16, 8)
    """
    return infos_of(tree_of(checkpoint, "infos"))
