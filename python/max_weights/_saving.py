"""Save tensors as safetensors or GGUF files: files are replaced atomically, and equal tensors give equal bytes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from max_weights import _core
from max_weights._checkpoints import opened
from max_weights._core import RangeSource, escape
from max_weights._group_options import refuse_group_options
from max_weights._load_request import LoadRequest, holds_floats
from max_weights._progress import progress_of
from max_weights._remote import store_of
from max_weights._renaming import renamed
from max_weights._saved_paths import folder_path, form_of, paths_of, safetensors_path
from max_weights._saved_tensors import (
    UNPACK,
    buffer_of,
    check_names,
    check_whole,
    computed_names,
    encoding_of,
    items_of,
    metadata_of,
    prepared,
    quoted,
    require,
)
from max_weights._saving_gguf import Encoding, write_gguf
from max_weights._sizes import bytes_of
from max_weights._threads import threads_of_call
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    from typing import Self, Unpack

    from torch.distributed import ProcessGroup

    from max_weights._checkpoints import Checkpoint, Tensors
    from max_weights._core import WeightsNode
    from max_weights._dtype import DType
    from max_weights._load_request import DTypeOption, Rename
    from max_weights._progress import Progress
    from max_weights._remote import Remote
    from max_weights._saved_paths import Form
    from max_weights._selection import Select
    from max_weights.sharding._by_name import Shard

__all__ = ["SafetensorsWriter", "save", "save_file", "save_gguf", "save_sharded"]

StrPath = str | os.PathLike[str]
Tied = Literal["copy", "alias", "refuse"]
IfExists = Literal["replace", "fail", "same"]
Strided = Literal["copy", "refuse"]


class SaveOptions(TypedDict, total=False):
    """The options of `save`, which documents them, as `save_file` and the others take them."""

    dtype: DTypeOption | None
    rename: Rename | str | None
    select: Select | None
    shard: Shard | None
    max_shard_size: int | str | None
    name: str
    tied: Tied
    strided: Strided
    alignment: int
    quantize: Encoding | Mapping[str, Encoding] | None
    group: ProcessGroup | None
    rank_timeout: float
    sync: bool
    read_back: bool
    progress: Progress | bool | None
    remote: Remote | None
    if_exists: IfExists
    threads: int | None


@dataclass(frozen=True, kw_only=True)
class _Options:
    """All of them."""

    dtype: DTypeOption | None = None
    rename: Rename | str | None = None
    select: Select | None = None
    shard: Shard | None = None
    max_shard_size: int | str | None = None
    name: str = "model"
    tied: Tied = "copy"
    strided: Strided = "copy"
    alignment: int = 64
    quantize: Encoding | Mapping[str, Encoding] | None = None
    group: ProcessGroup | None = None
    rank_timeout: float = 600.0
    sync: bool = True
    read_back: bool = False
    progress: Progress | bool | None = None
    remote: Remote | None = None
    if_exists: IfExists = "replace"
    threads: int | None = None

    @classmethod
    def of(cls, verb: str, given: SaveOptions) -> _Options:
        """Return the options that were given."""
        for name in given:
            if name not in SaveOptions.__optional_keys__:
                raise TypeError(f"{verb}() got an unexpected keyword argument '{escape(name)}'")
        return cls(**given)

    def given(self, names: Iterable[str]) -> list[str]:
        """Return the names of these options that are set."""
        return [
            name
            for name in names
            if (value := getattr(self, name)) is not (default := getattr(_Options, name))
            and (default is None or value != default)
        ]

    def refuse(self, verb: str, names: Iterable[str], why: str) -> None:
        """Refuse options that would have no effect."""
        for name in self.given(names):
            raise ArgumentError(f"{verb}: {name}= {why}", rule="argument.no-effect")

    def native(self) -> dict[str, Any]:
        """Return the options that compiled code takes for every format."""
        store = store_of(self.remote)
        return {"sync": self.sync, "verify": self.read_back, "store": store, "if_exists": self.if_exists}


_OF_TREES = ("dtype", "rename", "select", "shard")
_OF_SAFETENSORS = (*_OF_TREES, "name", "tied", "strided", "alignment", "group")


def save(
    tensors: Checkpoint | Tensors,
    path: StrPath,
    metadata: Mapping[str, Any] | None = None,
    *,
    dtype: DTypeOption | None = None,
    rename: Rename | str | None = None,
    select: Select | None = None,
    shard: Shard | None = None,
    max_shard_size: int | str | None = None,
    name: str = "model",
    tied: Tied = "copy",
    strided: Strided = "copy",
    alignment: int = 64,
    quantize: Encoding | Mapping[str, Encoding] | None = None,
    group: ProcessGroup | None = None,
    rank_timeout: float = 600.0,
    sync: bool = True,
    read_back: bool = False,
    progress: Progress | bool | None = None,
    remote: Remote | None = None,
    if_exists: IfExists = "replace",
    threads: int | None = None,
) -> list[Path]:
    """Save tensors, a module or a checkpoint: as a safetensors file, a folder of them, or a GGUF file.

    The path decides: `model.safetensors` is one file, `model.gguf` a GGUF file, and any other name is a folder as on
    the Hugging Face hub, with an index if there are several files. An option that the format does not have is an error.

    Files are complete before the first takes its place, and a failure before that leaves the old ones: you can save
    over a file that is loaded. A file that is replaced keeps its permissions; a symbolic link is replaced, not
    followed. Files of an older save under the same name are removed. The same tensors and metadata give the same bytes,
    in any order. A checkpoint is read, converted and written in parts, in constant memory.

    Args:
        tensors: What to save, on any device: {name: tensor}, with arrays of NumPy, tensors of torch, JAX or MAX,
            weights, or anything that supports DLPack. Or a module of torch or of this package. Or a checkpoint: a path,
            a tree, or a branch, which keeps its full names.
        path: The file or folder, which is created; or its URL: `s3://bucket/key`, `gs://`, `az://`. An object appears
            only when it is complete, an index last.
        metadata: Of safetensors, strings by name, for each file; "format" is "pt" unless you set it, because other
            libraries require it. Of GGUF, also bool, int (u32, i32 if negative, i64 or u64 if larger), float (f32), and
            lists of one of these. NumPy scalars and arrays have the type of their dtype. Programs of llama.cpp need
            `general.architecture`.
        dtype: As for `load`: one for all floats, or {pattern: dtype}; floats become floats only, and packed weights are
            decoded. Packed weights of GGUF files need one. This and the next three are for safetensors.
        rename: As for `load`: a function of the name, a mapping, or a layout such as "hf". With the names of Hugging
            Face, tensors that llama.cpp computes from the configuration are omitted, unless `select` includes them.
        select: As for `load`.
        shard: As for `load`: that rank's part of each weight is saved.
        max_shard_size: The most bytes of tensors in a file of a folder, or of a set of GGUF files: a number, or a text
            such as "500MiB". A larger tensor gets a separate file. Default: "5GB" in a folder.
        name: The prefix of the names of files in a folder.
        tied: Tensors that are the same memory, with one dtype, shape and strides. With "copy" each is written; "alias"
            writes the first by name and records the others in the metadata, as `save_model` of safetensors does;
            "refuse" is an error.
        strided: Tensors that are not contiguous: "copy" writes their elements in C order, "refuse" is an error.
        alignment: The data, and tensors whose size is a multiple of `alignment`, begin at a multiple of it, in bytes.
        quantize: An encoding of GGUF that can be written (`q8_0`, `q4_0`, `q4_1`, `q5_0`, `q5_1`) for the matrices that
            llama.cpp quantizes; norms and vectors become float32. Or {pattern: encoding}: the first that matches a name
            applies.
        group: A process group of torch.distributed, all of whose ranks call this with one folder, each with its parts
            of the same tensors (DTensor) and all others. Replicated tensors are written once; the files equal those of
            one process. With distributed tensors the default is all ranks.
        rank_timeout: For how many seconds ranks wait for one that does not answer.
        sync: Wait until the bytes are on the disk.
        read_back: Read back what was written, past the page cache if the system can, and compare it before files take
            their places; of an object, read it from the store. Of several ranks, each compares what it wrote.
        progress: True for a bar, or a function of the bytes done and the total.
        remote: How a URL is opened: a `max_weights.Remote`.
        if_exists: "replace" an existing file; "fail"; or "same": keep it if it has the bytes that would be written, and
            fail otherwise. Of an object, the tag is compared if possible.
        threads: How many threads this uses.

    Returns:
        The paths of the files, an index last.

    Raises:
        ArgumentError: an option that the format or the tensors do not have, an invalid tensor name, or packed weights
            in safetensors. A path of another format, or of one of several files of the checkpoint. Tied or strided
            tensors that are refused, two weights with one name, or floats that would become integers. For GGUF, a name
            of 64 bytes or more, more than four dimensions, or rows that do not fill blocks (a ValueError).
        WeightNotFoundError: a name or pattern that matches nothing.
        UnsupportedError: elements of a type that the format does not have, or an encoding that cannot be written.
        TypeError: something that is not a tensor, or metadata of another type.
        FormatError: with `read_back`, the bytes read differ from those written. Files are not put in their places; an
            object has its name by then.
        FileExistsError: the file exists, and `if_exists` is "fail"; or "same", and its bytes differ.
        OSError: a system error, such as a full disk. Nothing has changed then, unless the error says so.
        RankError: on all ranks of `group`, the error of one of them.

    Example:
        >>> max_weights.save(model, "saved.safetensors")
        [PosixPath('saved.safetensors')]
        >>> max_weights.save(weights, "half", dtype="float16", max_shard_size=400)[-1].name
        'model.safetensors.index.json'
    """
    given = dict(locals())
    options = _Options(**{field.name: given[field.name] for field in fields(_Options)})
    return _save("save", form_of(path, max_shard_size), tensors, path, metadata, options)


def save_file(
    tensors: Checkpoint | Tensors,
    path: StrPath,
    metadata: Mapping[str, str] | None = None,
    **options: Unpack[SaveOptions],
) -> list[Path]:
    """Save tensors as one safetensors file, whatever its name; otherwise as `save`.

    Args:
        tensors: {name: tensor}, a module or a checkpoint.
        path: The file.
        metadata: Strings by name.
        **options: Those of `save`; an option that does not apply to a file is an error.

    Returns:
        The path of the file, in a list.

    Raises:
        ArgumentError: as for `save` (a ValueError), like its other errors.

    Example:
        >>> max_weights.save_file({"a": np.ones(4, np.float32)}, "one.safetensors", {"step": "100"})
        [PosixPath('one.safetensors')]
    """
    return _save("save_file", "file", tensors, path, metadata, _Options.of("save_file", options))


def save_sharded(
    tensors: Checkpoint | Tensors,
    path: StrPath,
    metadata: Mapping[str, str] | None = None,
    **options: Unpack[SaveOptions],
) -> list[Path]:
    """Save tensors as a folder of safetensors files with an index, whatever its name; otherwise as `save`.

    Args:
        tensors: {name: tensor}, a module or a checkpoint.
        path: The folder.
        metadata: Strings by name.
        **options: Those of `save`; an option that does not apply to a folder is an error.

    Returns:
        The paths of the files, an index last.

    Raises:
        ArgumentError: as for `save` (a ValueError), like its other errors.

    Example:
        >>> [path.name for path in max_weights.save_sharded({"a": np.ones(4)}, "folder")]
        ['model.safetensors']
    """
    return _save("save_sharded", "folder", tensors, path, metadata, _Options.of("save_sharded", options))


def save_gguf(
    tensors: Checkpoint | Tensors,
    path: StrPath,
    metadata: Mapping[str, Any] | None = None,
    **options: Unpack[SaveOptions],
) -> list[Path]:
    """Save tensors as a GGUF file (version 3, little-endian) or a set of them, whatever its name.

    A tree of a GGUF file keeps its metadata, and packed weights stay packed.

    Args:
        tensors: {name: tensor}, where `WeightData` may be packed, a module or a checkpoint.
        path: The file, such as `model.gguf`; with `max_shard_size` a set: `model-00001-of-00003.gguf` ….
        metadata: Values by key, as for `save`.
        **options: Those of `save`; an option that does not apply to GGUF is an error.

    Returns:
        The paths of the files.

    Raises:
        ArgumentError: as for `save` (a ValueError), like its other errors.

    Example:
        >>> max_weights.save_gguf(weights, "out.gguf", {"general.architecture": "llama"})
        [PosixPath('out.gguf')]
    """
    return _save("save_gguf", "gguf", tensors, path, metadata, _Options.of("save_gguf", options))


def _save(
    verb: str, form: Form, tensors: Any, path: StrPath, metadata: Mapping[str, Any] | None, options: _Options
) -> list[Path]:
    """Save anything in one format; `verb` is the function that the caller called."""
    if isinstance(tensors, str | os.PathLike | RangeSource) or _are_paths(tensors):
        with opened(tensors, verb) as tree:
            return _save(verb, form, tree, path, metadata, options)
    is_tree = isinstance(tensors, _core.WeightsNode)
    by_ranks = form == "folder" and (options.group is not None or _has_distributed(tensors))
    if form == "gguf":
        options.refuse(verb, _OF_SAFETENSORS, "is for safetensors files, and this writes GGUF: leave it out")
    else:
        options.refuse(verb, ("quantize",), "is for GGUF files, whose names end in .gguf: leave it out")
    if form == "file":
        refused = ("max_shard_size", "name", "group")
        options.refuse(verb, refused, "is for a folder of files, whose path ends in no .safetensors")
    if not by_ranks:
        refuse_group_options(verb, rank_timeout=options.rank_timeout)
        if not is_tree and options.given(_OF_TREES):  # their memory is converted and written in parts, too
            with opened(prepared(tensors, metadata, "copy", "copy")[0], verb, tensors=True) as tree:
                return _save(verb, form, tree, path, metadata, options)
    with threads_of_call(options.threads):
        if by_ranks:
            return _save_by_ranks(verb, tensors, folder_path(path, options.name), metadata, options)
        report, finish = progress_of(options.progress)
        native = options.native() | {"progress": report}
        try:
            if form == "gguf":
                return write_gguf(tensors, path, metadata, options.quantize, options.max_shard_size, native)
            native["alignment"] = options.alignment
            if form == "file":
                target = safetensors_path(path)
            else:
                target = folder_path(path, options.name)
                most = "5GB" if options.max_shard_size is None else options.max_shard_size
                native |= {"stem": options.name, "max_shard_size": bytes_of(most)}
            if is_tree and options.tied == options.strided == "copy":
                return _save_tree(tensors, target, metadata_of(metadata), options, native)
            options.refuse(verb, _OF_TREES, "converts in parts, which have no tied= and no strided=")
            if is_tree and form == "file":
                check_whole(tensors, target)
            named, noted = prepared(tensors, metadata, options.tied, options.strided)
            return paths_of(_core.save_tensors(target, list(named), list(named.values()), noted, **native))
        finally:
            finish()


def _save_tree(
    node: WeightsNode, target: str, metadata: dict[str, str], options: _Options, native: dict[str, Any]
) -> list[Path]:
    """Save the weights of a tree as safetensors, in parts: the whole is never in memory."""
    rename, select = options.rename, options.select
    if isinstance(rename, str):  # before the new names select which weights are omitted
        node, rename = renamed(node, rename), None
    computed = computed_names(node)
    if select is None and computed:
        select = lambda name: name not in computed  # noqa: E731 (a request takes a function of the name)
    request = LoadRequest(select, rename, options.dtype, shard=options.shard).resolve(node, unpack=UNPACK)
    for info, to in zip(request.infos, request.dtypes, strict=True):
        require(
            to is None or to.is_float() or not holds_floats(info),
            f"weight '{escape(info.name)}' holds floats, which would lose their fractions as {to and to.name}: give a "
            "dtype of floats, or convert them with astype() and call save_file",
        )
    check_names(request.new_names)
    files = _core.save_converted(
        request.node,
        request.names,
        request.new_names,
        request.dtypes,
        target,
        metadata,
        cuts=request.parts,
        **native,
    )
    return paths_of(files)


def _save_by_ranks(
    verb: str, tensors: Any, folder: str, metadata: Mapping[str, str] | None, options: _Options
) -> list[Path]:
    """Save the tensors of several ranks."""
    from max_weights._ranks.saving import Files, save_in_group

    options.refuse(verb, (*_OF_TREES, "tied", "strided", "if_exists"), "is for one process, not for several ranks")
    require(
        not isinstance(tensors, _core.WeightsNode),
        f"a tree of weights is saved by one process: call {verb} without group",
    )
    most = bytes_of("5GB" if options.max_shard_size is None else options.max_shard_size)
    files = Files(
        folder,
        metadata_of(metadata),
        most,
        options.name,
        options.alignment,
        options.sync,
        store_of(options.remote),
        options.read_back,
    )

    def items() -> list[tuple[str, object]]:
        named = items_of(tensors)
        packed = [name for name, tensor in named if encoding_of(tensor) is not None]
        require(not packed, f"{quoted(packed)} packed in blocks{UNPACK}")
        check_names(name for name, _ in named)
        return named

    return save_in_group(items, buffer_of, files, options.group, options.rank_timeout, options.progress)


def _are_paths(tensors: object) -> bool:
    """Whether this is a list of the files of a checkpoint."""
    return (
        isinstance(tensors, list | tuple)
        and bool(tensors)
        and all(isinstance(one, str | os.PathLike | RangeSource) for one in tensors)
    )


def _has_distributed(tensors: object) -> bool:
    """Whether some tensors are distributed over ranks; without torch, none is."""
    library = sys.modules.get("torch.distributed.tensor")
    if library is None or isinstance(tensors, _core.WeightsNode):
        return False
    if isinstance(tensors, Mapping):
        return any(isinstance(tensor, library.DTensor) for tensor in tensors.values())
    of_module = [getattr(tensors, name, None) for name in ("parameters", "buffers")]
    return any(isinstance(one, library.DTensor) for each in of_module if callable(each) for one in each())


class SafetensorsWriter:
    """Write a safetensors file tensor by tensor, in any order, in parts, and from several threads.

    The file is put in its place at the end of the `with` block, if every byte was written. An exception in the block,
    or `discard()`, leaves the old file. Only the header is kept in memory; for an object store, also incomplete parts
    of 8 MiB, which are few if tensors come in the order of `names`. A failed upload is aborted, and its writer is
    closed.

    Args:
        path: The file, or the URL of an object.
        tensors: {name: (dtype, shape)}.
        metadata: Strings by name; the other options are those of `save`.
        alignment: The multiple of bytes at which tensors begin.
        sync: Wait until the bytes are on the disk.
        read_back: Compare what was written.
        remote: How a URL is opened: a `max_weights.Remote`.
        if_exists: "replace" an existing file, "fail", or "same".

    Raises:
        ArgumentError: an invalid tensor name, or a shape that does not fill whole bytes (a ValueError).
        FileExistsError: as for `save`, here or when it is finished.
        OSError: a system error, such as a full disk or missing permission.

    Example:
        >>> with max_weights.SafetensorsWriter("new.safetensors", {"a": ("float32", (2, 3))}) as writer:
        ...     writer.write("a", np.ones((2, 3), np.float32))
    """

    def __init__(
        self,
        path: StrPath,
        tensors: Mapping[str, tuple[DType | str, Iterable[int]]],
        metadata: Mapping[str, str] | None = None,
        *,
        alignment: int = 64,
        sync: bool = True,
        read_back: bool = False,
        remote: Remote | None = None,
        if_exists: IfExists = "replace",
    ) -> None:
        check_names(tensors)
        native = _Options(sync=sync, read_back=read_back, remote=remote, if_exists=if_exists).native()
        declared = [(name, dtype, list(shape)) for name, (dtype, shape) in tensors.items()]
        self._file = _core.FileWriter(
            safetensors_path(path), declared, metadata_of(metadata), alignment=alignment, **native
        )

    @property
    def names(self) -> list[str]:
        """The names of the tensors, in the order of the file."""
        return self._file.names()

    def write(self, name: str, tensor: object) -> None:
        """Write a whole tensor.

        Args:
            name: Its name.
            tensor: The tensor or array, of the dtype and shape that were declared.

        Raises:
            ArgumentError: the name was not declared, the dtype or shape differs, or it was written before (a
                ValueError).
            OSError: a system error, such as a full disk.

        Example:
            >>> writer = max_weights.SafetensorsWriter("new.safetensors", {"a": ("float32", (3,))})
            >>> writer.write("a", np.ones(3, np.float32))
        """
        self._file.write(name, buffer_of(name, tensor))

    def write_part(self, name: str, offset: int, part: object) -> None:
        """Write some elements of a tensor in C order.

        Args:
            name: The tensor.
            offset: The byte of the tensor at which the elements begin.
            part: The elements, as a tensor or an array of any shape.

        Raises:
            ArgumentError: the name was not declared, or the bytes lie beyond its end or were written before (a
                ValueError).
            OSError: a system error, such as a full disk.

        Example:
            >>> writer = max_weights.SafetensorsWriter("new.safetensors", {"a": ("float32", (3,))})
            >>> writer.write_part("a", 4, np.ones(2, np.float32))
        """
        self._file.write_part(name, offset, buffer_of(name, part))

    def finish(self) -> None:
        """Put the file in its place.

        Raises:
            ArgumentError: not every byte of a tensor was written (a ValueError). Nothing has changed then.
            OSError: a system error, such as a full disk.

        Example:
            >>> writer = max_weights.SafetensorsWriter("new.safetensors", {})
            >>> writer.finish()
        """
        self._file.finish()

    def discard(self) -> None:
        """Discard the file; an existing one at its path stays.

        Example:
            >>> max_weights.SafetensorsWriter("new.safetensors", {"a": ("float32", (3,))}).discard()
        """
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
