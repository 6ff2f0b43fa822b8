"""The compiled part of `max_weights`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, ClassVar, Literal, Self, TypeVar, final, overload

import numpy as np
from typing_extensions import disjoint_base

from max_weights.buffer import DLPackArray
from max_weights.devices import Device, DeviceRef
from max_weights.dim import Dim
from max_weights.dtype import DType
from max_weights.graph.weight import Weight
from max_weights.quantization import QuantizationEncoding
from max_weights.weight_data import WeightData

_Index = int | slice | None
_Array = np.ndarray[Any, np.dtype[Any]]
_T = TypeVar("_T")
_Backend = Literal["auto", "mmap", "read"]
_Paths = str | PathLike[str] | Iterable[str | PathLike[str]]

# fmt: off
__all__ = [
    "RESERVED", "Buffer", "GGUFWeights", "Metadata", "Objects", "Placeholder", "PytorchWeights",
    "SafetensorWeights", "TorchFile", "WeightInfo", "WeightInfos", "WeightsNode", "_PickledFile", "__version__",
    "_buffer_of_bytes", "_remap_buffer", "_rename_weights", "_reopen_weights", "buffers", "data_of_all",
    "dequantize", "export_dlpack", "files", "hand_over", "near_names", "open_weights", "printable", "quantize",
    "release_memory", "scale_blocks", "shown", "torch_globals", "tree",
]
# fmt: on

__version__: str
RESERVED: list[str]
"""Names that a `Weights` keeps for itself, now or in a later version. A weight of such a name is reached by
`weights["name"]`.
"""

@final
class Buffer:
    """A tensor: dtype, shape, strides and device over memory that it keeps alive.

    A Buffer of a mapped file is a view of private pages: writing to it changes neither the file nor another process.
    It reaches NumPy by `to_numpy`, `numpy.asarray` or the buffer protocol, and torch, JAX and the others by DLPack,
    always without a copy. `repr` is short (`Buffer([5, 10])`), `str` adds dtype and device.
    """

    __hash__: ClassVar[None]  # type: ignore[assignment]

    @classmethod
    def from_numpy(cls, array: _Array | np.generic) -> Buffer:
        """The tensor of an array (those of ml_dtypes included), sharing its memory. Bytes in the other order are
        swapped into a copy.

        Raises:
            TypeError: not an array.
            ValueError: a dtype that no `DType` stands for.
        """

    @staticmethod
    def from_dlpack(array: DLPackArray, *, copy: bool | None = None) -> Buffer:
        """The tensor of any DLPack producer in host memory, sharing its memory unless `copy` is true.

        It is read-only where the producer says so, or cannot say it (docs/safety.md).

        Raises:
            BufferError: another device, an element type that no `DType` stands for, or a capsule that cannot be true.
        """

    @staticmethod
    def zeros(shape: Sequence[int], dtype: DType | str, device: Device | DeviceRef | None = None) -> Buffer:
        """A new tensor of zeros, aligned to 64 bytes.

        Raises:
            ValueError: a negative dimension, or a size that overflows.
            MemoryError: there is not enough memory.
            DeviceError: a device other than the CPU.
        """

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
    def rank(self) -> int:
        """The number of dimensions."""

    @property
    def num_elements(self) -> int:
        """The product of the shape."""

    @property
    def element_size(self) -> int:
        """Bytes of one element.

        Raises:
            ValueError: a packed dtype, of less than a byte an element.
        """

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, without the gaps that strides leave."""

    @property
    def is_contiguous(self) -> bool:
        """True if the elements lie in C order without gaps."""

    @property
    def aligned(self) -> bool:
        """True if the first element is aligned for its dtype."""

    @property
    def is_writable(self) -> bool:
        """False only for memory of others that they gave read-only."""

    @property
    def is_mapped(self) -> bool:
        """True for a view of a mapped file."""

    def _data_ptr(self) -> int: ...
    def _memory(self) -> tuple[Buffer, int]: ...
    def _require_file(self) -> None: ...
    def to_numpy(self) -> _Array:
        """An array over the same memory, which it keeps alive. bfloat16 and the 8-bit floats have the dtypes of
        ml_dtypes.

        Raises:
            ImportError: ml_dtypes is needed and missing.
            UnsupportedError: a packed dtype; view the bytes instead.
        """

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> _Array: ...
    def to(self, device: Device | DeviceRef | str) -> Buffer:
        """This tensor on a device; itself, if it is there.

        Raises:
            DeviceError: a device other than `cpu`, which is `cpu:0`.
        """

    def copy(self) -> Buffer:
        """A contiguous copy in memory of its own, which no change of the file can reach.

        Raises:
            MemoryError: there is not enough memory.
        """

    def astype(self, dtype: DType | str, *, saturate: bool = False, out: Any = None) -> Buffer:
        """The elements as another dtype, by the rules of docs/dtypes.md; itself if it has the dtype already.

        Floats round once to the nearest even, denormals are kept; too large a value becomes infinity, or NaN where
        there is none; floats become integers by truncation with saturation, NaN becomes 0. Runs on all cores with the
        interpreter released, and stops on Ctrl-C.

        Args:
            dtype: The dtype of the result.
            saturate: Give the largest finite value instead of infinity or NaN.
            out: A contiguous Buffer, array or DLPack tensor of this shape and the dtype, to write to.

        Raises:
            UnsupportedError: from or to complex64.
            ValueError: `out` does not fit, cannot be written in place, or overlaps this tensor.
            FileChangedError: the file of a mapped tensor was truncated.
        """

    def prefetch(self) -> Self:
        """Starts to read the bytes of this view of a mapped file, and no others, and returns the view. Does nothing to
        other tensors.

        The first use of a view reads what is around it as well, as far as the disk's read-ahead goes. For parts of a
        file, such as the rows of one rank, this reads less and sooner.
        """

    def contiguous(self) -> Buffer:
        """This tensor if it is contiguous and aligned, else a copy that is."""

    def view(self, dtype: DType | str, shape: Sequence[int] | None = None) -> Buffer:
        """The same bytes as elements of another dtype and shape; without a shape, the last dimension is scaled by the
        sizes.

        Raises:
            ValueError: the bytes do not fit, or are not contiguous.
        """

    def item(self) -> Any:
        """The value of a tensor of one element.

        Raises:
            ValueError: it has more or fewer.
        """

    def __getitem__(self, key: _Index | tuple[Any, ...], /) -> Buffer:
        """A view by NumPy's basic indexing: integers, slices, `...`, `None`.

        Raises:
            IndexError: out of bounds, or too many indices.
            TypeError: advanced indexing.
        """

    def __setitem__(self, key: Any, value: Any, /) -> None: ...
    def __contains__(self, value: object, /) -> bool:
        """True if an element equals the value, as in NumPy."""

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
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule, versioned if the consumer asks for version 1 or later.

        Raises:
            BufferError: a stream, another device, elements that DLPack cannot describe, or strides that go backward,
                over which torch may abort the process.
        """

    def __buffer__(self, flags: int, /) -> memoryview:
        """The buffer protocol.

        Raises:
            BufferError: writable memory, an order, or a format that is asked for and not there; bfloat16 and the 8-bit
                floats have no format.
            FileChangedError: the file was truncated, and the format is asked for, as those do who copy.
        """

@final
class WeightInfo:
    """One weight of a listing, without its tensor. Unpacks as (name, dtype, shape, bytes, file, offset, aligned)."""

    @property
    def name(self) -> str:
        """The full name."""

    @property
    def dtype(self) -> DType | str:
        """The dtype, or the file's own name for a type that this version does not know."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, slowest dimension first."""

    @property
    def logical_shape(self) -> tuple[int, ...]:
        """The shape counted in elements; `shape` counts bytes where elements are packed in blocks."""

    @property
    def encoding(self) -> QuantizationEncoding | None:
        """How the elements are packed; None where they are not."""

    @property
    def bytes(self) -> int:
        """Bytes of the elements: those in the file, but for the strides and the compression of PyTorch files."""

    @property
    def file(self) -> str:
        """The path of the file."""

    @property
    def offset(self) -> int:
        """The first byte in the file."""

    @property
    def aligned(self) -> bool:
        """True if the file has it at a multiple of its dtype's alignment, so that it needs no copy."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    @overload
    def __getitem__(self, index: int, /) -> Any: ...
    @overload
    def __getitem__(self, index: slice, /) -> Any: ...

@final
class WeightInfos:
    """The weights at and below a node, in file order: a sequence that makes a record when it is asked for one."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[WeightInfo]: ...
    @overload
    def __getitem__(self, index: int, /) -> WeightInfo: ...
    @overload
    def __getitem__(self, index: slice, /) -> WeightInfos: ...

@disjoint_base
class WeightsNode:
    """One node of the tree of names; see `max_weights.graph.weights.Weights`.

    `len(node)` counts the weights at and below it, `name in node` asks for one below it, `dir(node)` has its children.
    """

    @property
    def name(self) -> str:
        """The full name; empty at the root."""

    @property
    def allocated_weights(self) -> dict[str, DLPackArray]:
        """The values of all weights that `allocate` made, by full name."""

    @property
    def metadata(self) -> dict[str, str] | Metadata:
        """The metadata: of safetensors files, text (where files disagree on a key, the first has it); of GGUF files, a
        mapping that decodes a value when it is asked for; of PyTorch files, `byteorder` and, of an archive, `version`.
        """

    @property
    def warnings(self) -> list[str]:
        """What was accepted although it is not quite right."""

    def __getattr__(self, key: str, /) -> Any: ...
    def __getitem__(self, key: int | str, /) -> Self: ...
    def __array__(self, *args: Any, **kwargs: Any) -> _Array: ...
    def __dlpack__(self, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __contains__(self, key: object, /) -> bool: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> Literal[True]: ...
    def exists(self) -> bool:
        """True if there is a weight of exactly this name."""

    def items(self) -> Iterator[tuple[str, Self]]:
        """This weight, if it is one, and all below it, as (full name, node), in file order."""

    def infos(self) -> WeightInfos:
        """What `items` walks, as a light listing: no tensors are made."""

    def renamed(self, scheme: str) -> Self:
        """The weights of a GGUF file by the names that Hugging Face gives them (`hf`), as a tree of its own over the
        same open files; nothing is read. Names that the package gguf does not know stay as they are. Where llama.cpp's
        converter permuted the rows of queries and keys, they come in the model's order again.

        Raises:
            ValueError: another scheme, or not the root of a tree.
            UnsupportedError: not a GGUF file, or an architecture that the package gguf has no names for.
            ImportError: the package gguf is missing.
            ClosedError: the checkpoint was closed.
        """

    @property
    def _scheme(self) -> str | None: ...
    def data(self) -> WeightData:
        """The weight's tensor: a view of the mapped file where it is aligned there, else a copy of that tensor alone.

        Raises:
            WeightNotFoundError: a KeyError; there is no such weight. Names up to three near ones.
            ClosedError: the checkpoint was closed.
        """

    def allocate(
        self,
        dtype: DType | None = None,
        shape: Iterable[int | str | Dim] | None = None,
        quantization_encoding: QuantizationEncoding | None = None,
        device: DeviceRef | None = None,
    ) -> Weight:
        """A `Weight` of this name; its value is recorded in `allocated_weights`.

        Raises:
            WeightNotFoundError: there is no such weight.
            ValueError: the shape (symbolic dimensions match anything) or the encoding is another one.
        """

    def allocate_as_bytes(self, dtype: DType | None = None) -> Weight:
        """A uint8 `Weight` over the bytes: the last dimension times the item size.

        Raises:
            WeightNotFoundError: there is no such weight.
            ValueError: its dtype is not `dtype`.
        """

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
        cls, filepaths: _Paths, *, backend: _Backend = "auto", strict: bool = True, max_header_bytes: int | None = None
    ) -> Self:
        """Open files as one checkpoint; the arguments are those of `load_weights`."""

@final
class GGUFWeights(WeightsNode):
    """Weights in a GGUF file, or in the files of a split set, by GGUF's own names.

    A quantised weight's data are its packed blocks: dtype uint8, the shape of the bytes, the encoding set; `astype`
    decodes them.
    """

    def __new__(
        cls, source: _Paths, *, backend: _Backend = "auto", strict: bool = True, max_header_bytes: int | None = None
    ) -> Self:
        """Open a file (any of a split set opens the set) or several; the arguments are those of `load_weights`."""

@final
class PytorchWeights(WeightsNode):
    """Weights in files of `torch.save`, of any version from 0.1.10 on. Nothing that a file names is ever called.

    Nested dicts give names with dots, indices of lists too. A tensor is a view of its storage, with its strides. What
    is no array (a sparse or quantised tensor, one on the device "meta") is listed, and its `data()` says why; the
    arrays that it is made of have names below its own.
    """

    def __new__(
        cls, filepath: _Paths, *, backend: _Backend = "auto", strict: bool = True, max_header_bytes: int | None = None
    ) -> Self:
        """Open a file, or several, as one checkpoint; the arguments are those of `load_weights`."""

    def aliases(self) -> list[list[str]]:
        """Groups of weights at and below this node that share bytes: tied weights.

        Two weights share bytes if they are views of one storage and the ranges from their first byte to their last
        overlap. Each group, and all groups, are in file order; a weight that shares nothing is in none.
        """

    def verify_checksums(self) -> int:
        """Read every storage whose checksum the files know, and compare; the number of those that were compared.

        Opening checks the checksum of the pickle, and taking a compressed tensor that of its storage. Other storages
        are mapped, and read when they are used, so theirs are checked by this alone.

        Raises:
            FormatError: a storage has another checksum than its file says; the message names the entry.
        """

    def objects(self) -> Objects:
        """The values at and below this node that are no tensors, by full name."""

@final
class Objects:
    """The values of a PyTorch file that are no tensors, by full name: a mapping that makes a value when it is asked
    for. What is one value in the file is one object here, under every name, for as long as the mapping is held.

    Numbers, text, bytes, lists, tuples, sets and dicts are Python's own; NumPy scalars are numbers, NumPy arrays
    arrays, dtypes `DType`s, shapes tuples. Everything else is a `Placeholder`.
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
    """Stands for an object that a pickle would have made. It is not built; what the file says of it is here."""

    @property
    def global_name(self) -> str:
        """Module and name of the class or function, such as `__main__.Config`."""

    @property
    def position(self) -> int | None:
        """The byte of the file at which it stands; None where that is not known."""

    @property
    def arguments(self) -> Any:
        """What it would have been called with, usually a tuple; None where it was not called."""

    @property
    def states(self) -> list[Any]:
        """The states that it would have been given, usually one dict of attributes."""

    @property
    def items(self) -> list[tuple[Any, Any]]:
        """What would have been added to it: (key, value), the key None for what has none."""

@final
class TorchFile:
    def __new__(cls, path: str | PathLike[str], *, backend: str = "auto") -> Self: ...
    def build(self, builder: Any, *, data: bool) -> Any: ...

def torch_globals(node: WeightsNode) -> list[tuple[str, str, int, Literal["known", "unknown", "dangerous"]]]:
    """Every class and function that the pickles of a checkpoint name, in the order of their first places: (file, name,
    byte, verdict).
    """

@final
class Metadata:
    """The key-value pairs of a GGUF file: a mapping in the order of the file that decodes a value when it is asked for.

    Arrays of numbers are NumPy arrays over the header's bytes, other arrays lists; strings that are not UTF-8 are
    bytes.
    """

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

def open_weights(
    paths: Sequence[str | PathLike[str]],
    *,
    backend: str = "auto",
    strict: bool = True,
    max_header_bytes: int | None = None,
) -> WeightsNode: ...
def _reopen_weights(
    paths: Sequence[str], arguments: dict[str, Any], marks: Sequence[tuple[int, int]], name: str
) -> WeightsNode: ...

@final
class _PickledFile:
    def __new__(cls, path: str | PathLike[str], expected: tuple[int, int]) -> Self: ...

def _remap_buffer(file: _PickledFile, reach: tuple[int, int], place: tuple[Any, ...]) -> Buffer: ...
def _rename_weights(node: WeightsNode, scheme: str, names: dict[str, str], heads: dict[str, int]) -> WeightsNode: ...
def _buffer_of_bytes(bytes: bytes, dtype: DType, shape: Sequence[int]) -> Buffer: ...
def buffers(node: WeightsNode) -> list[tuple[str, Buffer]]:
    """Every tensor at and below a node, in file order."""

def scale_blocks(
    data: Buffer, scales: Buffer, *, block: tuple[int, int], dtype: DType | str, saturate: bool = False
) -> Buffer: ...
def dequantize(
    blocks: Buffer, encoding: QuantizationEncoding, dtype: DType | str, shape: Sequence[int], *, out: Any = None
) -> Buffer: ...
def quantize(values: Buffer, encoding: QuantizationEncoding) -> Buffer: ...
def release_memory() -> int:
    """Give the memory of released large tensors back to the system; returns how many bytes that were.

    Large results are made in blocks that are kept then, up to an eighth of the machine's memory: fresh pages are slow.
    """

def data_of_all(nodes: Sequence[WeightsNode]) -> list[WeightData]: ...
def export_dlpack(node: WeightsNode, convert: Callable[[Any], _T]) -> dict[str, _T]:
    """Every tensor at and below a node, in file order: {name: convert(DLPack capsule)}."""

def files(node: WeightsNode) -> list[str]:
    """The paths of the files that a node's checkpoint consists of."""

def hand_over(**objects: Any) -> None: ...
def near_names(names: list[str], wanted: list[str]) -> list[list[str]]: ...
def printable(text: object) -> str:
    """The text with an escape for each character that could steer a terminal or mislead the eye."""

def shown(text: object) -> str:
    """The same, cut where it is very long: a name, key or value as a message quotes it."""

def tree(node: WeightsNode, *, lines: int | None = None, fold: bool = True) -> str:
    """The tree below a node as text; `lines` none for all of it."""
