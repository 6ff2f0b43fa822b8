"""The values of one weight in chunks: their memory grows neither with the tensor nor with what its file says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any

from max_weights._core import Buffer, PytorchWeights, printable
from max_weights.cli.statistics import CHUNK_ELEMENTS
from max_weights.dtype import DType
from max_weights.errors import FileChangedError

if TYPE_CHECKING:
    import numpy as np

    from max_weights._core import WeightInfo, WeightsNode
    from max_weights.cli.statistics import Chunks
    from max_weights.quantization import QuantizationEncoding

    Array = np.ndarray[Any, np.dtype[Any]]


SMALL_FLOATS = frozenset(dtype for dtype in DType if dtype is DType.bfloat16 or dtype.is_float8())
"""The floats of whole bytes that NumPy does not have."""


def chunks_of(node: WeightsNode, info: WeightInfo, dtype: DType) -> tuple[Chunks, int, int]:
    """The elements of a weight a chunk at a time, as often as asked for; how often each of them stands in the tensor;
    and how many they are together.

    They are copied out of the mapping, or, where the file has the weight at an odd place and `data()` would copy all of
    it, read piece by piece. Both answer a file that was truncated meanwhile with an error; a look at the mapping itself
    would end the process.
    """
    import numpy as np

    itemsize = dtype.size_in_bytes
    elements = prod(info.shape)
    # Those of a PyTorch file may have strides, or be compressed.
    in_one_piece = info.bytes == elements * itemsize and not isinstance(node, PytorchWeights)

    def read() -> Iterator[Array]:
        step = CHUNK_ELEMENTS * itemsize
        with open(info.file, "rb", buffering=0) as file:
            for start in range(0, info.bytes, step):
                wanted = min(step, info.bytes - start)
                part = os.pread(file.fileno(), wanted, info.offset + start)
                if len(part) < wanted:
                    place = printable(info.file)
                    raise FileChangedError(f"{place}: the file became shorter while it was read; open it again")
                yield numbers(Buffer.from_numpy(np.frombuffer(bytearray(part), np.uint8)).view(dtype))

    if in_one_piece and not info.aligned:
        return read, 1, elements
    tensor, repeats = without_repeats(node.data().to_buffer())
    tensor = first_of(tensor)

    def mapped() -> Iterator[Array]:
        for part in parts(tensor):
            yield numbers(part.copy().view(dtype, [part.num_elements]))

    return mapped, repeats, tensor.num_elements * repeats


def without_repeats(tensor: Buffer) -> tuple[Buffer, int]:
    """The tensor without the axes along which every element is the same one (`expand` makes them), and how many times
    larger it was: a file of a kilobyte may have one of petabytes.
    """
    repeated = [stride == 0 and length > 1 for length, stride in zip(tensor.shape, tensor.strides, strict=True)]
    repeats = prod(length for length, same in zip(tensor.shape, repeated, strict=True) if same)
    return tensor[tuple(slice(0, 1) if same else slice(None) for same in repeated)], repeats


def first_of(tensor: Buffer) -> Buffer:
    """All of a tensor; of one whose elements overlap so that they are more than the file has, the first ones."""
    if tensor.num_elements <= max(extent(tensor), CHUNK_ELEMENTS):
        return tensor
    wanted, rest = CHUNK_ELEMENTS, tensor.num_elements
    kept = []
    for length in tensor.shape:
        rest //= length
        kept.append(slice(0, max(min(wanted // rest, length), 1)))
        wanted //= kept[-1].stop
    return tensor[tuple(kept)]


def extent(tensor: Buffer) -> int:
    """Elements from the first one of a tensor in memory to the last one."""
    return 1 + sum((length - 1) * abs(stride) for length, stride in zip(tensor.shape, tensor.strides, strict=True))


def parts(tensor: Buffer) -> Iterator[Buffer]:
    """A tensor in parts of a chunk or less, in any order; each lies close together in memory."""
    most = max(extent(tensor), tensor.num_elements)
    if most <= CHUNK_ELEMENTS:
        yield tensor
        return
    axis = max(range(len(tensor.shape)), key=lambda axis: (tensor.shape[axis] > 1, abs(tensor.strides[axis])))
    length = tensor.shape[axis]
    step = max(length * CHUNK_ELEMENTS // most, 1)
    for start in range(0, length, step):
        yield from parts(tensor[(*[slice(None)] * axis, slice(start, start + step))])


def decoded(node: WeightsNode, encoding: QuantizationEncoding) -> Chunks:
    """The values of packed blocks, some of them at a time."""
    from max_weights.quantization import dequantize

    packed = node.data().to_buffer().contiguous()
    blocks = packed.view(DType.uint8, [packed.nbytes // encoding.block_size, encoding.block_size])
    step = max(CHUNK_ELEMENTS // encoding.elements_per_block, 1)

    def read() -> Iterator[Array]:
        for start in range(0, blocks.shape[0], step):
            yield dequantize(blocks[start : start + step].copy(), encoding).to_numpy().reshape(-1)

    return read


def numbers(chunk: Buffer) -> Array:
    """A chunk as numbers that NumPy has: bfloat16 and fp8 as float32, which holds them exactly, the magnitudes of
    complex numbers, and the bytes of bools.
    """
    import numpy as np

    if chunk.dtype is DType.bool:
        return chunk.view(DType.uint8).to_numpy()
    if chunk.dtype is DType.complex64:
        return np.abs(chunk.to_numpy())
    return (chunk.astype(DType.float32) if chunk.dtype in SMALL_FLOATS else chunk).to_numpy()
