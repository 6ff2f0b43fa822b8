"""The compiled part of `max_weights`: signatures alone, as the texts are in the compiled module."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import EllipsisType, TracebackType
from typing import Any, ClassVar, Literal, Protocol, Self, SupportsIndex, TypeVar, Unpack, final, overload

import jax
import numpy as np
import torch as _torch
from typing_extensions import disjoint_base

from max_weights.buffer import DLPackArray
from max_weights.devices import Device, DeviceRef
from max_weights.difference import Difference
from max_weights.dim import Dim
from max_weights.dtype import DType, DTypeLike
from max_weights.graph.weight import Weight
from max_weights.lazy import LazyTensor
from max_weights.loading import LazyArguments, PlanArguments, RanksOptions, StreamArguments, TensorsOptions
from max_weights.planning import LoadPlan
from max_weights.quantised import QuantisedWeight, QuantisedWeights
from max_weights.quantization import QuantizationEncoding
from max_weights.saving import SaveOptions
from max_weights.selection import Select
from max_weights.streaming import WeightStream
from max_weights.weight_data import WeightData
from max_weights.weight_statistics import WeightStatistics

_Index = SupportsIndex | slice | EllipsisType | None
_Array = np.ndarray[Any, np.dtype[Any]]
_T = TypeVar("_T")
_Backend = Literal["auto", "mmap", "read"]

class _GGUFReader(Protocol):
    data: Any

_Cuts = Sequence[tuple[int, Sequence[tuple[int, int]]] | None] | None
_Places = Sequence[tuple[Any, int]] | None
_Paths = str | PathLike[str] | Iterable[str | PathLike[str]]

# fmt: off
__all__ = [  # noqa: RUF022 -- several in a line
    "Ahead", "Buffer", "FileWriter", "GGUFWeights", "Metadata", "Objects", "Placeholder", "PySafeSlice",
    "PytorchWeights", "RESERVED", "Report", "SafetensorWeights", "TensorStream", "TorchFile", "WeightInfo",
    "WeightInfos", "WeightSlice", "WeightsNode", "_PickledFile", "_SafetensorsFile", "__version__",
    "_buffer_of_bytes", "_remap_buffer", "_rename_weights", "_reopen_weights", "accelerator_count", "buffers",
    "command_line", "data_of_all", "dequantize", "dequantize_groups", "difference_of", "digests_of", "export_dlpack",
    "files", "get_threads", "hand_over", "load_tensors", "missing_accelerator", "near_names", "open_weights",
    "place_file", "plan_tensors", "printable", "quantize", "release_memory", "renamed_names", "safetensors_header",
    "save_converted", "save_gguf_tensors", "save_gguf_weights", "save_tensors", "scale_blocks", "serialize_tensors",
    "set_threads", "shown", "statistics_of", "torch_globals", "tree", "validate_files", "versions",
]
# fmt: on

__version__: str
RESERVED: list[str]
"""Names that a `Weights` keeps for itself, now or in a later version. A weight of such a name is reached by
`weights["name"]`.
"""

@final
class Buffer:
    """A tensor: dtype, shape, strides and device over memory that it keeps alive. `Buffer(dtype, shape)` is a new one
    of zeros.
    """

    __hash__: ClassVar[None]  # type: ignore[assignment]

    def __new__(cls, dtype: DTypeLike, shape: Sequence[int], device: Device | DeviceRef | None = None) -> Self: ...
    @classmethod
    def from_numpy(cls, array: _Array | np.generic) -> Buffer:
        """The tensor of an array (including those of ml_dtypes), sharing its memory. Bytes in the other order are
        swapped into a copy.
        """
    @staticmethod
    def from_dlpack(array: DLPackArray, *, copy: bool | None = None) -> Buffer:
        """The tensor of any DLPack producer, sharing its memory unless `copy` is true."""
    @staticmethod
    def scalar(value: complex, dtype: DTypeLike, device: Device | DeviceRef | None = None) -> Buffer:
        """A tensor of rank 0."""
    @staticmethod
    def mmap(
        filename: str | PathLike[str], dtype: DTypeLike, shape: Sequence[int] | int,
        mode: Literal["c", "copyonwrite", "r", "readonly", "r+", "readwrite", "w+", "write"] = "copyonwrite",
        offset: int = 0,
    ) -> Buffer:  # fmt: skip
        """A file of bare elements, without a header, by memory map."""
    @staticmethod
    def zeros(shape: Sequence[int], dtype: DTypeLike, device: Device | DeviceRef | None = None) -> Buffer:
        """A new tensor of zeros, aligned to 64 bytes."""
    @staticmethod
    def _from_memory(object: Any, dtype: DType) -> Buffer: ...
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
        """False only for other libraries' memory that they made read-only."""
    @property
    def is_mapped(self) -> bool:
        """True for a view of a mapped file."""
    def _data_ptr(self) -> int: ...
    def _memory(self) -> tuple[Buffer, int]: ...
    def _require_file(self) -> None: ...
    def _file_place(self) -> tuple[Path, int] | None: ...
    def to_numpy(self) -> _Array:
        """An array over the same memory, which it keeps alive. bfloat16 and the 8-bit floats have the dtypes of
        ml_dtypes.
        """
    def numpy(self) -> _Array:
        """As `to_numpy`."""
    def torch(self) -> _torch.Tensor:
        """A torch tensor over the same memory, which it keeps alive."""
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> _Array: ...
    @overload
    def to(self, device: Device | DeviceRef | str) -> Buffer:
        """This tensor on a device: itself if it is already there, else a contiguous copy. For a list of devices, a
        list.
        """
    @overload
    def to(self, device: list[Device] | tuple[Device, ...]) -> list[Buffer]:
        """This tensor on each of these devices."""
    def copy(self, device: Device | DeviceRef | str | None = None) -> Buffer:
        """A contiguous copy in its own memory, which no change of the file can reach."""
    def astype(self, dtype: DTypeLike, *, saturate: bool = False, out: Any = None) -> Buffer:
        """The elements as another dtype, by the rules of docs/dtypes.md; the tensor itself if it already has the
        dtype.
        """
    def inplace_copy_from(self, src: DLPackArray) -> None:
        """Writes the elements of another tensor to this one, which must be contiguous and have the same dtype and
        number of elements. From itself, there is nothing to write.
        """
    def prefetch(self) -> Self:
        """Starts to read the bytes of this view of a mapped file, and only those, and returns the view."""
    def contiguous(self) -> Buffer:
        """A contiguous copy in its own memory, also of what is contiguous: writing to it never changes this tensor."""
    def _contiguous(self) -> Buffer: ...
    def view(self, dtype: DTypeLike, shape: Sequence[int] | None = None) -> Buffer:
        """The same bytes as elements of another dtype and shape; without a shape, the last dimension is scaled by the
        sizes.
        """
    def item(self) -> Any:
        """The value of a tensor of one element."""
    def __getitem__(self, key: _Index | tuple[_Index, ...], /) -> Buffer: ...
    def __setitem__(self, key: Any, value: Any, /) -> None: ...
    def __contains__(self, value: object, /) -> bool: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __int__(self) -> int: ...
    def __float__(self) -> float: ...
    def __complex__(self) -> complex: ...
    def __index__(self) -> int: ...
    def __copy__(self) -> Buffer: ...
    def __deepcopy__(self, _memo: Any, /) -> Buffer: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self, *, stream: int | None = None, max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None, copy: bool | None = None,
    ) -> Any: ...  # fmt: skip
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def _repr_html_(self) -> str: ...

@final
class WeightInfo:
    """One weight of a listing, without its tensor. Unpacks as (name, dtype, shape, bytes, file, offset, aligned)."""

    _fields: ClassVar[tuple[str, ...]]
    def _asdict(self) -> dict[str, Any]: ...
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
    def __getitem__(self, index: slice, /) -> Any: ...
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
    def _repr_html_(self) -> str: ...

@final
class WeightSlice:
    """A weight that is read in parts, and only when they are asked for; what `get_slice` returns."""

    @property
    def name(self) -> str:
        """The full name."""
    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, slowest dimension first; of the bytes where elements are packed in blocks."""
    @property
    def dtype(self) -> DType | str:
        """The dtype, or the file's own name for a type unknown to this version."""
    def get_shape(self) -> list[int]:
        """The shape as a list, as safetensors returns it."""
    def get_dtype(self) -> str:
        """The dtype as safetensors spells it, such as `BF16`; `U8` for packed blocks, which are returned as bytes."""
    def __getitem__(self, key: _Index | tuple[_Index, ...], /) -> Buffer: ...

@disjoint_base
class WeightsNode:
    """One node of a tree of weights: a name, which may be that of a weight, a prefix of others, both, or neither."""

    @property
    def name(self) -> str:
        """The full name; empty at the root."""
    @property
    def allocated_weights(self) -> dict[str, DLPackArray]:
        """The values of all weights that `allocate` made, by full name; shared by all nodes of one tree."""
    @property
    def metadata(self) -> dict[str, str] | Metadata:
        """The metadata: of safetensors files, text (where files disagree on a key, the first has it); of GGUF files, a
        mapping that decodes values on demand; of PyTorch files, `byteorder` and, of an archive, `version`.
        """
    @property
    def warnings(self) -> list[str]:
        """What was accepted although it is not quite right."""
    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a weight, slowest dimension first; of its bytes where elements are packed in blocks."""
    @property
    def dtype(self) -> DType | str:
        """The dtype of a weight, or the file's own name for a type unknown to this version."""
    @property
    def ndim(self) -> int:
        """The number of dimensions of a weight."""
    @property
    def nbytes(self) -> int:
        """Bytes of a weight's elements."""
    def __getattr__(self, key: str, /) -> Self: ...
    @overload
    def __getitem__(self, key: int | str, /) -> Self: ...
    @overload
    def __getitem__(self, key: slice | EllipsisType | tuple[_Index, ...] | None, /) -> Buffer: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __array__(self, *args: Any, **kwargs: Any) -> _Array: ...
    def __dlpack__(self, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __contains__(self, key: object, /) -> bool: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> Literal[True]: ...
    def get_slice(self, name: str) -> WeightSlice:
        """The weight of this name below the node, to be read in parts; nothing is read yet."""
    def exists(self) -> bool:
        """True if there is a weight of exactly this name; a mere prefix is none."""
    def items(self) -> Iterator[tuple[str, Self]]:
        """This weight, if it is one, and all below it, as (full name, node), in file order."""
    def keys(self) -> list[str]:
        """The keys of the children, as `node[key]` takes them: numbers first, 10 after 9, then names."""
    def children(self) -> list[Self]:
        """The nodes one level below, in the order of `keys()`: `for layer in weights.model.layers.children()`."""
    def numpy(self) -> _Array:
        """The weight's tensor as a NumPy array, a view where `data()` is one. bfloat16 and the 8-bit floats have the
        dtypes of ml_dtypes; packed blocks come as bytes.
        """
    def torch(self) -> _torch.Tensor:
        """The weight's tensor as a torch tensor, a view where `data()` is one. Packed blocks come as bytes."""
    def infos(self) -> WeightInfos:
        """What `items` walks, as a light listing: no tensors are made."""
    # fmt: off
    @overload
    def load(
        self, select: Select | None = None, *, framework: None = None, **options: Unpack[TensorsOptions]
    ) -> dict[str, Buffer]:
        """This weight, if it is one, and all below it, as {name: tensor}, in file order. They are resident: nobody
        waits at the first touch.
        """
    @overload
    def load(
        self, select: Select | None = None, *, framework: Literal["numpy"], **options: Unpack[TensorsOptions]
    ) -> dict[str, _Array]: ...
    @overload
    def load(
        self, select: Select | None = None, *, framework: Literal["torch"], **options: Unpack[TensorsOptions]
    ) -> dict[str, _torch.Tensor]: ...
    @overload
    def load(
        self, select: Select | None = None, *, framework: Literal["jax"], **options: Unpack[TensorsOptions]
    ) -> dict[str, jax.Array]: ...
    @overload
    def load(
        self, select: Select | None = None, *, framework: str | None, **options: Unpack[TensorsOptions]
    ) -> dict[str, Any]: ...
    @overload
    def load(
        self, select: Select | None = None, *, framework: None = None, **options: Unpack[RanksOptions]
    ) -> list[dict[str, Buffer]]: ...
    @overload
    def load(
        self, select: Select | None = None, *, framework: Literal["torch"], **options: Unpack[RanksOptions]
    ) -> list[dict[str, _torch.Tensor]]: ...
    @overload
    def load(
        self, select: Select | None = None, *, framework: Literal["jax"], **options: Unpack[RanksOptions]
    ) -> list[dict[str, jax.Array]]: ...
    # fmt: on
    def digests(self, select: Select | None = None, *, threads: int | None = None,
                progress: Callable[[int, int], object] | bool | None = None) -> dict[str, str]:  # fmt: skip
        """The digests of this weight, if it is one, and of all below it: {name: `sha256:` and 64 hexadecimal digits},
        in file order.
        """
    def stats(
        self, select: Select | None = None, *, bins: int = 0,
        progress: Callable[[int, int], object] | bool | None = None,
    ) -> WeightStatistics:  # fmt: skip
        """What the values of this weight, if it is one, and of all below it are like: one pass over their bytes, on all
        cores.
        """
    @overload
    def quantised(self, name: None = None) -> QuantisedWeights:
        """The quantised weight of this name below the node; without a name, all of them, by full name."""
    @overload
    def quantised(self, name: str) -> QuantisedWeight: ...
    def diff(
        self,
        other: WeightsNode | str | PathLike[str],
        *,
        rtol: float = 0.0,
        atol: float = 0.0,
        exact: bool = False,
        values: bool = True,
        dtypes: bool = True,
        metadata: bool = True,
        progress: Callable[[int, int], object] | bool | None = None,
    ) -> Difference:
        """What differs between the checkpoint of this tree and another one: `max_weights.diff`."""
    def save(self, path: str | PathLike[str], **options: Unpack[SaveOptions]) -> list[Path]:
        """Saves the weights of this tree, or of this branch of it, as a safetensors file, or as several with an
        index.
        """
    def lazy_state_dict(self, select: Select | None = None, **options: Unpack[LazyArguments]) -> dict[str, LazyTensor]:
        """What `load` returns, as torch tensors that are read when they are indexed, with `[...]` or otherwise: what
        `from_pretrained(None, config=…, state_dict=…)` of transformers accepts. `get_shape()` and `get_dtype()` read
        nothing.
        """
    def stream(self, select: Select | None = None, **options: Unpack[StreamArguments]) -> WeightStream:
        """This weight, if it is one, and all below it, as an iterator of (name, tensor) in file order, in bounded
        memory. A thread reads ahead.
        """
    def plan(self, select: Select | None = None, **options: Unpack[PlanArguments]) -> LoadPlan:
        """What `load` would do with these arguments: which bytes of which files, in which order, where to, in how much
        memory, and with which backend. No content is read, and no memory is taken.
        """
    def renamed(self, scheme: str) -> Self:
        """The weights of a GGUF file by the names that Hugging Face gives them, as a separate tree over the same open
        files.
        """
    @property
    def _root(self) -> Self: ...
    @property
    def _scheme(self) -> str | None: ...
    def data(self) -> WeightData:
        """The weight's tensor: a view of the mapped file where it is aligned there, else a copy of that tensor
        alone.
        """
    def allocate(
        self, dtype: DType | None = None, shape: Iterable[int | str | Dim] | None = None,
        quantization_encoding: QuantizationEncoding | None = None, device: DeviceRef | None = None,
    ) -> Weight:  # fmt: skip
        """A `Weight` of this name for a graph; its value is recorded in `allocated_weights`."""
    def allocate_as_bytes(self, dtype: DType | None = None) -> Weight:
        """A uint8 `Weight` over the bytes: the last dimension times the item size; a scalar becomes one dimension."""
    def close(self) -> None:
        """Release the files. Tensors already taken stay valid; new ones cannot be taken."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: type[BaseException] | BaseException | TracebackType | None) -> None: ...
    def __copy__(self) -> Self: ...
    def __deepcopy__(self, _memo: Any, /) -> Self: ...
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
    def aliases(self) -> list[list[str]]:
        """Groups of weights at and below this node that share bytes: tied weights."""
    def verify_checksums(self) -> int:
        """Read every storage for which the files have a checksum, and compare; returns how many were compared."""
    def objects(self) -> Objects:
        """The values at and below this node that are not tensors, by full name."""

@final
class Objects:
    """The values of a PyTorch file that are not tensors, by full name: a mapping that makes values on demand. What is
    one value in the file is one object here, under every name, for as long as the mapping is held.
    """

    def __len__(self) -> int: ...
    def __contains__(self, key: object, /) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def __getitem__(self, key: str, /) -> Any: ...
    def get(self, key: str, default: Any = None) -> Any:
        """The value of a name, or the default."""
    def keys(self) -> list[str]:
        """The names, in the order of the file."""
    def values(self) -> list[Any]:
        """All values."""
    def items(self) -> list[tuple[str, Any]]:
        """All names with their values."""

@final
class Placeholder:
    """Stands for an object that a pickle would have made. It is not built; this is what the file says about it."""

    @property
    def global_name(self) -> str:
        """Module and name of the class or function, such as `__main__.Config`."""
    @property
    def position(self) -> int | None:
        """The byte of the file at which it is; None if that is unknown."""
    @property
    def arguments(self) -> Any:
        """What it would have been called with, usually a tuple; None if it was not called."""
    @property
    def states(self) -> list[Any]:
        """The states that it would have been given, usually one dict of attributes."""
    @property
    def items(self) -> list[tuple[Any, Any]]:
        """What would have been added to it: (key, value), with None as the key of what has none."""

@final
class _SafetensorsFile:
    """One safetensors file, open. Methods that take a name raise KeyError if there is no such tensor."""

    is_mapped: bool
    def __new__(cls, path: str | PathLike[str], *, backend: str) -> Self: ...
    def sorted_names(self) -> list[str]: ...
    def names(self) -> list[str]: ...
    def metadata(self) -> dict[str, str] | None: ...
    def dtype(self, name: str) -> str: ...
    def shape(self, name: str) -> list[int]: ...
    def slice(self, name: str, framework: Any) -> PySafeSlice: ...
    def entry(self, name: str) -> tuple[str, list[int], tuple[int, int]]: ...
    def buffer(self, name: str) -> Buffer: ...
    def part(self, name: str, index: Any) -> Buffer: ...
    def take(self, name: str, convert: Callable[[Any], _T], *, whole: bool) -> _T: ...
    def take_all(self, convert: Callable[[Any], _T]) -> dict[str, _T]: ...
    def buffers(self, device: Any = None, *, own: bool = False) -> list[tuple[str, Buffer]]: ...

@final
class PySafeSlice:
    """A tensor that is read in parts; what `safe_open.get_slice` returns."""

    def get_shape(self) -> list[int]:
        """The shape of the whole tensor, slowest dimension first."""
    def get_dtype(self) -> str:
        """The dtype as safetensors spells it, such as `BF16`."""
    def __getitem__(self, index: Any, /) -> Any:
        """The part that an index of the framework selects."""

def safetensors_header(
    start: bytes, length: int
) -> tuple[list[tuple[str, str, list[int], int, int]], list[tuple[str, str]]]:
    """What the header of a file says about its tensors, in their order, and its metadata."""

@final
class TorchFile:
    """One PyTorch file, open for a loader that builds its values as they are nested."""

    def __new__(cls, path: str | PathLike[str]) -> Self: ...
    @property
    def globals(self) -> list[str]:
        """Every class and function that the pickle names, in the order of their first appearance."""
    @property
    def is_stream(self) -> bool:
        """Whether it is a stream, of which a file may have several, one after the other, and not an archive."""
    @property
    def followed_at(self) -> int | None:
        """The byte at which the stream ends and something else follows; None if nothing does."""
    def build(
        self, builder: Any, *, data: bool, own: bool, device: Any = None, placeholders: bool = False
    ) -> Any:  # fmt: skip
        """The values as they are nested; `builder` makes what only torch can. Storages are taken together, each in
        memory of its `own`, on a device where one is named, or where the file is mapped, or not at all where `data` is
        false. What is not built is refused, or a placeholder.
        """

def torch_globals(
    node: WeightsNode,
) -> list[tuple[str, str, int, Literal["harmless", "library", "needs-trust", "runs-code"]]]: ...

@final
class Metadata:
    """The key-value pairs of a GGUF file: a mapping in the order of the file that decodes values on demand."""

    def __len__(self) -> int: ...
    def __contains__(self, key: object, /) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def __getitem__(self, key: str, /) -> Any: ...
    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or the default."""
    def keys(self) -> list[str]:
        """The keys, in the order of the file."""
    def values(self) -> list[Any]:
        """The values, all decoded."""
    def items(self) -> list[tuple[str, Any]]:
        """The pairs, all decoded."""
    def _repr_html_(self) -> str: ...

def open_weights(
    paths: Sequence[str | PathLike[str]], *, backend: str = "auto", strict: bool = True,
    max_header_bytes: int | None = None,
) -> WeightsNode:  # fmt: skip
    """Opens files of any format, or a model in the local cache by its name (a `str`), as one tree of weights."""

def _reopen_weights(
    paths: Sequence[str], arguments: dict[str, Any], marks: Sequence[tuple[int, int]], name: str
) -> WeightsNode: ...

@final
class _PickledFile:
    """A mapped file in a pickle. All tensors of one mapping refer to one of these, so that they also share a mapping
    where they arrive.
    """

    def __new__(cls, path: str | PathLike[str], expected: tuple[int, int]) -> Self: ...

def _remap_buffer(file: _PickledFile, reach: tuple[int, int], place: tuple[Any, ...]) -> Buffer: ...
def _rename_weights(node: WeightsNode, scheme: str, names: dict[str, str], heads: dict[str, int]) -> WeightsNode: ...
def _buffer_of_bytes(bytes: bytes, dtype: DType, shape: Sequence[int]) -> Buffer: ...
def buffers(node: WeightsNode) -> list[tuple[str, Buffer]]: ...
def scale_blocks(
    data: Buffer, scales: Buffer, *, block: tuple[int, int], dtype: DTypeLike, saturate: bool = False, out: Any = None
) -> Buffer:
    """`data × scale of its block`, on all cores."""

def dequantize(
    blocks: Buffer, encoding: QuantizationEncoding, dtype: DTypeLike, shape: Sequence[int], *, out: Any = None
) -> Buffer:
    """The elements of packed blocks as a float dtype, on all cores."""

def dequantize_groups(packed: Buffer, scales: Buffer, *, layout: str, bits: int, shape: tuple[int, int],
                      zero_points: Buffer | None, group_index: Buffer | None, group_size: int | None,
                      zero_point_offset: int, dtype: DTypeLike, out: Any = None) -> Buffer:  # fmt: skip
    """`(code - zero point) × scale` of packed integers with a scale for each group, on all cores."""

def quantize(values: Buffer, encoding: QuantizationEncoding) -> Buffer:
    """Float32 values as packed blocks, on all cores."""

def release_memory() -> int:
    """Give the memory of released large tensors back to the system; returns how many bytes that were."""

def data_of_all(nodes: Sequence[WeightsNode]) -> list[WeightData]: ...
def export_dlpack(node: WeightsNode, convert: Callable[[Any], _T]) -> dict[str, _T]: ...
def load_tensors(node: WeightsNode, names: Sequence[str], dtypes: Sequence[DType | None], *, cuts: _Cuts = None,
                 own: bool | None, outs: Mapping[int, Any], backend: str = "auto", threads: int | None = None,
                 drop_cache: bool = False, per_tensor: bool = False, max_host_bytes: int | None = None,
                 places: _Places = None, verify: Sequence[str] | None = None,
                 progress: Callable[[int, int], object] | None = None) -> tuple[list[Buffer], str]:  # fmt: skip
    """The tensors of these full names, each as the dtype beside it (None: as it is), in this order; and how they were
    read, in words.
    """

def save_tensors(path: str, names: Sequence[str], tensors: Sequence[Buffer], metadata: Mapping[str, str] | None, *,
                 alignment: int, sync: bool, stem: str | None = None, max_shard_size: int | None = None,
                 progress: Callable[[int, int], object] | None = None) -> list[Path]: ...  # fmt: skip
def serialize_tensors(names: Sequence[str], tensors: Sequence[Buffer], metadata: Mapping[str, str] | None, *,
                      alignment: int) -> bytes: ...  # fmt: skip
def place_file(path: str | PathLike[str], content: bytes, *, sync: bool) -> None:
    """Writes a small file from memory, which takes its place only when it is complete; until then, what was there
    remains. A link is itself replaced; a replaced file keeps its permissions.
    """

def save_converted(node: WeightsNode, names: Sequence[str], new_names: Sequence[str], dtypes: Sequence[DType | None],
                   path: str, metadata: Mapping[str, str], *, cuts: _Cuts = None, alignment: int, sync: bool,
                   stem: str | None = None, max_shard_size: int | None = None,
                   progress: Callable[[int, int], object] | None = None) -> list[Path]: ...  # fmt: skip
def save_gguf_tensors(path: str, tensors: Sequence[tuple[str, Buffer, str | None]], metadata: Sequence[tuple[str, str,
                      Any]], *, sync: bool, quantize: str | None = None, max_shard_size: int | None = None, progress:
                      Callable[[int, int], object] | None = None) -> list[Path]: ...  # fmt: skip
def save_gguf_weights(node: WeightsNode, names: Sequence[str], encodings: Sequence[str | None], path: str, metadata:
                      Sequence[tuple[str, str, Any]], *, sync: bool, quantize: str | None = None, max_shard_size:
                      int | None = None, progress: Callable[[int, int], object] | None = None
                      ) -> list[Path]: ...  # fmt: skip

@final
class FileWriter:
    """A safetensors file that is written as its tensors arrive."""

    def __new__(cls, path: str, tensors: Sequence[tuple[str, DTypeLike, Sequence[int]]], metadata: Mapping[str, str], *,
                alignment: int, sync: bool) -> Self: ...  # fmt: skip
    def write(self, name: str, tensor: Buffer) -> None:
        """Writes a whole tensor."""
    def write_part(self, name: str, offset: int, part: Buffer) -> None:
        """Writes some elements of a tensor, from its byte `offset` on."""
    def finish(self) -> None:
        """Puts the file in its place."""
    def discard(self) -> None:
        """Discards the file: what is at its path stays as it is."""

def digests_of(node: WeightsNode, names: Sequence[str], expected: Sequence[str] | None = None, *, threads: int | None
               = None, progress: Callable[[int, int], object] | None = None) -> list[str]: ...  # fmt: skip
def set_threads(threads: int | None) -> None:
    """Sets how many threads everything uses; None for as many as the process may use."""

def get_threads() -> int: ...
def accelerator_count() -> int: ...
def missing_accelerator(id: int) -> str | None: ...
def plan_tensors(node: WeightsNode, names: Sequence[str], dtypes: Sequence[DType | None], *, cuts: _Cuts = None,
                 own: bool | None, outs: set[int], backend: str = "auto", threads: int | None = None,
                 drop_cache: bool = False, per_tensor: bool = False, max_host_bytes: int | None = None,
                 places: _Places = None, whole: bool = False) -> tuple[
                 list[tuple[int, int, int, int, list[int], str, str, int]], list[tuple[str, int]], str]:  # fmt: skip
    """What `load_tensors` would do with the same arguments. Nothing of the files is read, and no memory taken."""

@final
class Ahead:
    """Fetches the pages that follow the weight that is taken, in the order of the files, if they come from a disk. Its
    threads end by themselves, and with it.
    """

    def __new__(cls, node: WeightsNode, names: Sequence[str], dtypes: Sequence[DType | None], own: bool) -> Self: ...
    def take(self, position: int) -> None:
        """Says that the weight at this position is going to be taken now."""

@final
class TensorStream:
    """An iterator of (position, tensor) that a thread reads ahead for: the tensors of these full names, each as the
    dtype beside it (None: as it is), in this order.
    """

    def __new__(
        cls, node: WeightsNode, names: Sequence[str], dtypes: Sequence[DType | None], *, cuts: _Cuts = None,
        backend: str = "auto", threads: int | None = None, drop_cache: bool = False,
        max_host_bytes: int | None = None, reuse: bool = False, device: Any = None,
    ) -> Self: ...  # fmt: skip
    @property
    def max_host_bytes(self) -> int:
        """The most bytes of host memory that tensors take which are read, wait, were given last, or travel."""
    @property
    def choice(self) -> str:
        """How files are read, and why, in words."""
    def __iter__(self) -> Self: ...
    def __next__(self) -> tuple[int, Buffer]: ...
    def close(self) -> None:
        """Ends the stream. Tensors that were given stay valid, unless their memory is reused."""

@final
class Report:
    """What a validation found."""

    @property
    def is_ok(self) -> bool:
        """Whether nothing was found that is worse than a note."""

    def render(self, format: str) -> str:
        """The report in a format of `max-weights validate --output`."""

def validate_files(
    paths: Sequence[str | PathLike[str]], *, level: str, select: list[str], ignore: list[str], severity: str,
    jobs: int | None = None, max_memory: int | None = None, timeout: float | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Report: ...  # fmt: skip
def statistics_of(
    node: WeightsNode, names: Sequence[str], *, bins: int = 0, progress: Callable[[int, int], object] | None = None
) -> list[tuple[str, str, tuple[int, ...], list[int] | None, list[Any], list[int], str | None]]: ...
def difference_of(
    a: WeightsNode, b: WeightsNode, *, rtol: float, atol: float, exact: bool, values: bool, dtypes: bool,
    metadata: bool, progress: Callable[[int, int], object] | None = None,
) -> str: ...  # fmt: skip
def command_line(arguments: Sequence[str | PathLike[str]]) -> int: ...
def files(node: WeightsNode) -> list[str]: ...
def hand_over(**objects: Any) -> None: ...
def near_names(names: list[str], wanted: list[str]) -> list[list[str]]: ...
def renamed_names(names: list[str], table: list[tuple[str, str]]) -> list[str | None]: ...
def printable(text: object) -> str: ...
def shown(text: object) -> str: ...
def tree(node: WeightsNode, *, lines: int | None = None, fold: bool = True) -> str: ...
def versions() -> str: ...
