"""Trees of the compiled module, and the records of their weights."""

from collections.abc import Iterable, Iterator
from os import PathLike
from types import EllipsisType, TracebackType
from typing import Any, ClassVar, Literal, Protocol, Self, SupportsIndex, final, overload

import numpy as np
import torch as _torch
from typing_extensions import disjoint_base

from max_weights._buffer import DLPackArray
from max_weights._core import Metadata, Objects
from max_weights._core._buffer import Buffer
from max_weights._dtype import DType
from max_weights._node import WeightsNode
from max_weights._quantization import QuantizationEncoding
from max_weights._weight_data import WeightData
from max_weights.graph._weight import Weight

_Index = SupportsIndex | slice | EllipsisType | None
_Array = np.typing.NDArray[Any]
_Backend = Literal["auto", "mmap", "read"]

class _GGUFReader(Protocol):
    @property
    def data(self) -> object: ...

_Paths = str | PathLike[str] | Iterable[str | PathLike[str]]

@final
class WeightInfo:
    """One weight of a listing, without its tensor. Unpacks as (name, dtype, shape, bytes, file, offset, aligned)."""

    _fields: ClassVar[tuple[str, ...]]
    def _asdict(self) -> dict[str, object]: ...
    @property
    def name(self) -> str:
        """The full name."""
    @property
    def dtype(self) -> DType | str:
        """The dtype, or the file's own name for a type unknown to this version."""
    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, slowest dimension first."""
    @property
    def logical_shape(self) -> tuple[int, ...]:
        """The shape counted in elements; `shape` counts bytes where elements are packed in blocks."""
    @property
    def encoding(self) -> QuantizationEncoding | None:
        """How the elements are packed; None if they are not."""
    @property
    def bytes(self) -> int:
        """Bytes of the elements: as in the file, except for the strides and the compression of PyTorch files."""
    @property
    def file(self) -> str:
        """The path of the file."""
    @property
    def offset(self) -> int:
        """The first byte in the file."""
    @property
    def aligned(self) -> bool:
        """True if it is at a multiple of its dtype's alignment in the file, so that it needs no copy."""
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    @overload
    def __getitem__(self, index: int, /) -> Any: ...
    @overload
    def __getitem__(self, index: slice, /) -> tuple[Any, ...]: ...
    def _repr_html_(self) -> str: ...

@final
class WeightInfos:
    """The weights at and below a node, in file order: a sequence that makes each record on demand."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[WeightInfo]: ...
    @overload
    def __getitem__(self, index: int, /) -> WeightInfo: ...
    @overload
    def __getitem__(self, index: slice, /) -> WeightInfos: ...
    @property
    def aliases(self) -> list[list[str]]:
        """Groups of these weights that share bytes of a PyTorch file: tied weights."""
    @property
    def objects(self) -> Objects:
        """The values at and below the node in a PyTorch file that are not tensors, by full name; other files have
        none.
        """
    @property
    def warnings(self) -> list[str]:
        """Tolerated faults of the files, as sentences."""
    def _repr_html_(self) -> str: ...

@disjoint_base
class Node:
    """The compiled part of `WeightsNode`."""

    @property
    def name(self) -> str:
        """The full name; empty at the root."""
    @property
    def allocated_weights(self) -> dict[str, DLPackArray]:
        """The values of all weights that `allocate` made, by full name; shared by all nodes of one tree."""
    @property
    def metadata(self) -> dict[str, str] | Metadata:
        """The metadata. Safetensors files have text; where files disagree on a key, the first one wins. GGUF files have
        a mapping that decodes values on demand. PyTorch files have `byteorder` and, if an archive, `version`.
        """
    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a weight, slowest dimension first; of its bytes where elements are packed in blocks."""
    @property
    def dtype(self) -> DType | str:
        """The dtype of a weight, or the file's own name for a type unknown to this version."""
    def __getattr__(self, key: str, /) -> Self: ...
    @overload
    def __getitem__(self, key: int | str, /) -> Self: ...
    @overload
    def __getitem__(self, key: slice | EllipsisType | tuple[_Index, ...] | None, /) -> Buffer: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __array__(self, dtype: np.typing.DTypeLike | None = None, copy: bool | None = None) -> _Array: ...
    def __dlpack__(self, **kwargs: object) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __contains__(self, key: object, /) -> bool: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> Literal[True]: ...
    def exists(self) -> bool:
        """Return whether there is a weight of exactly this name; a mere prefix is none."""
    def items(self) -> Iterator[tuple[str, Self]]:
        """Iterate over this weight, if it is one, and all below it, as (full name, node), in file order."""
    def children(self) -> list[Self]:
        """Return the nodes one level below, numbers first, 10 after 9, then names: `for layer in
        weights.model.layers.children()`.
        """
    def numpy(self) -> _Array:
        """Return the weight's tensor as a NumPy array, a view where `data()` is one. bfloat16 and the 8-bit floats have
        the dtypes of ml_dtypes. ArgumentError for packed blocks; `data().to_buffer()` has their bytes.
        """
    def torch(self) -> _torch.Tensor:
        """Return the weight's tensor as a torch tensor, a view where `data()` is one. ArgumentError for packed
        blocks."""
    @property
    def _root(self) -> Self: ...
    @property
    def _scheme(self) -> str | None: ...
    def data(self) -> WeightData:
        """Return the weight's tensor: a view of the mapped file where it is aligned there, else a copy of that tensor
        alone.
        """
    def close(self) -> None:
        """Release the files. Tensors already taken stay valid; new ones cannot be taken."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: type[BaseException] | BaseException | TracebackType | None) -> None: ...
    def __copy__(self) -> Self: ...
    def __deepcopy__(self, _memo: object, /) -> Self: ...
    def __dir__(self) -> list[str]: ...
    def _ipython_key_completions_(self) -> list[str]: ...
    def _repr_html_(self) -> str: ...

@final
class SafetensorWeights(WeightsNode):
    """Weights in safetensors files."""

    def __new__(
        cls, filepaths: _Paths, *, prefix: str = "", backend: _Backend = "auto", strict: bool = True,
        max_header_bytes: int | None = None,
    ) -> Self: ...  # fmt: skip
    def allocate_as_bytes(self, dtype: DType | None = None) -> Weight:
        """Return a uint8 `Weight` over the bytes: the last dimension times the item size; a scalar gets one."""

@final
class GGUFWeights(WeightsNode):
    """Weights in a GGUF file, or in the files of a split set, by GGUF's own names."""

    def __new__(
        cls, source: _Paths | _GGUFReader, *, prefix: str = "", backend: _Backend = "auto", strict: bool = True,
        max_header_bytes: int | None = None,
    ) -> Self: ...  # fmt: skip

@final
class PytorchWeights(WeightsNode):
    """Weights in files written by `torch.save`, of any version from 0.1.10 on. Nothing that a file names is ever
    called.
    """

    def __new__(
        cls, filepath: _Paths, *, prefix: str = "", backend: _Backend = "auto", strict: bool = True,
        max_header_bytes: int | None = None,
    ) -> Self: ...  # fmt: skip
