"""Reading files that are in memory already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from max_weights._core import safetensors_header
from max_weights.errors import WeightsError
from max_weights.safetensors.errors import opening_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer as Bytes

__all__ = ["Piece", "deserialize", "pieces"]

_LENGTH = 8
_MOST = 100_000_000


class Piece(NamedTuple):
    """One tensor of a file in memory, and its bytes."""

    name: str
    dtype: str
    shape: list[int]
    data: memoryview


def pieces(data: Bytes) -> Iterator[Piece]:
    """Return the tensors of a file in memory, in its order; their bytes are views.

    Raises:
        TypeError: it is not a contiguous buffer.
        SafetensorError: the bytes are not a safetensors file, or a damaged one.
    """
    view = memoryview(data)
    if not view.c_contiguous:
        raise TypeError("the bytes of a file must be one contiguous buffer")
    view = view.cast("B") if view.nbytes else memoryview(b"")
    header = min(int.from_bytes(view[:_LENGTH], "little"), _MOST)
    try:
        entries, _ = safetensors_header(bytes(view[: _LENGTH + header]), len(view))
    except WeightsError as error:
        raise opening_error(error, None) from None
    return (Piece(name, dtype, shape, view[start:end]) for name, dtype, shape, start, end in entries)


def deserialize(bytes: Bytes) -> list[tuple[str, dict[str, Any]]]:
    """Return the tensors of a file in memory.

    Args:
        bytes: The whole file: bytes, or any other contiguous buffer, such as an mmap.

    Returns:
        A list of (name, {"shape": list, "dtype": str, "data": bytearray}), in the order of the file. The data is
        copied.

    Raises:
        SafetensorError: the bytes are not a safetensors file, or a damaged one.
    """
    return [
        (piece.name, {"shape": piece.shape, "dtype": piece.dtype, "data": bytearray(piece.data)})
        for piece in pieces(bytes)
    ]
