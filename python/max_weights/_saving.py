"""Save tensors as safetensors files: files are replaced atomically, and equal tensors give equal bytes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from max_weights import _core
from max_weights._buffer import Buffer
from max_weights._core import infos, printable, shown
from max_weights._dtype import DType
from max_weights._group_options import refuse_group_options
from max_weights._load_request import LoadRequest, holds_floats
from max_weights._progress import progress_of
from max_weights._quantization import QuantizationEncoding
from max_weights._renaming import left_out, renamed
from max_weights._saved_paths import folder_path, paths_of, safetensors_path
from max_weights._sizes import bytes_of
from max_weights._weight_data import WeightData
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    from typing import Self

    import torch
    from torch.distributed import ProcessGroup

    from max_weights._core import WeightsNode
    from max_weights._load_request import DTypeOption, Rename
    from max_weights._progress import Progress
    from max_weights._ranks.saving import Files
    from max_weights._remote import Remote
    from max_weights._selection import Select
    from max_weights.sharding._by_name import Shard

__all__ = ["SafetensorsWriter", "save_file", "save_sharded", "save_weights"]

StrPath = str | os.PathLike[str]
Tied = Literal["copy", "alias", "refuse"]
IfExists = Literal["replace", "fail", "same"]
Strided = Literal["copy", "refuse"]

_UNPACK = (
    ", which a safetensors file cannot hold: weights.save(path, dtype='bfloat16') decodes them, "
    "and save_gguf keeps them"
)


def save_file(
    tensors: object,
    path: StrPath,
    metadata: Mapping[str, str] | None = None,
    *,
    tied: Tied = "copy",
    strided: Strided = "copy",
    alignment: int = 64,
    sync: bool = True,
    verify: bool = False,
    progress: Progress | bool | None = None,
    remote: Remote | None = None,
    if_exists: IfExists = "replace",
) -> None:
    """Save tensors as one safetensors file.

    The bytes are written to a temporary file in the same folder, which takes the place of `path` once it is complete. A
    failure before that leaves the old file untouched, and you can save over a file that is loaded at that moment. A
    file that is replaced keeps its permissions; a new one gets those that the umask gives. A symbolic link is replaced,
    not followed.

    The same tensors and metadata give the same bytes, in whatever order they are given.

    Args:
        tensors: {name: tensor}, where each is an array of NumPy, a tensor of torch, JAX or MAX, a weight, or anything
            that supports DLPack, on any device; or a module of torch or of this package; or a tree of weights, which is
            saved as `weights.save` does.
        path: The file; or the URL of an object: `s3://bucket/key`, `gs://`, `az://`. An object gets its name when all
            of its bytes are there; after an error nothing of it is.
        metadata: Strings by name. "format" is "pt" unless you set it, because other libraries ask for it.
        tied: What to do with tensors that are the same one, with the same memory, dtype, shape and strides: "copy"
            writes each of them; "alias" writes the first by name and records the others in the metadata as {other name:
            first name}, as `save_model` of safetensors does (a tensor whose name is already a key of the metadata is
            written); "refuse" raises an error.
        strided: What to do with tensors that are not contiguous: "copy" writes their elements in C order, "refuse"
            raises an error.
        alignment: The data begins at a multiple of this many bytes, and so does every tensor whose size is a multiple
            of it.
        sync: Wait until the bytes are on the disk, so that a loss of power leaves either the old file or the new one.
        verify: Read back what was written, past the page cache where the system can, and compare it before the file
            takes its place; of an object, what the store sends when it has its name.
        progress: True for a bar on standard error or in a notebook, or a function of the bytes done and the total.
        remote: For a URL: what the environment does not say of the store.
        if_exists: What becomes of a file that is there: "replace" it; "fail"; or "same", with which it stays and counts
            as saved if it has the bytes that would be written, and is an error otherwise. An object that stands is not
            sent again: its tag is compared if it is made of MD5s, or else it is read.

    Raises:
        ValueError: a name that a file cannot have, packed weights, tied or strided tensors that are refused, a path
            that ends in `.gguf` (`save_gguf` writes such files), or that of one of several files of the tree.
        UnsupportedError: weights of a tree whose elements are of a type that safetensors files do not have.
        TypeError: something that is not a tensor.
        FormatError: `verify`, and something else is read back than was written. The file is not put in its place; an
            object has its name by then.
        FileExistsError: there is such a file, and `if_exists` is "fail"; or "same", and it is another one.
        OSError: the system refuses, for lack of space or of permission. Nothing has changed then, unless the error says
            that the file has been replaced.
    """
    file = safetensors_path(path)
    if isinstance(tensors, _core.WeightsNode):
        if tied == strided == "copy":  # as a tree is saved by itself: in parts, never in memory as a whole
            save_weights(
                tensors,
                file,
                metadata=metadata,
                alignment=alignment,
                sync=sync,
                verify=verify,
                progress=progress,
                remote=remote,
                if_exists=if_exists,
            )
            return
        _check_whole(tensors, file)
    named, noted = _prepared(tensors, metadata, tied, strided)
    report, finish = progress_of(progress)
    try:
        _core.save_tensors(
            file,
            list(named),
            list(named.values()),
            noted,
            alignment=alignment,
            sync=sync,
            verify=verify,
            progress=report,
            store=None if remote is None else remote._store,
            if_exists=if_exists,
        )
    finally:
        finish()


def save_sharded(
    tensors: object,
    folder: StrPath,
    metadata: Mapping[str, str] | None = None,
    *,
    max_shard_size: int | str = "5GB",
    name: str = "model",
    tied: Tied = "copy",
    strided: Strided = "copy",
    alignment: int = 64,
    sync: bool = True,
    verify: bool = False,
    progress: Progress | bool | None = None,
    remote: Remote | None = None,
    if_exists: IfExists = "replace",
    group: ProcessGroup | None = None,
    timeout: float = 600.0,
) -> list[Path]:
    """Save tensors as a folder of safetensors files with an index, as on the Hugging Face hub.

    Files are filled one after the other, in the order of the names, where numbers in names are compared as numbers. If
    everything fits into one file, there is no index. All files are complete before the first one is put in its place;
    then files that an older save left under the same name are removed.

    Args:
        tensors: As for `save_file`.
        folder: The folder, which is created if it does not exist; or the URL of one, as for `save_file`. There the
            files get their names one after the other, the index last.
        metadata: As for `save_file`, written to each file.
        max_shard_size: The most bytes of tensors in a file: a number, or a string such as "5GB" or "500MiB". A larger
            tensor gets a file of its own.
        name: What the names of the files begin with: "model" gives `model-00001-of-00003.safetensors` and
            `model.safetensors.index.json`.
        tied: As for `save_file`.
        strided: As for `save_file`.
        alignment: As for `save_file`.
        sync: As for `save_file`.
        verify: As for `save_file`.
        progress: As for `save_file`.
        remote: As for `save_file`.
        if_exists: As for `save_file`.
        group: A process group of torch.distributed, all of whose ranks call this, each with what it has of the same
            tensors: parts of distributed ones (DTensor), and all of the others. Every rank writes its own part of the
            final files, and what several have is written once; what would be many short rows, and the parts of uploads,
            are exchanged first. The bytes are those that one process would write. All have to see the folder under one
            path, or the URL. With distributed tensors the default is all ranks.
        timeout: For how many seconds the ranks wait for one that does not answer.

    Returns:
        The paths of the files, the index last.

    Raises:
        ValueError: as for `save_file`, or the size is not valid.
        FileExistsError: as for `save_file`, of any of the files.
        UnsupportedError: as for `save_file`.
        TypeError: something that is not a tensor.
        FormatError: `verify`, and something else is read back than was written. The file is not put in its place.
        OSError: the system refuses, for lack of space or of permission.
        RankError: on all ranks of `group`, what went wrong on one of them. What was in the folder is as it was.
    """
    if group is not None or _has_distributed(tensors):
        from max_weights._ranks.saving import Files

        refused = {"tied": tied != "copy", "strided": strided != "copy", "verify": verify}
        refused["if_exists"] = if_exists != "replace"
        size, store = bytes_of(max_shard_size), None if remote is None else remote._store
        to = Files(folder_path(folder, name), metadata_of(metadata), size, name, alignment, sync, store)
        return _save_in_group(tensors, to, refused, group, timeout, progress)
    refuse_group_options("save_sharded", rank_timeout=timeout)
    if isinstance(tensors, _core.WeightsNode) and tied == strided == "copy":
        return save_weights(
            tensors,
            folder,
            metadata=metadata,
            max_shard_size=max_shard_size,
            name=name,
            alignment=alignment,
            sync=sync,
            verify=verify,
            progress=progress,
            remote=remote,
            if_exists=if_exists,
        )
    named, noted = _prepared(tensors, metadata, tied, strided)
    report, finish = progress_of(progress)
    try:
        files = _core.save_tensors(
            folder_path(folder, name),
            list(named),
            list(named.values()),
            noted,
            alignment=alignment,
            sync=sync,
            verify=verify,
            stem=name,
            max_shard_size=bytes_of(max_shard_size),
            progress=report,
            store=None if remote is None else remote._store,
            if_exists=if_exists,
        )
        return paths_of(files)
    finally:
        finish()


def _save_in_group(
    tensors: object,
    files: Files,
    refused: Mapping[str, bool],
    group: ProcessGroup | None,
    timeout: float,
    progress: Progress | bool | None,
) -> list[Path]:
    """Save what several ranks have."""
    from max_weights._ranks.saving import save_in_group

    if option := next((option for option, is_set in refused.items() if is_set), None):
        raise ArgumentError(f"save_sharded by several ranks has no {option}=")
    _require(
        not isinstance(tensors, _core.WeightsNode),
        "a tree of weights is saved by one process: call save_sharded without group",
    )

    def items() -> list[tuple[str, object]]:
        named = items_of(tensors)
        packed = [name for name, tensor in named if encoding_of(tensor) is not None]
        _require(not packed, f"{_names(packed)} packed in blocks{_UNPACK}")
        _check_names(name for name, _ in named)
        return named

    return save_in_group(items, buffer_of, files, group, timeout, progress)


def _has_distributed(tensors: object) -> bool:
    """Whether some tensors are distributed over ranks; without torch, none is."""
    library = sys.modules.get("torch.distributed.tensor")
    if library is None or isinstance(tensors, _core.WeightsNode):
        return False
    if isinstance(tensors, Mapping):
        return any(isinstance(tensor, library.DTensor) for tensor in tensors.values())
    of_module = [getattr(tensors, name, None) for name in ("parameters", "buffers")]
    return any(isinstance(one, library.DTensor) for each in of_module if callable(each) for one in each())


def save_weights(
    node: WeightsNode,
    path: StrPath,
    *,
    dtype: DTypeOption | None = None,
    rename: Rename | str | None = None,
    select: Select | None = None,
    shard: Shard | None = None,
    metadata: Mapping[str, str] | None = None,
    max_shard_size: int | str | None = None,
    name: str = "model",
    alignment: int = 64,
    sync: bool = True,
    verify: bool = False,
    progress: Progress | bool | None = None,
    remote: Remote | None = None,
    if_exists: IfExists = "replace",
) -> list[Path]:
    """Save the weights of a tree as safetensors; see `WeightsNode.save`."""
    target = safetensors_path(path) if max_shard_size is None else folder_path(path, name)
    if isinstance(rename, str):  # before it is said what is left out of the new names
        node, rename = renamed(node, rename), None
    computed = _computed(node)
    if select is None and computed:
        select = lambda name: name not in computed  # noqa: E731 (a request takes a function of the name)
    request = LoadRequest(select, rename, dtype, shard=shard).resolve(node, unpack=_UNPACK)
    for info, to in zip(request.infos, request.dtypes, strict=True):
        _require(
            to is None or to.is_float() or not holds_floats(info),
            f"weight '{shown(info.name)}' holds floats, which would lose their fractions as {to and to.name}: give a "
            "dtype of floats, or convert them with astype() and call save_file",
        )
    _check_names(request.new_names)
    report, finish = progress_of(progress)
    try:
        files = _core.save_converted(
            request.node,
            request.names,
            request.new_names,
            request.dtypes,
            target,
            metadata_of(metadata),
            cuts=request.parts,
            alignment=alignment,
            sync=sync,
            verify=verify,
            stem=name,
            max_shard_size=None if max_shard_size is None else bytes_of(max_shard_size),
            progress=report,
            store=None if remote is None else remote._store,
            if_exists=if_exists,
        )
        return paths_of(files)
    finally:
        finish()


class SafetensorsWriter:
    """Write a safetensors file tensor by tensor, in any order, in parts, and from several threads.

    >>> with SafetensorsWriter("model.safetensors", {"weight": (DType.float32, (2, 3))}) as writer:
    ...     writer.write("weight", array)

    The file is put in its place at the end of the `with` block, if every byte was written. An exception in the block,
    or `discard()`, leaves what was there before. Only the header is kept in memory; to an object store, also parts of
    8 MiB of which bytes are missing, which are few if tensors come in the order of `names`. An upload that failed is
    given up: its writer is closed.

    Args:
        path: The file, or the URL of an object, as for `save_file`.
        tensors: {name: (dtype, shape)}.
        metadata: As for `save_file`.
        alignment: As for `save_file`.
        sync: As for `save_file`.
        verify: As for `save_file`.
        remote: As for `save_file`.
        if_exists: As for `save_file`.

    Raises:
        ValueError: a name that a file cannot have, or a shape that does not fill whole bytes.
        FileExistsError: as for `save_file`, here or when it is finished.
        OSError: the system refuses, for lack of space or of permission.
    """

    def __init__(
        self,
        path: StrPath,
        tensors: Mapping[str, tuple[DType | str, Iterable[int]]],
        metadata: Mapping[str, str] | None = None,
        *,
        alignment: int = 64,
        sync: bool = True,
        verify: bool = False,
        remote: Remote | None = None,
        if_exists: IfExists = "replace",
    ) -> None:
        _check_names(tensors)
        declared = [(name, dtype, list(shape)) for name, (dtype, shape) in tensors.items()]
        file = safetensors_path(path)
        noted = metadata_of(metadata)
        self._file = _core.FileWriter(
            file,
            declared,
            noted,
            alignment=alignment,
            sync=sync,
            verify=verify,
            store=None if remote is None else remote._store,
            if_exists=if_exists,
        )

    @property
    def names(self) -> list[str]:
        """The names of the tensors, in the order in which they are in the file."""
        return self._file.names()

    def write(self, name: str, tensor: object) -> None:
        """Write a whole tensor.

        Raises:
            ValueError: the name was not declared, the dtype or shape differs, or the tensor was written before.
            OSError: the system refuses.
        """
        self._file.write(name, buffer_of(name, tensor))

    def write_part(self, name: str, offset: int, part: object) -> None:
        """Write some elements of a tensor in C order.

        Args:
            name: The tensor.
            offset: The byte of the tensor at which the elements begin.
            part: The elements, as a tensor or an array of any shape.

        Raises:
            ValueError: the name was not declared, or the bytes lie beyond its end or were written before.
            OSError: the system refuses.
        """
        self._file.write_part(name, offset, buffer_of(name, part))

    def finish(self) -> None:
        """Put the file in its place.

        Raises:
            ValueError: not every byte of a tensor was written. Nothing has changed then.
            OSError: the system refuses.
        """
        self._file.finish()

    def discard(self) -> None:
        """Give up on the file; whatever is at its path stays."""
        self._file.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.discard()


def _computed(node: WeightsNode) -> set[str]:
    """Return the names in a tree with Hugging Face's names that llama.cpp alone has: it computes these tensors."""
    return set() if node._scheme is None else set(left_out(info.name for info in infos(node)))


def _check_whole(node: WeightsNode, path: str) -> None:
    """Check that the file is not one of several of a tree: the others could not be opened without it."""
    files = {os.path.abspath(info.file) for info in infos(node)}
    _require(
        len(files) < 2 or os.path.abspath(path) not in files,
        f"'{printable(path)}': it is one of several files of the checkpoint, which could not be opened without it; "
        "write to another file",
    )


def _prepared(
    tensors: object, metadata: Mapping[str, str] | None, tied: Tied, strided: Strided
) -> tuple[dict[str, Buffer], dict[str, str]]:
    """Return the tensors to write, and the metadata."""
    _require(tied in ("copy", "alias", "refuse"), f'tied={tied!r}: it must be "copy", "alias" or "refuse"')
    _require(strided in ("copy", "refuse"), f'strided={strided!r}: it must be "copy" or "refuse"')
    noted = metadata_of(metadata)
    by_name = dict(items_of(tensors))
    packed = [name for name, tensor in by_name.items() if encoding_of(tensor) is not None]
    _require(
        not packed,
        f"{_names(packed)} packed in blocks{_UNPACK}; `to_buffer()` of a weight's data gives the bytes as they are",
    )
    named = {name: buffer_of(name, tensor) for name, tensor in by_name.items()}
    _check_names(named)
    if strided == "refuse":
        not_contiguous = [name for name, buffer in named.items() if not buffer.is_contiguous]
        _require(
            not not_contiguous,
            f"{_names(not_contiguous)} not contiguous; make them contiguous, or save with strided='copy'",
        )
    if tied == "copy":
        return named, noted
    groups: dict[object, list[str]] = {}
    for name, buffer in sorted(named.items()):
        if buffer.num_elements:
            place = (buffer.device, buffer._data_ptr(), buffer.dtype, buffer.shape, buffer.strides)
            groups.setdefault(place, []).append(name)
    for first, *others in groups.values():
        _require(
            tied == "alias" or not others, f"{_names([first, *others])} one tensor; save with tied='copy' or 'alias'"
        )
        for name in others:
            if noted.setdefault(name, first) == first:  # else the key says something else, and nothing would name it
                del named[name]
    return named, noted


def _check_names(names: Iterable[str]) -> None:
    """Check that tensors can be found again by these names."""
    odd = [name for name in names if isinstance(name, str) and (not name or "\0" in name)]
    _require(not odd, f"{_names(odd)} not a name that can be loaded again: a name must not be empty or contain NUL")


def items_of(tensors: Any) -> list[tuple[str, object]]:
    """Return the tensors of any object that has some by name; for a tree of weights and its nodes, their data."""
    if isinstance(tensors, _core.WeightsNode):
        computed = _computed(tensors)
        return [(name, weight.data()) for name, weight in tensors.items() if name not in computed]
    if isinstance(tensors, Mapping):
        return [
            (name, tensor.data() if isinstance(tensor, _core.WeightsNode) else tensor)
            for name, tensor in tensors.items()
        ]
    if hasattr(type(tensors), "state_dict"):  # a module of torch or of this package
        return items_of(tensors.state_dict())
    raise TypeError(f"tensors must be {{name: tensor}}, a module or a tree of weights, not {type(tensors).__name__}")


def encoding_of(tensor: object) -> QuantizationEncoding | None:
    """Return how the elements of a weight, ours or MAX's, are packed; `None` if they are not."""
    encoding = getattr(tensor, "quantization_encoding", None)
    return None if encoding is None else QuantizationEncoding(encoding.value)


def buffer_of(name: str, tensor: object) -> Buffer:
    """Return the memory of a tensor, whatever its layout and device.

    Raises:
        TypeError: it is not a tensor, or the name is not a string.
        ArgumentError: a tensor without elements in memory, or with a dtype that has no counterpart here (a ValueError).
        UnsupportedError: the data of a weight with such a dtype, which are the bytes as stored in its file.
    """
    if not isinstance(name, str):
        raise TypeError(f"the names of tensors must be strings, not {name!r}")
    if isinstance(tensor, WeightData) and tensor.refusal is not None:
        raise tensor.refusal.with_traceback(None)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        try:
            tensor = _plain(name, tensor)
        except ArgumentError:
            raise
        except (RuntimeError, ValueError) as error:
            raise ArgumentError(f"tensor '{shown(name)}': {error}") from None
    return Buffer.of(tensor, f"tensor '{shown(name)}'")


def _plain(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return a torch tensor as one of numbers in memory."""
    import torch

    tensor = tensor.detach()
    for refused, what in (
        (tensor.is_meta, "on the device meta, and has no elements; load it first"),
        (tensor.is_quantized, "quantized; save what dequantize() returns"),
        (tensor.is_nested, "nested; save its parts, or what to_padded_tensor() returns"),
        (tensor.layout is not torch.strided, f"{tensor.layout}; save what to_dense() returns"),
        (
            hasattr(tensor, "full_tensor"),
            "spread over several processes; call save_sharded on all of them, or save what full_tensor() returns",
        ),
    ):
        _require(not refused, f"tensor '{shown(name)}': it is {what}")
    DType.from_torch(tensor.dtype)  # a ValueError for a dtype that only torch has
    return tensor.resolve_conj().resolve_neg()


def metadata_of(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Return the metadata of a file, including the framework it is for."""
    noted = {"format": "pt", **(metadata or {})}
    for key, value in noted.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(
                f"metadata must map strings to strings, not {key!r}: {value!r}; write str(...) or json.dumps(...)"
            )
    return noted


def _names(names: list[str]) -> str:
    """Return the first few names, to begin a sentence with."""
    quoted = [f"'{shown(name)}'" for name in names[:5]]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{', '.join(quoted)}{more} {'is' if len(names) == 1 else 'are'}"


def _require(condition: object, message: str) -> None:
    if not condition:
        raise ArgumentError(message)
