"""The compiled part of `max_weights`: signatures, with the first paragraph of each text."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, final

from max_weights._buffer import DLPackArray
from max_weights._core._buffer import Buffer as Buffer
from max_weights._core._quantized import QuantizationConfig as QuantizationConfig
from max_weights._core._quantized import QuantizedLayout as QuantizedLayout
from max_weights._core._quantized import QuantizedListing as QuantizedListing
from max_weights._core._quantized import QuantizedNames as QuantizedNames
from max_weights._core._quantized import QuantizedRecord as QuantizedRecord
from max_weights._core._quantized import _decode_weights as _decode_weights
from max_weights._core._quantized import may_be_quantized as may_be_quantized
from max_weights._core._quantized import quantized_names as quantized_names
from max_weights._core._quantized import quantized_record as quantized_record
from max_weights._core._quantized import read_quantization_config as read_quantization_config
from max_weights._core._ranks import (
    RankPlan as RankPlan,
)
from max_weights._core._ranks import (
    RankSave as RankSave,
)
from max_weights._core._rows import PendingRows as PendingRows
from max_weights._core._rows import RowTable as RowTable
from max_weights._core._rows import rows_of as rows_of
from max_weights._core._weights import (
    GGUFWeights as GGUFWeights,
)
from max_weights._core._weights import (
    PytorchWeights as PytorchWeights,
)
from max_weights._core._weights import (
    SafetensorWeights as SafetensorWeights,
)
from max_weights._core._weights import (
    WeightInfo as WeightInfo,
)
from max_weights._core._weights import (
    WeightInfos as WeightInfos,
)
from max_weights._dtype import DType, DTypeLike
from max_weights._node import WeightsNode as WeightsNode
from max_weights._quantization import QuantizationEncoding
from max_weights._weight_data import WeightData

_T = TypeVar("_T")

_Cuts = Sequence[Sequence[tuple[int, Sequence[tuple[int, int]]]] | None] | None
_Places = Sequence[tuple[object, int]] | None
_Progress = Callable[[int, int], object] | None

# fmt: off
__all__ = [
    "Buffer",
    "DeltaLog",
    "FileWriter",
    "GGUFWeights",
    "Metadata",
    "Objects",
    "PendingRows",
    "Placeholder",
    "Prefetcher",
    "PySafeSlice",
    "PytorchWeights",
    "QuantizationConfig",
    "QuantizedLayout",
    "QuantizedListing",
    "QuantizedNames",
    "QuantizedRecord",
    "RangeSource",
    "RankPlan",
    "RankSave",
    "RemoteStore",
    "Report",
    "RowTable",
    "SafetensorWeights",
    "TensorStream",
    "TorchFile",
    "WeightInfo",
    "WeightInfos",
    "WeightsNode",
    "_PickledFile",
    "_SafetensorsFile",
    "__version__",
    "_buffer_of_bytes",
    "_convert_weights",
    "_decode_weights",
    "_first_fitting",
    "_panic",
    "_remap_buffer",
    "_rename_weights",
    "_reopen_weights",
    "accelerator_count",
    "apply_deltas_to",
    "buffers",
    "check_disjoint",
    "check_safetensors_name",
    "command_line",
    "data_of_all",
    "delta_header",
    "dequantize",
    "dequantize_codebook",
    "dequantize_groups",
    "difference_of",
    "digests_of",
    "escape",
    "export_dlpack",
    "file_identities",
    "files",
    "fingerprint_of",
    "fingerprints_of",
    "fingerprints_of_rows",
    "fold_deltas",
    "get_threads",
    "identity_of",
    "infos",
    "keys_of_content",
    "limit_threads",
    "load_tensors",
    "may_be_quantized",
    "missing_accelerator",
    "near_names",
    "open_weights",
    "opened_paths",
    "paths_of_deltas",
    "place_file",
    "plan_tensors",
    "printable",
    "quantize",
    "quantized_names",
    "quantized_record",
    "ranges_in_mesh",
    "read_quantization_config",
    "release_memory",
    "renamed_names",
    "rows_of",
    "safetensors_header",
    "save_converted",
    "save_gguf_tensors",
    "save_gguf_weights",
    "save_tensors",
    "scale_blocks",
    "serialize_tensors",
    "set_threads",
    "statistics_of",
    "torch_globals",
    "tree",
    "update_files",
    "validate_files",
    "verify_checksums",
    "versions",
    "weights_are_held",
    "write_delta",
]
# fmt: on

__version__: str

@final
class Objects:
    """The values of a PyTorch file that are not tensors, by full name: a mapping that makes values on demand. What is
    one value in the file is one object here, under every name, for as long as the mapping is held.
    """

    def __len__(self) -> int: ...
    def __contains__(self, key: object, /) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def __getitem__(self, key: str, /) -> Any: ...
    def get(self, key: str, default: object = None) -> Any:
        """The value of a name, or the default."""
    def keys(self) -> list[str]:
        """The names, in the order of the file."""
    def values(self) -> list[Any]:
        """All values."""
    def items(self) -> list[tuple[str, Any]]:
        """All names with their values."""

@final
class Placeholder:
    """A placeholder for an object that a pickle would build. It is not built, but described."""

    @property
    def global_name(self) -> str:
        """Module and name of the class or function, such as `__main__.Config`."""
    @property
    def position(self) -> int | None:
        """The byte of the file at which it is; None if that is unknown."""
    @property
    def arguments(self) -> object:
        """The arguments of the call, usually a tuple; None if it was not called."""
    @property
    def states(self) -> list[object]:
        """The states that it would get, usually one dict of attributes."""
    @property
    def items(self) -> list[tuple[object, object]]:
        """The items that it would get: (key, value), with None as the key of list items."""

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
    def slice(self, name: str, framework: object) -> PySafeSlice: ...
    def entry(self, name: str) -> tuple[str, list[int], tuple[int, int]]: ...
    def buffer(self, name: str) -> Buffer: ...
    def part(self, name: str, index: object) -> Buffer: ...
    def take(self, name: str, convert: Callable[[object], _T], *, whole: bool) -> _T: ...
    def take_all(self, convert: Callable[[object], _T]) -> dict[str, _T]: ...
    def buffers(self, device: object = None, *, own: bool = False) -> list[tuple[str, Buffer]]: ...

@final
class PySafeSlice:
    """A tensor that is read in parts; what `safe_open.get_slice` returns."""

    def get_shape(self) -> list[int]:
        """The shape of the whole tensor, slowest dimension first."""
    def get_dtype(self) -> str:
        """The dtype as safetensors spells it, such as `BF16`."""
    def __getitem__(self, index: object, /) -> Any:
        """The part that an index of the framework selects."""

def safetensors_header(
    start: bytes, length: int
) -> tuple[list[tuple[str, str, list[int], int, int]], list[tuple[str, str]]]: ...

@final
class TorchFile:
    """One PyTorch file, open for a loader that builds its nested values."""

    def __new__(cls, path: str | PathLike[str]) -> Self: ...
    @property
    def globals(self) -> list[str]:
        """Every class and function that the pickle names, in the order of their first appearance."""
    @property
    def is_stream(self) -> bool:
        """Whether it is a stream, several of which may follow each other in a file, and not an archive."""
    @property
    def followed_at(self) -> int | None:
        """The byte at which the stream ends and something else follows; None if nothing does."""
    def build(
        self, builder: object, *, data: bool, own: bool, device: object = None, placeholders: bool = False
    ) -> Any:  # fmt: skip
        """Builds the nested values; `builder` makes what only torch can. Storages are read together. They are copies if
        `own` is set, on a device if one is named, views if the file is mapped, and absent if `data` is false. Values
        that cannot be built are refused, or become placeholders.
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
    def get(self, key: str, default: object = None) -> Any:
        """The value of a key, or the default."""
    def keys(self) -> list[str]:
        """The keys, in the order of the file."""
    def values(self) -> list[Any]:
        """The values, all decoded."""
    def items(self) -> list[tuple[str, Any]]:
        """The pairs, all decoded."""
    def _repr_html_(self) -> str: ...

@final
class RangeSource:
    """A file whose ranges of bytes a function reads: `max_weights.remote.source`."""

    def __new__(
        cls, read_ranges: Callable[[list[tuple[int, int]]], Iterable[bytes | bytearray | memoryview]], size: int,
        name: str | PathLike[str], identity: bytes,
    ) -> Self: ...  # fmt: skip

@final
class RemoteStore:
    """The store with the options of a `max_weights.remote.Remote`."""

    def __new__(
        cls, *, endpoint: str | None, region: str | None, credentials: Callable[[], Mapping[str, str | None]] | None,
        anonymous: bool, allow_http: bool, requests: int, request_bytes: int | None, retries: int, stall: float,
        timeout: float | None, cache: str | PathLike[str] | None, cache_bytes: int,
    ) -> Self: ...  # fmt: skip

def open_weights(
    paths: Sequence[str | PathLike[str] | RangeSource], *, backend: str = "auto", strict: bool = True,
    max_header_bytes: int | None = None, store: RemoteStore | None = None,
) -> WeightsNode:  # fmt: skip
    """Opens files of any format, or a model in the local cache by its name (a `str`), as one tree of weights."""

def _reopen_weights(
    paths: Sequence[str], arguments: dict[str, object], marks: Sequence[tuple[int, int]], name: str
) -> WeightsNode: ...

@final
class _PickledFile:
    """A mapped file in a pickle. All tensors of one mapping refer to one of these, so that they also share a mapping
    where they arrive.
    """

    def __new__(cls, path: str | PathLike[str], expected: tuple[int, int]) -> Self: ...

def _remap_buffer(file: _PickledFile, reach: tuple[int, int], place: tuple[object, ...]) -> Buffer: ...
def _rename_weights(
    node: WeightsNode, scheme: str, names: dict[str, str], heads: dict[str, int], amounts: dict[str, int]
) -> WeightsNode: ...
def _convert_weights(
    node: WeightsNode, scheme: str, of_core: list[tuple[list[str], list[str], list[tuple[str, list[int], list[int]]]]],
    rules: object,
) -> WeightsNode: ...  # fmt: skip
def _first_fitting(node: WeightsNode, templates: list[str]) -> str | None: ...
def _buffer_of_bytes(bytes: bytes, dtype: DType, shape: Sequence[int]) -> Buffer: ...
def buffers(node: WeightsNode) -> list[tuple[str, Buffer]]: ...
def scale_blocks(
    data: Buffer,
    scales: Buffer,
    *,
    block: tuple[int, int],
    dtype: DTypeLike,
    saturate: bool = False,
    out: DLPackArray | None = None,
) -> Buffer:
    """`data × scale of its block`, on all cores."""

def dequantize(
    blocks: Buffer,
    encoding: QuantizationEncoding,
    dtype: DTypeLike,
    shape: Sequence[int],
    *,
    out: DLPackArray | None = None,
) -> Buffer:
    """The elements of packed blocks as a float dtype, on all cores."""

def dequantize_codebook(packed: Buffer, values: Buffer, scales: Buffer, *, bits: int, block: int, shape: Sequence[int],
                        factor: float | None = None, offset: float | None = None, dtype: DTypeLike,
                        out: DLPackArray | None = None) -> Buffer: ...  # fmt: skip
def dequantize_groups(packed: Buffer, scales: Buffer, *, layout: str, bits: int, shape: tuple[int, int],
                      zero_points: Buffer | None, group_index: Buffer | None, group_size: int | None,
                      zero_point_offset: int, dtype: DTypeLike,
                      out: DLPackArray | None = None) -> Buffer:  # fmt: skip
    """`(code - zero point) × scale` of packed integers with a scale for each group, on all cores."""

def quantize(values: Buffer, encoding: QuantizationEncoding) -> Buffer:
    """Float32 values as packed blocks, on all cores."""

def release_memory() -> int:
    """Give the memory of released large tensors back to the system; returns how many bytes that were."""

def data_of_all(nodes: Sequence[WeightsNode]) -> list[WeightData]: ...
def export_dlpack(node: WeightsNode, convert: Callable[[object], _T]) -> dict[str, _T]: ...
def load_tensors(node: WeightsNode, names: Sequence[str], dtypes: Sequence[DType | None], *, cuts: _Cuts = None,
                 own: bool | None, outs: Mapping[int, object], backend: str = "auto", threads: int | None = None,
                 drop_cache: bool = False, per_tensor: bool = False, max_memory: int | None = None,
                 places: _Places = None, verify: Sequence[str] | None = None,
                 progress: _Progress = None) -> tuple[list[Buffer], str]:  # fmt: skip
    """The tensors of these full names, each as its dtype (None: unchanged), in this order; and how they were read, in
    words."""

def save_tensors(path: str, names: Sequence[str], tensors: Sequence[Buffer], metadata: Mapping[str, str] | None, *,
                 alignment: int, sync: bool, verify: bool = False, stem: str | None = None,
                 max_shard_size: int | None = None, progress: _Progress = None,
                 store: RemoteStore | None = None, if_exists: str = "replace") -> list[Path]: ...  # fmt: skip
def serialize_tensors(names: Sequence[str], tensors: Sequence[Buffer], metadata: Mapping[str, str] | None, *,
                      alignment: int) -> bytes: ...  # fmt: skip
def check_disjoint(targets: Sequence[str | PathLike[str]], inputs: Sequence[str | PathLike[str]]) -> None:
    """Refuses output files and folders that are inputs, lie in one, or contain one."""

def check_safetensors_name(path: str | PathLike[str]) -> None:
    """Refuses a file name with the suffix of another format."""

def place_file(path: str | PathLike[str], content: bytes, *, sync: bool) -> None:
    """Writes a small file from memory, atomically: until it is complete, the old file stays. A link is itself replaced;
    a replaced file keeps its permissions."""

def save_converted(node: WeightsNode, names: Sequence[str], new_names: Sequence[str], dtypes: Sequence[DType | None],
                   path: str, metadata: Mapping[str, str], *, cuts: _Cuts = None, alignment: int, sync: bool,
                   verify: bool = False, stem: str | None = None, max_shard_size: int | None = None,
                   progress: _Progress = None, store: RemoteStore | None = None,
                   if_exists: str = "replace") -> list[Path]: ...  # fmt: skip
def save_gguf_tensors(path: str, tensors: Sequence[tuple[str, Buffer, str | None]], metadata: Sequence[tuple[str, str,
                      object]], *, sync: bool, verify: bool = False, quantize: str | None = None, max_shard_size:
                      int | None = None, progress: _Progress = None, store: RemoteStore |
                      None = None, if_exists: str = "replace") -> list[Path]: ...  # fmt: skip
def save_gguf_weights(node: WeightsNode, names: Sequence[str], encodings: Sequence[str | None], path: str, metadata:
                      Sequence[tuple[str, str, object]], *, sync: bool, verify: bool = False, quantize: str | None =
                      None, max_shard_size: int | None = None, progress: _Progress = None,
                      store: RemoteStore | None = None, if_exists: str = "replace") -> list[Path]: ...  # fmt: skip

@final
class FileWriter:
    """A safetensors file that is written as its tensors arrive."""

    def __new__(cls, path: str, tensors: Sequence[tuple[str, DTypeLike, Sequence[int]]], metadata: Mapping[str, str], *,
                alignment: int, sync: bool, verify: bool = False, store: RemoteStore | None = None,
                if_exists: str = "replace") -> Self: ...  # fmt: skip
    def names(self) -> list[str]:
        """The names of the tensors, in the order of the file."""
    def write(self, name: str, tensor: Buffer) -> None:
        """Writes a whole tensor."""
    def write_part(self, name: str, offset: int, part: Buffer) -> None:
        """Writes some elements of a tensor, from its byte `offset` on."""
    def finish(self) -> None:
        """Puts the file in its place."""
    def discard(self) -> None:
        """Discards the file; an existing one at its path stays unchanged."""

def digests_of(node: WeightsNode, names: Sequence[str], *, threads: int | None = None,
               progress: _Progress = None) -> list[str]: ...  # fmt: skip
def fingerprints_of(
    node: WeightsNode, names: Sequence[str], *, column_blocks: int = 1, threads: int | None = None,
    progress: _Progress = None,
) -> list[tuple[str, list[int], int, int, bytes]]:  # fmt: skip
    """Per weight: the kind of its elements, its shape, rows per block, blocks of columns, and 16 bytes per block."""

def fingerprint_of(tensor: Buffer, *, column_blocks: int = 1) -> tuple[str, list[int], int, int, bytes]: ...
def fingerprints_of_rows(tensor: Buffer) -> bytes: ...
def keys_of_content(node: WeightsNode, names: Sequence[str]) -> list[str | None]: ...
def weights_are_held(
    node: WeightsNode, names: Sequence[str], tensors: Sequence[Buffer], *, threads: int | None = None
) -> list[bool]: ...
def write_delta(
    base: WeightsNode | Sequence[tuple[str, Buffer]], new: WeightsNode | Sequence[tuple[str, Buffer]], path: str, *,
    dialect: tuple[str, str, str | None, str | None] | None = None, sync: bool = True, progress: _Progress = None,
) -> tuple[str, str, int, int, int, int, int, list[PathLike[str]]]: ...  # fmt: skip
def fold_deltas(
    base: Sequence[str], deltas: Sequence[str], *, path: str | None = None, keep: int = 0, sync: bool = True
) -> tuple[str, str, int, int, int, int, int, list[PathLike[str]]] | None: ...
def identity_of(node: WeightsNode) -> str: ...
def delta_header(
    path: str,
) -> tuple[str, str, str, dict[str, tuple[str, list[int]] | None], list[str], list[str], list[str]]: ...
def opened_paths(node: WeightsNode) -> list[str]: ...
def _panic(message: str) -> None: ...
def paths_of_deltas(paths: Sequence[str]) -> list[str]: ...

@final
class DeltaLog:
    """The content that deltas replaced in tensors in memory, for an undo."""

    def __new__(cls) -> Self: ...
    def undo(self, tensors: Sequence[tuple[str, object]]) -> None:
        """Restores tensors, by their names."""

def apply_deltas_to(
    paths: Sequence[str], tensors: Sequence[tuple[str, object]], log: DeltaLog, *,
    others: Sequence[str] | None = None, may_be_tied: bool = False, progress: _Progress = None,
) -> tuple[int, int, int]: ...  # fmt: skip
def update_files(
    target: str, paths: Sequence[str], *, sync: bool = True, verify: bool = False, progress: _Progress = None,
) -> tuple[str, int, list[PathLike[str]]]: ...  # fmt: skip
def set_threads(threads: int | None) -> None:
    """Set how many threads everything uses."""

def limit_threads(threads: int | None) -> int | None: ...
def get_threads() -> int: ...
def accelerator_count() -> int: ...
def missing_accelerator(id: int) -> str | None: ...
def plan_tensors(node: WeightsNode, names: Sequence[str], dtypes: Sequence[DType | None], *, cuts: _Cuts = None,
                 own: bool | None, outs: set[int], backend: str = "auto", threads: int | None = None,
                 drop_cache: bool = False, per_tensor: bool = False, max_memory: int | None = None,
                 places: _Places = None, whole: bool = False) -> tuple[
                 list[tuple[int, int, int, int, list[int], str, str, int]], list[tuple[str, int]], str]:  # fmt: skip
    """The plan of `load_tensors` with the same arguments. No file is read, and no memory is allocated."""

@final
class Prefetcher:
    """Fetches the pages that follow the weight that is taken, in file order, if they come from a disk. Its threads end
    when idle, or when it is dropped.
    """

    def __new__(cls, node: WeightsNode, names: Sequence[str], dtypes: Sequence[DType | None], own: bool) -> Self: ...
    def take(self, position: int) -> None:
        """Announces that the weight at this position is loaded next."""

def file_identities(node: WeightsNode) -> list[tuple[int, bool, int]]:
    """The identity of the files of a tree: the length of each, whether it is an object of a store, and a mark that
    changes with its content.
    """

def ranges_in_mesh(
    sizes: Sequence[int], splits: Sequence[tuple[int | None, int]], place: int, shape: Sequence[int]
) -> list[list[tuple[int, int]]]:
    """The ranges of each axis that the rank at a place of a mesh has of a tensor of this shape."""

@final
class TensorStream:
    """An iterator of (position, tensor) with a thread for readahead. It has the tensors of these full names, each as
    its dtype (None: unchanged), in this order; but the parts of a quantized weight follow the packed one.
    """

    def __new__(
        cls, node: WeightsNode, names: Sequence[str], dtypes: Sequence[DType | None], *, cuts: _Cuts = None,
        backend: str = "auto", threads: int | None = None, drop_cache: bool = False,
        max_memory: int | None = None, reuse: bool = False, device: object = None,
        verify: Sequence[str] | None = None,
    ) -> Self: ...  # fmt: skip
    @property
    def max_memory(self) -> int:
        """The most bytes of host memory of tensors that are being read, wait, were returned last, or are being
        copied.
        """
    @property
    def strategy(self) -> str:
        """How files are read, and why, in words."""
    def __iter__(self) -> Self: ...
    def __next__(self) -> tuple[int, Buffer]: ...
    def close(self) -> None:
        """Ends the stream. Tensors that were returned stay valid, unless their memory is reused."""

@final
class Report:
    """The findings of a validation."""

    @property
    def is_ok(self) -> bool:
        """Whether nothing was found that is worse than a note."""

    def render(self, format: str) -> str:
        """The report in a format of `max-weights validate --output`."""

def validate_files(
    paths: Sequence[str | PathLike[str]], *, level: str, select: list[str], ignore: list[str], severity: str, jobs: int
    | None = None, max_memory: int | None = None, timeout: float | None = None, progress: _Progress = None,
) -> Report: ...  # fmt: skip
def statistics_of(
    node: WeightsNode, names: Sequence[str], *, bins: int = 0, progress: _Progress = None
) -> list[tuple[str, str, tuple[int, ...], list[int] | None, list[int | float | None], list[int], str | None]]: ...
def difference_of(
    a: WeightsNode, b: WeightsNode, *, rtol: float, atol: float, exact: bool, values: bool, dtypes: bool,
    metadata: bool, progress: _Progress = None,
) -> str: ...  # fmt: skip
def command_line(arguments: Sequence[str | PathLike[str]]) -> int: ...
def infos(node: WeightsNode) -> WeightInfos:
    """The weights at and below a node, in file order, as a light listing: no tensors are made."""

def verify_checksums(node: WeightsNode) -> int:
    """Read every storage for which the PyTorch files of a node's checkpoint have a checksum, and compare; returns how
    many were compared."""

def files(node: WeightsNode) -> list[str]: ...
def near_names(names: list[str], requested: list[str]) -> list[list[str]]: ...
def renamed_names(names: list[str], table: list[tuple[str, str]]) -> list[str | None]: ...
def printable(text: object) -> str: ...
def escape(text: object) -> str: ...
def tree(node: WeightsNode, *, lines: int | None = None, fold: bool = True) -> str: ...
def versions() -> str: ...
