"""Load many weights at once: which ones, under which names, as which dtype, and into which memory."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, overload

from max_weights._checkpoints import opened
from max_weights._core import GGUFWeights, buffers, data_of_all, escape, load_tensors
from max_weights._garbage import gc_paused
from max_weights._load_request import LoadRequest, Rename, ResolvedRequest
from max_weights._progress import Progress, progress_of
from max_weights._read_options import ReadKeywords, ReadOptions
from max_weights._selection import Select
from max_weights.errors import ArgumentError, DeviceError

if TYPE_CHECKING:
    from typing import Unpack

    import jax
    import torch
    from torch.distributed import ProcessGroup

    from max_weights._buffer import DLPackArray
    from max_weights._checkpoints import Checkpoint
    from max_weights._core import Buffer, WeightInfo, WeightsNode
    from max_weights._devices import DeviceLike
    from max_weights._load_request import DTypeOption, PackedOption
    from max_weights.sharding._by_name import Shard

# fmt: off
__all__ = [
    "Convert", "CopyOption", "LoadMethod", "LoadOptions", "RanksOptions", "StreamOptions", "TensorsOptions",
    "check_device", "chosen", "converter", "is_lazy", "load", "load_arrays", "load_ranks", "load_resolved",
    "log_strategy", "require_options", "resolve_device", "restore_torch_dtype",
]
# fmt: on

_Array = TypeVar("_Array")
Convert = Callable[["Buffer", "WeightInfo"], Any]


CopyOption: TypeAlias = bool | Literal["per-tensor"] | None
"""Whose memory tensors have: copies in one arena for each dtype (True), each its own, or views of the file (False)."""


class RanksOptions(ReadKeywords, total=False):
    """The keyword arguments of `load_ranks`, but for `framework`."""

    rename: Rename | str | None
    dtype: DTypeOption | None
    packed: PackedOption
    copy: CopyOption
    progress: Progress | bool | None
    options: ReadOptions | None


class LoadOptions(RanksOptions, total=False):
    """The keyword arguments that the functions that load a file hand on to `WeightsNode.load`."""

    select: Select | None
    shard: Shard | None


class StreamOptions(ReadKeywords, total=False):
    """The keyword arguments of `WeightsNode.stream`, but for `framework`."""

    rename: Rename | str | None
    dtype: DTypeOption | None
    packed: PackedOption
    progress: Progress | bool | None
    options: ReadOptions | None
    shard: Shard | None
    reuse: bool
    device: DeviceLike | None
    group: ProcessGroup | None
    rank_timeout: float


class TensorsOptions(RanksOptions, total=False):
    """The keyword arguments of `WeightsNode.load`, but for `framework`."""

    shard: Shard | None
    device: DeviceLike | None
    out: Mapping[str, DLPackArray] | None
    group: ProcessGroup | None
    rank_timeout: float


# The values that mean the same as leaving the option out.
_DEFAULTS = dict.fromkeys(LoadOptions.__optional_keys__) | vars(ReadOptions()) | {"options": ReadOptions()}
_WHICH = ("select", "rename")
_CUDA = 2  # DLPack's number for CUDA devices


def load(
    node: WeightsNode,
    request: LoadRequest,
    how: LoadMethod,
    *,
    framework: str | None,
    device: DeviceLike | None,
    out: Mapping[str, DLPackArray] | None,
    progress: Progress | bool | None,
) -> dict[str, Any]:
    """Load the weights below a node; see `WeightsNode.load`."""
    device = resolve_device(device, out)
    check_device(device, how.copy, framework)
    convert = converter(framework)
    with gc_paused():
        resolved = request.resolve(node)
    places = None if device is None else [(device, len(resolved.names))]
    loaded = load_resolved(resolved, how, convert=convert, places=places, out=out, progress=progress)
    return dict(zip(resolved.new_names, loaded, strict=True))


# fmt: off
@overload
def load_ranks(checkpoint: Checkpoint, shards: Sequence[Shard], devices: Sequence[DeviceLike],
               select: Select | None = None, *, framework: None = None,
               **options: Unpack[RanksOptions]) -> list[dict[str, Buffer]]: ...
@overload
def load_ranks(checkpoint: Checkpoint, shards: Sequence[Shard], devices: Sequence[DeviceLike],
               select: Select | None = None, *, framework: Literal["torch"],
               **options: Unpack[RanksOptions]) -> list[dict[str, torch.Tensor]]: ...
@overload
def load_ranks(checkpoint: Checkpoint, shards: Sequence[Shard], devices: Sequence[DeviceLike],
               select: Select | None = None, *, framework: Literal["jax"],
               **options: Unpack[RanksOptions]) -> list[dict[str, jax.Array]]: ...
# fmt: on
def load_ranks(
    checkpoint: Checkpoint,
    shards: Sequence[Shard],
    devices: Sequence[DeviceLike],
    select: Select | None = None,
    *,
    rename: Rename | str | None = None,
    dtype: DTypeOption | None = None,
    packed: PackedOption = None,
    framework: str | None = None,
    copy: CopyOption = None,
    progress: Progress | bool | None = None,
    options: ReadOptions | None = None,
    **read: Unpack[ReadKeywords],
) -> list[dict[str, Any]]:
    """Load the parts of several ranks, each to a separate GPU, from one pass over the files.

    Bytes that several ranks need are read once. A process that has one rank gives its `Shard` to `weights.load`.

    Args:
        checkpoint: A tree or a branch; or anything that `load_weights` opens.
        shards: The shard of each rank: `[Shard(rank, 2, "llama") for rank in range(2)]`.
        devices: The GPU of each: `["cuda:0", "cuda:1"]`.
        select: Which weights: names, globs, regular expressions or a function, as for `weights.load`.
        rename: New names: a function, a mapping or `hf`.
        dtype: The dtype for floats, packed blocks and quantized weights; or {name or pattern: dtype}.
        packed: Packed blocks and quantized weights: `keep` leaves them unchanged, `decode` decodes all.
        framework: Tensors of `torch` or `jax`; default: Buffer.
        copy: True (default): one block of memory for each dtype and GPU; `per-tensor`: separate memory.
        progress: A function of (bytes done, total bytes), or True for a bar.
        options: How files are read, as a `max_weights.types.ReadOptions`.
        **read: Single fields of `options`.

    Returns:
        {name: tensor} of each rank, in the order of `shards`.

    Raises:
        ArgumentError: there are not as many different GPUs as ranks (a ValueError); and for the reasons of
            `weights.load`.

    Example:
        >>> shards = [max_weights.sharding.Shard(rank, 2, "llama") for rank in range(2)]
        >>> ranks = max_weights.load_ranks("model.safetensors", shards, ["cuda:0", "cuda:1"])  # doctest: +SKIP
    """
    how = LoadMethod(copy, ReadOptions.of("load_ranks", options, read))
    from max_weights._devices import parse_device

    if not shards or len(shards) != len(devices) or len({parse_device(device) for device in devices}) != len(devices):
        raise ArgumentError(
            f"{len(shards)} ranks need as many different devices, not {list(devices)!r}", rule="argument.devices"
        )
    if any(parse_device(device)[0] == "cpu" for device in devices):
        raise ArgumentError(
            "several ranks go to separate GPUs; to the CPU, load one at a time", rule="argument.devices"
        )
    for device in devices:
        check_device(device, how.copy, framework)
    convert, what = converter(framework), LoadRequest(select, rename, dtype, packed)
    with opened(checkpoint, "load_ranks") as weights:
        with gc_paused():
            requests = [replace(what, shard=shard).resolve(weights) for shard in shards]
            joined = (list(itertools.chain(*lists)) for lists in zip(*(one[1:] for one in requests), strict=True))
            request = ResolvedRequest(requests[0].node, *joined)
        places = [(device, len(one.names)) for device, one in zip(devices, requests, strict=True)]
        loaded = iter(load_resolved(request, how, convert=convert, places=places, progress=progress))
    return [dict(zip(one.new_names, loaded, strict=False)) for one in requests]


@dataclass(frozen=True)
class LoadMethod:
    """The arguments of `WeightsNode.load` that say into whose memory it reads, and how it reads."""

    copy: CopyOption = None
    read: ReadOptions = field(default_factory=ReadOptions)

    def __post_init__(self) -> None:
        """Check that views are not combined with options that rule them out."""
        if not (self.copy is None or isinstance(self.copy, bool) or self.copy == "per-tensor"):
            raise ArgumentError(
                f"copy must be True, False, None or 'per-tensor', not {self.copy!r}", rule="argument.choice"
            )
        if self.copy is False and (self.read.drop_cache or self.read.backend not in ("auto", "mmap")):
            raise ArgumentError(
                "copy=False asks for views of the file: they need backend='mmap' and no drop_cache",
                rule="argument.conflict",
            )
        if self.copy is False and self.read.digests is not None:
            raise ArgumentError(
                "digests compares bytes that nothing changes later: it gives no views, as copy=False asks",
                rule="argument.conflict",
            )

    def arguments(self) -> dict[str, Any]:
        """Return them as the compiled functions take them."""
        return {
            "own": None if self.copy is None else bool(self.copy),
            "backend": self.read.backend_for(views=self.copy is False),
            "threads": self.read.threads,
            "drop_cache": self.read.drop_cache,
            "per_tensor": self.copy == "per-tensor",
            "max_memory": self.read.host_bytes,
        }


def load_resolved(
    request: ResolvedRequest,
    how: LoadMethod,
    *,
    convert: Convert,
    places: list[tuple[DeviceLike, int]] | None = None,
    out: Mapping[str, DLPackArray] | None = None,
    progress: Progress | bool | None = None,
) -> list[Any]:
    """Load what was resolved, in its order.

    `places` are devices, each with the number of weights that go there; default: host memory.
    """
    outs = request.index_outputs({} if out is None else out)
    expected = None if how.read.digests is None else request.digests(how.read.digests)
    report, finish = progress_of(progress)
    try:
        loaded, choice = load_tensors(
            request.node,
            request.names,
            request.dtypes,
            cuts=request.parts,
            outs=outs,
            places=places,
            verify=expected,
            progress=report,
            **how.arguments(),
        )
    finally:
        finish()
    log_strategy("load", choice)
    with gc_paused():
        return [convert(buffer, info) for buffer, info in zip(loaded, request.infos, strict=True)]


def resolve_device(device: DeviceLike | None, out: Mapping[str, DLPackArray] | None) -> DeviceLike | None:
    """Return the device to load to: the requested one, or else the GPU that holds the memory in `out`."""
    if not out:
        return device
    from max_weights._devices import parse_device

    locations = {name: _place_of(memory) for name, memory in out.items()}
    if device is None:
        device = next((f"{kind}:{number}" for kind, number in locations.values() if kind == "gpu"), None)
    target = ("cpu", 0) if device is None else parse_device(device)
    for name, location in locations.items():
        if location != target:
            raise DeviceError(
                f"out of '{escape(name)}' is on {location[0]}:{location[1]}, but the load goes to "
                f"{target[0]}:{target[1]}: load to one device at a time",
                rule="device.other",
            )
    return device


def _place_of(memory: DLPackArray) -> tuple[str, int]:
    """Return the device of memory; the host if it does not report one in the form of GPU memory."""
    try:
        kind, number = memory.__dlpack_device__()
    except Exception:
        return "cpu", 0  # the code that uses the memory reports what is wrong
    return ("gpu", int(number)) if kind == _CUDA else ("cpu", 0)


def check_device(device: DeviceLike | None, copy: CopyOption, framework: str | None) -> None:
    """Check that no option is combined with a GPU that a load cannot apply there; `None` is host memory."""
    if device is None:
        return
    from max_weights._devices import parse_device

    if parse_device(device)[0] == "cpu":
        return
    refused = {
        "copy=False": copy is False,
        "framework='numpy'": framework == "numpy",
    }
    if option := next((name for name, is_set in refused.items() if is_set), None):
        raise DeviceError(
            f"load to {escape(str(device))} has no {option} yet: load to the CPU, and move the tensors with "
            '.to("cuda")',
            rule="device.option",
        )


def log_strategy(what: str, strategy: str) -> None:
    """Log one line on how files are read for `what`; if `logging` is not imported, there is no handler."""
    if logging := sys.modules.get("logging"):
        logging.getLogger("max_weights").info("%s: %s", what, strategy)


def require_options(function: str, options: LoadOptions) -> None:
    """Refuse a keyword argument that `WeightsNode.load` does not have, by the name of the function that was called."""
    for name in options:
        if name not in TensorsOptions.__optional_keys__ and name not in LoadOptions.__optional_keys__:
            ReadOptions.of(function, None, {name: None})


def is_lazy(options: LoadOptions) -> bool:
    """Whether `load_file` gives views, which are read when they are used, and not what `load` has read.

    `select`, `rename` and `packed="keep"` say which tensors there are; any other option, what is done with them.
    """
    others = {name: value for name, value in options.items() if name not in _WHICH}
    return others.pop("packed", None) in (None, "keep") and others == {name: _DEFAULTS[name] for name in others}


def chosen(node: WeightsNode, options: LoadOptions) -> list[tuple[str, Buffer, WeightInfo]] | None:
    """Return the tensors that the options choose, by their new names, or `None` for all without changes."""
    what = LoadRequest(options.get("select"), options.get("rename"), packed=options.get("packed"))
    if what.select is None and what.rename is None and (what.keeps or not isinstance(node, GGUFWeights)):
        return None
    request = what.resolve(node)
    data = data_of_all([request.node[name] for name in request.names])
    return [
        (new, weight.to_buffer(), info)
        for new, weight, info in zip(request.new_names, data, request.infos, strict=True)
    ]


def load_arrays(
    checkpoint: Checkpoint, framework: str, options: LoadOptions, convert: Callable[[Buffer], _Array]
) -> dict[str, _Array]:
    """Load a checkpoint as arrays: views, where the options say nothing else."""
    require_options("load_file", options)
    with opened(checkpoint, "load_file") as weights:
        if not is_lazy(options):
            return weights.load(framework=framework, **options)
        some = chosen(weights, options)
        pairs = buffers(weights) if some is None else ((name, buffer) for name, buffer, _ in some)
        return {name: convert(buffer) for name, buffer in pairs}


def converter(framework: str | None) -> Convert:
    """Return the function that turns a `Buffer` into a tensor of a framework."""
    if framework not in _FRAMEWORKS:
        frameworks = ", ".join(repr(name) for name in _FRAMEWORKS if name)
        suggestion = _ELSEWHERE.get(framework) if isinstance(framework, str) else None
        hint = "" if suggestion is None else f": did you mean {suggestion!r}?"
        raise ArgumentError(f"framework must be {frameworks} or None, not {framework!r}{hint}", rule="argument.choice")
    return _FRAMEWORKS[framework]()


def _as_numpy() -> Convert:
    return lambda buffer, _: buffer.to_numpy()


def _as_torch() -> Convert:
    from torch.utils.dlpack import from_dlpack

    def convert(buffer: Buffer, info: WeightInfo) -> torch.Tensor:
        tensor = from_dlpack(buffer)
        return restore_torch_dtype(tensor, info) if isinstance(info.dtype, str) else tensor

    return convert


def restore_torch_dtype(tensor: torch.Tensor, info: WeightInfo) -> torch.Tensor:
    """Return a torch tensor in its own dtype, if it came as bytes because only torch has that dtype."""
    import torch

    dtype = getattr(torch, info.dtype, None) if isinstance(info.dtype, str) else None
    rank = len(info.shape)
    if isinstance(dtype, torch.dtype) and tensor.ndim == rank + 1 and tensor.shape[-1] == dtype.itemsize:
        return tensor.view(dtype).squeeze(-1)
    return tensor


def _as_jax() -> Convert:
    from jax.dlpack import from_dlpack

    return lambda buffer, _: from_dlpack(buffer)


# What other libraries call them.
_ELSEWHERE = {"pt": "torch", "pytorch": "torch", "np": "numpy", "flax": "jax"}
_FRAMEWORKS: dict[str | None, Callable[[], Convert]] = {
    None: lambda: lambda buffer, _: buffer,
    "numpy": _as_numpy,
    "torch": _as_torch,
    "jax": _as_jax,
}
