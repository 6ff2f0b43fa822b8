"""`WeightsNode`: a node of a tree of weights, and the operations on the weights at and below it.

Names, hops and single tensors are compiled; the rest is here. The module behind an operation is imported on first use.
"""

from __future__ import annotations

from max_weights._core import SafetensorWeights

TYPE_CHECKING = False  # typing is not imported: it takes longer than all of this
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from os import PathLike
    from pathlib import Path
    from typing import Any, Literal, TypeVar, Unpack, overload

    import jax
    import torch
    from torch.distributed import ProcessGroup

    from max_weights._buffer import Array, DLPackArray
    from max_weights._core import Buffer
    from max_weights._core._weights import Node
    from max_weights._devices import DeviceLike, DeviceRef
    from max_weights._dim import Dim
    from max_weights._dtype import DType
    from max_weights._load_request import DTypeOption, PackedOption, Rename
    from max_weights._loading import CopyOption, StreamOptions, TensorsOptions
    from max_weights._progress import Progress
    from max_weights._quantization import QuantizationEncoding
    from max_weights._read_options import ReadKeywords, ReadOptions
    from max_weights._saving import SaveOptions
    from max_weights._selection import Select
    from max_weights._streaming import WeightStream
    from max_weights.graph._weight import Weight
    from max_weights.sharding._by_name import Shard

    _Class = TypeVar("_Class", bound=type)
else:
    from max_weights._core import WeightsNode as Node

__all__ = ["WeightsNode"]


def _added_to(compiled: type) -> Callable[[_Class], _Class]:
    """Add the methods of the decorated class to a compiled one, and return the compiled one in its place.

    Compiled code creates nodes, a million per second, and only instances of compiled classes.
    """

    def add(face: Any) -> Any:
        for name, value in vars(face).items():
            if callable(value) or (name == "__doc__" and value):
                setattr(compiled, name, value)
        return compiled

    return add


@_added_to(Node)
class WeightsNode(Node):
    """One node of a tree of weights: a name, which may be that of a weight, a prefix of others, both, or neither.

    `weights.model.layers[0].weight` is the node named `model.layers.0.weight`: each attribute or index adds a
    component. A name is looked up when it is used; the error for an unknown name lists similar ones.

    A node that is a weight has `shape` and `dtype`, unless a child has such a name. Slices, `...` and tuples are
    NumPy's basic indexing, `weight[1:2]`, while an integer is always a child, `layers[1]`, `layers[-1]`. NumPy, torch,
    JAX and others accept a weight as an array. All weights at and below: `items()`, `len(node)`; `name in node` looks
    for one below. One level of the tree: `children()`. Two nodes are equal if they have one name in one tree. Less
    common operations are functions of the package: `max_weights.infos(node)`, `max_weights.stats(node)` …
    """

    __slots__ = ()

    if TYPE_CHECKING:
        # fmt: off
        @overload
        def load(self, select: Select | None = None, *,
                 framework: None = None, **options: Unpack[TensorsOptions]) -> dict[str, Buffer]: ...
        @overload
        def load(self, select: Select | None = None, *,
                 framework: Literal["numpy"], **options: Unpack[TensorsOptions]) -> dict[str, Array]: ...
        @overload
        def load(self, select: Select | None = None, *,
                 framework: Literal["torch"], **options: Unpack[TensorsOptions]) -> dict[str, torch.Tensor]: ...
        @overload
        def load(self, select: Select | None = None, *,
                 framework: Literal["jax"], **options: Unpack[TensorsOptions]) -> dict[str, jax.Array]: ...
        @overload
        def load(self, select: Select | None = None, *,
                 framework: str | None, **options: Unpack[TensorsOptions]) -> dict[str, Any]: ...
        # fmt: on

    def load(
        self,
        select: Select | None = None,
        *,
        rename: Rename | str | None = None,
        dtype: DTypeOption | None = None,
        packed: PackedOption = None,
        shard: Shard | None = None,
        framework: str | None = None,
        copy: CopyOption = None,
        device: DeviceLike | None = None,
        out: Mapping[str, DLPackArray] | None = None,
        group: ProcessGroup | None = None,
        rank_timeout: float = 600.0,
        progress: Progress | bool | None = None,
        options: ReadOptions | None = None,
        **read: Unpack[ReadKeywords],
    ) -> Any:
        """Load this weight, if it is one, and all weights below it: {name: tensor}, in file order.

        Everything is in memory when this returns. A weight is a view, on private pages of the file, if the file has it
        in the requested form, else a copy. Views are writable, and writing to them changes no file.

        Args:
            select: Which weights: a name (that weight, or all below it), a glob, a compiled regular expression that
                matches the whole name, several of these, or a function of the name. Default: all. An entry that fits no
                weight is an error, here and in the mappings below.
            rename: New names: a function of the name in the file (None drops the weight), or a mapping, in which a key
                that ends with a dot stands for every name that begins with it. Or `hf` for the Hugging Face names of a
                GGUF file. The names of the file are those that `select` matches, or, for `hf`, the new ones.
            dtype: The dtype for floats, packed blocks and quantized weights. Quantized weights are decoded, and then
                have the name and shape of the unquantized weight. Or {name or pattern: dtype}, for numbers of any
                kind: an exact name wins, else the first pattern that fits.
            packed: What is packed: `keep` leaves GGUF blocks as bytes, and the tensors of quantized weights unchanged;
                `decode` decodes all, to bfloat16 where `dtype` does not apply. Blocks need one of these or a `dtype`.
            shard: The part of one rank, such as `max_weights.sharding.Shard(0, 8, "llama")`: only this part is read.
                `dtype` is applied after sharding. `max_weights.load_ranks` loads several ranks at once.
            framework: `numpy`, `torch` or `jax`; default: Buffer.
            copy: True: copies, in one block of memory for each dtype. `per-tensor`: copies, each in memory that is
                released with it. False: views; a weight that cannot be a view is an error. Tied tensors stay tied.
            device: Where tensors go, such as `cuda:0`; default: where `out` is, or host memory. The last copies may be
                in flight when this returns; a consumer that takes a tensor through DLPack waits for them. Not with
                `copy=False` and NumPy.
            out: {new name: array or tensor} to write to: contiguous, of the shape and the dtype, on one device.
            group: A process group of torch.distributed, all of whose ranks call this for the same file, each with its
                own `shard`, or all with none: each byte is read by one rank. Not with `copy`, `digests` and `out`.
            rank_timeout: For how many seconds the ranks of `group` wait for one that does not answer.
            progress: A function of (bytes done, total bytes), called now and then; an exception from it cancels the
                load. True draws a bar.
            options: How files are read, as a `max_weights.types.ReadOptions`.
            **read: Single fields of `options`: `backend`, `max_memory`, `threads`, `drop_cache`, `digests`.

        Returns:
            The tensors by their (new) names.

        Raises:
            WeightNotFoundError: `select`, `rename`, `dtype`, `shard` or `out` names a weight that does not exist.
            ArgumentError: options that do not fit the weights or each other, packed blocks without `dtype` or `packed`,
                or more bytes than `max_memory` (a ValueError).
            UnsupportedError: an unsupported conversion.
            FileChangedError: a file changed after it was opened.
            FormatError: a tensor's digest differs from that in `digests`.
            DeviceError: the device does not exist, has too little memory, or lacks an option; nothing is left there.
            RankError: on all ranks of `group`, the error of one of them.

        Example:
            >>> weights.load("model.norm", framework="numpy", dtype="float16")["model.norm.weight"].dtype
            dtype('float16')
        """
        from max_weights._group_options import refuse_group_options
        from max_weights._load_request import LoadRequest
        from max_weights._loading import LoadMethod, load
        from max_weights._read_options import ReadOptions

        request = LoadRequest(select, rename, dtype, packed, shard)
        how = LoadMethod(copy, ReadOptions.of("load", options, read))
        if group is not None:
            from max_weights._ranks.loading import load_in_group

            refused = {"copy": copy is not None, "digests": how.read.digests is not None, "out": out is not None}
            return load_in_group(
                self,
                request,
                how.read,
                refused,
                group,
                rank_timeout,
                framework=framework,
                device=device,
                progress=progress,
            )
        refuse_group_options("load", rank_timeout=rank_timeout)
        return load(self, request, how, framework=framework, device=device, out=out, progress=progress)

    if TYPE_CHECKING:
        # fmt: off
        @overload
        def stream(self, select: Select | None = None, *,
                   framework: None = None, **options: Unpack[StreamOptions]) -> WeightStream[Buffer]: ...
        @overload
        def stream(self, select: Select | None = None, *,
                   framework: Literal["numpy"], **options: Unpack[StreamOptions]) -> WeightStream[Array]: ...
        @overload
        def stream(self, select: Select | None = None, *,
                   framework: Literal["torch"], **options: Unpack[StreamOptions]) -> WeightStream[torch.Tensor]: ...
        @overload
        def stream(self, select: Select | None = None, *,
                   framework: Literal["jax"], **options: Unpack[StreamOptions]) -> WeightStream[jax.Array]: ...
        @overload
        def stream(self, select: Select | None = None, *,
                   framework: str | None, **options: Unpack[StreamOptions]) -> WeightStream[Any]: ...
        # fmt: on

    def stream(
        self,
        select: Select | None = None,
        *,
        rename: Rename | str | None = None,
        dtype: DTypeOption | None = None,
        packed: PackedOption = None,
        shard: Shard | None = None,
        framework: str | None = None,
        reuse: bool = False,
        device: DeviceLike | None = None,
        group: ProcessGroup | None = None,
        rank_timeout: float = 600.0,
        progress: Progress | bool | None = None,
        options: ReadOptions | None = None,
        **read: Unpack[ReadKeywords],
    ) -> WeightStream[Any]:
        """Return an iterator of (name, tensor) over this weight, if it is one, and all below it, in bounded memory.

        Weights come in file order, but the scales and other parts of a quantized weight follow it immediately. A thread
        reads ahead. Every tensor owns its memory; tensors that you keep are not counted in `max_memory`. The stream
        ends with its last weight, an error, `close()` or the end of a `with` block, and when its last reference goes,
        as after a `break`. It keeps its files open: closing the weights does not end it.

        Args:
            select: Which weights, as for `load`; so are `rename`, `dtype`, `packed`, `shard` and `framework`.
            rename: New names.
            dtype: The dtype for floats, packed blocks and quantized weights.
            packed: `keep` leaves packed blocks and quantized weights unchanged, `decode` decodes all.
            shard: The part of one rank.
            framework: `numpy`, `torch` or `jax`; default: Buffer.
            reuse: Reuse a tensor's memory for the next ones: its content is undefined once the next is requested. For
                host memory, and callers that copy.
            device: Where tensors go, as for `load`; a consumer that takes one through DLPack has its stream wait for
                it.
            group: As for `load`: all ranks stream the same weights in the same order, each its own `shard` or all with
                none, and each byte is read by one rank. Not with `reuse` and `digests`.
            rank_timeout: For how many seconds the ranks of `group` wait for one that does not answer or is missing.
            progress: A function of (bytes streamed, total bytes), called now and then; an exception from it ends the
                stream. True draws a bar.
            options: How files are read, as a `max_weights.types.ReadOptions`.
            **read: Single fields of `options`.

        Returns:
            The iterator. An error about a weight is raised when that weight is requested.

        Raises:
            WeightNotFoundError: `select` names a weight that does not exist.
            ArgumentError: as for `load`, or `max_memory` is too small for a weight, which the message names (a
                ValueError).
            UnsupportedError: an unsupported conversion.
            FileChangedError: from the iterator; a file changed after it was opened.
            FormatError: from the iterator; a tensor's digest differs from that in `digests`.
            DeviceError: from the iterator; the GPU lacks memory.
            RankError: on all ranks of `group`, also from the iterator: the error of one of them, or one has ended its
                stream before this one.

        Example:
            >>> for name, tensor in weights.stream("model.norm", framework="numpy"): print(name, tensor.shape)
            model.norm.weight (8,)
        """
        from max_weights._group_options import refuse_group_options
        from max_weights._load_request import LoadRequest
        from max_weights._read_options import ReadOptions
        from max_weights._streaming import stream

        request, how = LoadRequest(select, rename, dtype, packed, shard), ReadOptions.of("stream", options, read)
        if group is not None:
            from max_weights._ranks.streaming import stream_in_group

            refused = {"reuse": reuse, "digests": how.digests is not None}
            return stream_in_group(
                self, request, how, refused, group, rank_timeout, framework=framework, device=device, progress=progress
            )
        refuse_group_options("stream", rank_timeout=rank_timeout)
        return stream(self, request, how, framework=framework, device=device, reuse=reuse, progress=progress)

    def save(
        self, path: str | PathLike[str], metadata: Mapping[str, Any] | None = None, **options: Unpack[SaveOptions]
    ) -> list[Path]:
        """Save the weights of this tree or branch, of any format, with `max_weights.save`.

        The path may be the file that the tree was loaded from. A branch keeps the full names.

        Args:
            path: `model.safetensors` is one file, `model.gguf` a GGUF file, any other name a folder of safetensors
                files. All arguments are those of `max_weights.save`.
            metadata: Strings by name; for GGUF, numbers, too.
            **options: `dtype`, `rename`, `select`, `shard`, `max_shard_size`, `name`, `alignment`, `quantize`, `tied`,
                `strided`, `sync`, `read_back`, `progress`, `remote`, `if_exists`, `threads`.

        Returns:
            The paths of the files, an index last.

        Raises:
            ArgumentError: as for `max_weights.save` (a ValueError), like its other errors.

        Example:
            >>> weights.save("decoder", select="model.layers", dtype="bfloat16")
            [PosixPath('decoder/model.safetensors')]
        """
        from max_weights._saving import save

        return save(self, path, metadata, **options)

    def allocate(
        self,
        dtype: DType | None = None,
        shape: Iterable[int | str | Dim] | None = None,
        quantization_encoding: QuantizationEncoding | None = None,
        device: DeviceRef | None = None,
    ) -> Weight:
        """Return a `Weight` of this name for a graph; its value is recorded in `allocated_weights`.

        Args:
            dtype: Converts the value to this dtype; default: the dtype of the file.
            shape: Must equal the weight's shape, except where a dimension is symbolic.
            quantization_encoding: The encoding of the file. In a file of mixed encodings, the weight keeps its
                encoding, and a warning says so.
            device: The target device; default: the CPU. On a GPU its value arrives when it is first used.

        Raises:
            WeightNotFoundError: a KeyError; there is no such weight.
            ValueError: another shape, or an encoding for a weight that is not quantized.

        Example:
            >>> weights.model.norm.weight.allocate("float16").dtype
            float16
        """
        from max_weights._allocation import allocate

        return allocate(self, dtype, shape, quantization_encoding, device)


@_added_to(SafetensorWeights)
class _SafetensorWeights(WeightsNode):
    __slots__ = ()

    def allocate_as_bytes(self, dtype: DType | None = None) -> Weight:
        """Return a uint8 `Weight` over the bytes: the last dimension times the item size; a scalar gets one.

        Args:
            dtype: What the weight's dtype must be, if it is given.

        Raises:
            WeightNotFoundError: a KeyError; there is no such weight.
            ValueError: its dtype is another one.

        Example:
            >>> weights.model.norm.weight.allocate_as_bytes().shape
            [Dim(32)]
        """
        from max_weights._allocation import allocate_as_bytes

        return allocate_as_bytes(self, dtype)
