"""Operations on memory that a graph changes: loading the tensor that it holds, and storing another."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from max_weights._dim import Dim
from max_weights._shape import listed
from max_weights.graph._call_site import graph_error
from max_weights.graph._stack import current
from max_weights.graph._value import BufferValue
from max_weights.graph.ops import _effects as effects
from max_weights.graph.ops._creation import range as positions
from max_weights.graph.ops._indexing import slice_tensor
from max_weights.graph.ops._operands import is_array, is_scalar, operand, operands, record
from max_weights.graph.ops._scattering import scatter
from max_weights.graph.ops._shaping import broadcast_to, flatten, reshape

if TYPE_CHECKING:
    from max_weights.graph._value import TensorValue, TensorValueLike

__all__ = ["bind_buffer_methods", "buffer_load", "buffer_store", "buffer_store_slice"]


def buffer_load(x: BufferValue) -> TensorValue:
    """Return the tensor that a buffer holds at this point of the graph; what is stored later does not change it."""
    return _contents("buffer_load", x)


def buffer_store(destination: BufferValue, source: TensorValueLike) -> None:
    """Store a tensor in a buffer.

    Args:
        destination: The buffer.
        source: A tensor of its dtype, shape and device.

    Raises:
        GraphError: the dtype, shape or device is another one (a ValueError).
    """
    _store("buffer_store", destination, operand("buffer_store", source))


def buffer_store_slice(destination: BufferValue, source: TensorValueLike, indices: object) -> None:
    """Store elements in a part of a buffer, as `destination[indices] = source`.

    Args:
        destination: The buffer.
        source: A number, or a tensor that can be broadcast to the shape of the part.
        indices: NumPy's basic indices; see `ops.slice_tensor`.

    Raises:
        GraphError: the dtype, shape or device does not fit (a ValueError).
    """
    op = "buffer_store_slice"
    old = _contents(op, destination)
    part = slice_tensor(old, indices)
    source = operands(op, part, source)[1] if is_scalar(source) or is_array(source) else operand(op, source)
    if source.dtype is not old.dtype:
        raise graph_error(op, f"the buffer holds {old.dtype!r}, not {source.dtype!r}; convert it with `.cast(...)`")
    new = broadcast_to(source, part.shape)
    if list(part.shape) != list(old.shape):
        # Each element has a number; the part has those of the elements that are replaced.
        count = math.prod(old.shape, start=Dim(1))
        numbers = reshape(positions(0, count, 1, count, device=old.device), old.shape)
        flat = scatter(_flat(old), _flat(new), _flat(slice_tensor(numbers, indices)), axis=0)
        new = reshape(flat, old.shape)
    _store(op, destination, new)


def _flat(x: TensorValue) -> TensorValue:
    return flatten(x) if x.rank else reshape(x, [1])


def _contents(op: str, buffer: BufferValue) -> TensorValue:
    """Return what a buffer of the current graph holds."""
    if not isinstance(buffer, BufferValue):
        raise TypeError(f"{op}: takes a BufferValue, an input whose type is a BufferType, not {type(buffer).__name__}")
    return current(op).own(op, buffer._contents)


def _store(op: str, buffer: BufferValue, value: TensorValue) -> None:
    old = _contents(op, buffer)
    if value.type != old.type:
        raise graph_error(
            op,
            f"the buffer holds {old.dtype!r} {listed(old.shape)} on {old.device}, not {value.dtype!r} "
            f"{listed(value.shape)} on {value.device}",
        )
    buffer._contents = record("buffer_store", [value], value.type)


class _Methods(BufferValue):
    __slots__ = ()

    def __getitem__(self, index: object) -> TensorValue:
        contents = buffer_load(self)
        return contents if index is ... else slice_tensor(contents, index)

    def __setitem__(self, index: object, value: TensorValueLike) -> None:
        buffer_store_slice(self, value, index)

    def print(self, label: str = "debug_buffer") -> None:
        """Print the elements when the graph is run."""
        effects.print(buffer_load(self), label)


def bind_buffer_methods() -> None:
    """Give `BufferValue` its methods."""
    for name in ("__getitem__", "__setitem__", "print"):
        setattr(BufferValue, name, vars(_Methods)[name])
