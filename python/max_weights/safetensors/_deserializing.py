"""Reading files that are in memory already."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from max_weights._core import safetensors_header
from max_weights.errors import WeightsError
from max_weights.safetensors._errors import opening_error

if TYPE_CHECKING:
    from typing_extensions import Buffer as Bytes

__all__ = ["SafeView", "deserialize"]

_LENGTH = 8
_MOST = 100_000_000


class SafeView(TypedDict):
    """One tensor of a file in memory."""

    shape: list[int]
    dtype: str
    data: bytearray


def deserialize(bytes: Bytes) -> list[tuple[str, SafeView]]:
    """Return the tensors of a file in memory.

    Args:
        bytes: The whole file: bytes, or any other contiguous buffer, such as an mmap.

    Returns:
        A list of (name, {"shape": list, "dtype": str, "data": bytearray}), in the order of the file. The data is
        copied.

    Raises:
        TypeError: it is not a contiguous buffer.
        SafetensorError: the bytes are not a safetensors file, or a damaged one.
    """
    view = memoryview(bytes)
    if not view.c_contiguous:
        raise TypeError("the bytes of a file must be one contiguous buffer")
    view = view.cast("B") if view.nbytes else memoryview(b"")
    header = min(int.from_bytes(view[:_LENGTH], "little"), _MOST)
    try:
        entries, _ = safetensors_header(view[: _LENGTH + header].tobytes(), len(view))
    except WeightsError as error:
        raise opening_error(error, None) from None
    return [
        (name, {"shape": shape, "dtype": dtype, "data": bytearray(view[start:end])})
        for name, dtype, shape, start, end in entries
    ]
