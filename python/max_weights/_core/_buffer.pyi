"""Tensors of the compiled module: `max_weights._core.Buffer`."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from types import EllipsisType
from typing import Any, ClassVar, Literal, Self, SupportsIndex, final, overload

import numpy as np
import torch as _torch

from max_weights._buffer import DLPackArray
from max_weights._devices import Device, DeviceRef
from max_weights._dtype import DType, DTypeLike

_Index = SupportsIndex | slice | EllipsisType | None
_Array = np.typing.NDArray[Any]

@final
class Buffer:
    """A tensor: dtype, shape, strides and device over memory that it keeps alive. `Buffer(dtype, shape)` is a new one
    of zeros.
    """

    __hash__: ClassVar[None]  # type: ignore[assignment]

    def __new__(cls, dtype: DTypeLike, shape: Sequence[int], device: Device | DeviceRef | None = None) -> Self: ...
    @classmethod
    def from_numpy(cls, array: _Array | np.generic) -> Buffer:
        """Return the tensor of an array, sharing its memory. Bytes in the other order are swapped into a copy."""
    @staticmethod
    def of(value: object, what: str | None = None) -> Buffer:
        """Return the tensor of anything that has one, sharing its memory."""
    @staticmethod
    def from_dlpack(array: DLPackArray, *, copy: bool | None = None) -> Buffer:
        """Return the tensor of any DLPack producer, sharing its memory unless `copy` is true."""
    @staticmethod
    def scalar(value: complex, dtype: DTypeLike, device: Device | DeviceRef | None = None) -> Buffer:
        """Return a tensor of rank 0."""
    @staticmethod
    def mmap(
        filename: str | PathLike[str], dtype: DTypeLike, shape: Sequence[int] | int,
        mode: Literal["c", "copyonwrite", "r", "readonly", "r+", "readwrite", "w+", "write"] = "copyonwrite",
        offset: int = 0,
    ) -> Buffer:  # fmt: skip
        """Return the tensor of a file of bare elements, without a header, by memory map."""
    @staticmethod
    def zeros(shape: Sequence[int], dtype: DTypeLike, device: Device | DeviceRef | None = None) -> Buffer:
        """Return a new tensor of zeros, aligned to 64 bytes."""
    @staticmethod
    def _any(shape: Sequence[int], dtype: DTypeLike) -> Buffer: ...
    @staticmethod
    def _from_memory(object: object, dtype: DType) -> Buffer: ...
    @property
    def dtype(self) -> DType:
        """The type of the elements."""
    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, slowest dimension first."""
    @property
    def strides(self) -> tuple[int, ...]:
        """The strides, in elements."""
    @property
    def device(self) -> Device:
        """Where the bytes live."""
    @property
    def is_host(self) -> bool:
        """True if the bytes are in host memory."""
    @property
    def rank(self) -> int:
        """The number of dimensions."""
    @property
    def num_elements(self) -> int:
        """The product of the shape."""
    @property
    def element_size(self) -> int:
        """Bytes of one element."""
    @property
    def nbytes(self) -> int:
        """Bytes of all elements, without the gaps that strides leave."""
    @property
    def is_contiguous(self) -> bool:
        """True if the elements are in C order without gaps."""
    @property
    def aligned(self) -> bool:
        """True if the first element is aligned for its dtype."""
    @property
    def is_writable(self) -> bool:
        """False only for read-only memory of other libraries."""
    @property
    def is_mapped(self) -> bool:
        """True for a view of a mapped file."""
    def _data_ptr(self) -> int: ...
    def _memory(self) -> tuple[Buffer, int]: ...
    def _require_file(self) -> None: ...
    def _file_place(self) -> tuple[Path, int] | None: ...
    def to_numpy(self) -> _Array:
        """Return an array over the same memory, which it keeps alive. bfloat16 and the 8-bit floats have the dtypes of
        ml_dtypes.
        """
    def numpy(self) -> _Array:
        """Return the array that `to_numpy` returns."""
    def torch(self) -> _torch.Tensor:
        """Return a torch tensor over the same memory, which it keeps alive."""
    def __array__(self, dtype: np.typing.DTypeLike | None = None, copy: bool | None = None) -> _Array: ...
    @overload
    def to(self, device: Device | DeviceRef | str) -> Buffer:
        """Return this tensor on a device: itself if it is already there, else a contiguous copy. For a list of devices,
        a list.
        """
    @overload
    def to(self, device: list[Device] | tuple[Device, ...]) -> list[Buffer]:
        """This tensor on each of these devices."""
    def copy(self, device: Device | DeviceRef | str | None = None) -> Buffer:
        """Return a contiguous copy in its own memory, which no change of the file can reach."""
    def astype(self, dtype: DTypeLike, *, saturate: bool = False, out: DLPackArray | None = None) -> Buffer:
        """Return the elements as another dtype, by the rules of docs/dtypes.md; the tensor itself if it already has the
        dtype.
        """
    def inplace_copy_from(self, src: DLPackArray) -> None:
        """Write the elements of another tensor to this one, which must be contiguous. From itself, there is nothing to
        write.
        """
    def prefetch(self) -> Self:
        """Start to read the bytes of this view of a mapped file, and only those."""
    def contiguous(self) -> Buffer:
        """Return a contiguous copy in its own memory, also of what is contiguous: writing to it never changes this
        tensor.
        """
    def _contiguous(self) -> Buffer: ...
    def view(self, dtype: DTypeLike, shape: Sequence[int] | None = None) -> Buffer:
        """Return the same bytes as elements of another dtype and shape."""
    def item(self) -> Any:
        """Return the value of a tensor of one element."""
    def __getitem__(self, key: _Index | tuple[_Index, ...], /) -> Buffer: ...
    def __setitem__(self, key: _Index | tuple[_Index, ...], value: object, /) -> None: ...
    def __contains__(self, value: object, /) -> bool: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __int__(self) -> int: ...
    def __float__(self) -> float: ...
    def __complex__(self) -> complex: ...
    def __index__(self) -> int: ...
    def __copy__(self) -> Buffer: ...
    def __deepcopy__(self, _memo: object, /) -> Buffer: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self, *, stream: int | None = None, max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None, copy: bool | None = None,
    ) -> Any: ...  # fmt: skip
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def _repr_html_(self) -> str: ...
