"""Tensors in memory, presented as a safetensors file that is read from their memory."""

from __future__ import annotations

import bisect
import json
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import accumulate

from max_weights._core import Buffer, RangeSource, WeightsNode, escape
from max_weights._dtype import DType
from max_weights.errors import ArgumentError, UnsupportedError

__all__ = ["SAFETENSORS_DTYPES", "host_buffer", "source_of"]

# fmt: off
SAFETENSORS_DTYPES: dict[DType | str, str] = {
    DType.bool: "BOOL", DType.uint8: "U8", DType.int8: "I8", DType.uint16: "U16", DType.int16: "I16",
    DType.uint32: "U32", DType.int32: "I32", DType.uint64: "U64", DType.int64: "I64", DType.float16: "F16",
    DType.bfloat16: "BF16", DType.float32: "F32", DType.float64: "F64", DType.complex64: "C64",
    DType.float8_e4m3fn: "F8_E4M3", DType.float8_e4m3fnuz: "F8_E4M3FNUZ", DType.float8_e5m2: "F8_E5M2",
    DType.float8_e5m2fnuz: "F8_E5M2FNUZ", DType.float8_e8m0fnu: "F8_E8M0",
}
# fmt: on
"""What safetensors files call dtypes."""


def source_of(tensors: Mapping[str, object]) -> RangeSource:
    """Return tensors as a safetensors file over their memory; those of devices are copied when they are read."""
    buffers = [_buffer(name, tensor) for name, tensor in tensors.items()]
    ends = list(accumulate((buffer.nbytes for buffer in buffers), initial=0))
    header: dict[str, object] = {}
    for name, buffer, start, end in zip(tensors, buffers, ends, ends[1:], strict=False):
        dtype = SAFETENSORS_DTYPES.get(buffer.dtype)
        if dtype is None or name == "__metadata__":
            what = (
                f"'{escape(name)}' is no name of a tensor" if dtype else f"tensor '{escape(name)}' is {buffer.dtype!r}"
            )
            raise UnsupportedError(
                f"{what}: safetensors files, as which tensors in memory are read, have none such",
                rule="unsupported.dtype",
            )
        header[name] = {"dtype": dtype, "shape": list(buffer.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    head = len(text).to_bytes(8, "little") + text

    @lru_cache(maxsize=4)
    def content(number: int) -> memoryview:
        if number < 0:
            return memoryview(head)
        host = _on_host(buffers[number])
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


def host_buffer(name: str, tensor: object) -> Buffer:
    """Return a tensor of any library as a contiguous buffer of the host: its own memory, if that is contiguous."""
    return _on_host(_buffer(name, tensor))


def _on_host(buffer: Buffer) -> Buffer:
    # `contiguous` always copies, as in MAX; without a copy, the buffer is still known to be a view of its file.
    buffer = buffer if buffer.device.label == "cpu" else buffer.to("cpu")
    return buffer if buffer.is_contiguous else buffer.contiguous()


def _buffer(name: str, tensor: object) -> Buffer:
    if not isinstance(name, str):
        raise TypeError(f"the names of tensors must be text, not {name!r}")
    if isinstance(tensor, WeightsNode):
        tensor = tensor.data()
    if isinstance(refusal := getattr(tensor, "refusal", None), Exception):
        raise refusal.with_traceback(None)  # it has bytes, and no values
    if getattr(getattr(tensor, "quantization_encoding", None), "is_gguf", False):
        raise ArgumentError(
            f"tensor '{escape(name)}' is packed in blocks: decode it with astype(), or give its tree",
            rule="argument.packed",
        )
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        # A view that torch conjugates or negates as it reads: its memory holds other values.
        tensor = tensor.detach().resolve_conj().resolve_neg()
    return Buffer.of(tensor, f"tensor '{escape(name)}'")
