"""Load many weights at once: which ones, under which names, as which dtype, and into which memory."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Required, TypedDict

from max_weights._core import GGUFWeights, digests_of, load_tensors, renamed_names, shown
from max_weights.devices import place
from max_weights.dtype import DType
from max_weights.errors import ArgumentError, DeviceError
from max_weights.progress import Progress, progress_of
from max_weights.selection import Pattern, Select, fits, not_found, require_effect, selected
from max_weights.sharding.by_name import Cut, Ranks, Shard, parts_of_rank
from max_weights.sizes import bytes_of

if TYPE_CHECKING:
    from max_weights._core import Buffer, WeightInfo, WeightsNode

__all__ = [
    "Convert",
    "LoadOptions",
    "Rank",
    "RanksOptions",
    "Rename",
    "Select",
    "TensorsOptions",
    "Wanted",
    "as_they_are",
    "backend_for",
    "by_position",
    "check_copy",
    "check_device",
    "converter",
    "device_for",
    "digests",
    "digests_expected",
    "dtypes_wanted",
    "host_bytes",
    "load",
    "log_choice",
    "names_of_tree",
    "own_dtype",
    "ranks_of",
    "renamed_by",
    "resolved",
    "selected",
    "wanted_of_ranks",
]

Rename = Callable[[str], "str | None"] | Mapping[str, str]
Convert = Callable[["Buffer", "WeightInfo"], Any]


class _Read(TypedDict, total=False):
    """What is read and how."""

    rename: Rename | str | None
    dtype: Any
    packed: bool
    backend: Literal["auto", "mmap", "read", "direct", "cufile"]
    max_host_bytes: int | str | None
    threads: int | None
    progress: Progress | bool | None
    drop_cache: bool
    verify: Mapping[str, str] | None


class _Kept(_Read, total=False):
    copy: bool | None
    storage: Literal["arena", "per-tensor"]


class LoadOptions(_Kept, total=False):
    """The options of `WeightsNode.load` that the functions which load a file accept, too."""

    shard: Shard | None
    select: Select | None


class TensorsOptions(_Kept, total=False):
    """The keyword arguments of `WeightsNode.load`, but for `framework`, which decides the type of the tensors."""

    shard: Shard | None
    device: Any
    out: Mapping[str, Any] | None


class RanksOptions(_Read, total=False):
    """The same for several ranks, each on a device of its own."""

    shard: Required[Ranks]
    storage: Literal["arena", "per-tensor"]
    device: Required[list[Any] | tuple[Any, ...]]


# The values that mean the same as leaving the option out.
_DEFAULTS: dict[str, object] = dict.fromkeys((*LoadOptions.__optional_keys__, *LoadOptions.__required_keys__)) | {
    "packed": False,
    "storage": "arena",
    "backend": "auto",
    "drop_cache": False,
}
_STORAGES = ("arena", "per-tensor")
_CUDA = 2  # DLPack's number for CUDA devices


def load(
    node: WeightsNode,
    select: Select | None = None,
    *,
    rename: Rename | str | None = None,
    dtype: Any = None,
    packed: bool = False,
    shard: Shard | Ranks | None = None,
    framework: str | None = None,
    copy: bool | None = None,
    storage: str = "arena",
    backend: str = "auto",
    max_host_bytes: int | str | None = None,
    threads: int | None = None,
    progress: Progress | bool | None = None,
    drop_cache: bool = False,
    verify: Mapping[str, str] | None = None,
    device: Any = None,
    out: Mapping[str, Any] | None = None,
) -> Any:
    """Load the weights below a node; see `WeightsNode.load`."""
    check_copy(copy, storage, backend, drop_cache, verify)
    ranks = ranks_of(shard, device_for(device, out))
    check_device(ranks, copy, framework, out)
    convert = converter(framework)
    with collecting_later():
        wanted, places = wanted_of_ranks(node, select, rename, dtype, packed, ranks)
    outs = by_position({} if out is None else out, wanted)
    expected = None if verify is None else digests_expected(wanted, verify)
    most = host_bytes(max_host_bytes)
    told, end = progress_of(progress)
    try:
        loaded, choice = load_tensors(
            wanted.node,
            wanted.names,
            wanted.dtypes,
            cuts=wanted.parts,
            own=copy,
            outs=outs,
            backend=backend_for(backend, copy),
            threads=threads,
            drop_cache=drop_cache,
            per_tensor=storage == "per-tensor",
            max_host_bytes=most,
            places=places,
            verify=expected,
            progress=told,
        )
    finally:
        end()
    log_choice("load", choice)
    with collecting_later():
        made = zip(wanted.new_names, loaded, wanted.infos, strict=True)
        tensors = ((new, convert(buffer, info)) for new, buffer, info in made)
        if places is None or isinstance(ranks, Rank):
            return dict(tensors)
        return [dict(itertools.islice(tensors, count)) for _, count in places]


@contextlib.contextmanager
def collecting_later() -> Iterator[None]:
    """Pause garbage collection: it would run again and again over many new objects, all of which stay alive."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Wanted(NamedTuple):
    """What the arguments of `load` ask for, with one entry for each weight, in the order of the files."""

    node: WeightsNode
    names: list[str]
    new_names: list[str]
    infos: list[WeightInfo]
    dtypes: list[DType | None]
    """`None` for the dtype in the file."""
    parts: list[Cut | None]
    """`None` for the whole weight."""


def resolved(
    node: WeightsNode,
    select: Select | None,
    rename: Rename | str | None,
    dtype: Any,
    packed: bool,
    shard: Shard | None,
) -> Wanted:
    """Resolve the arguments of `load`: which weights, under which names, as which dtype, and which part of each."""
    if isinstance(rename, str):
        node, rename = node.renamed(rename), None
    infos = {info.name: info for info in node.infos()}
    names = list(infos) if select is None else selected(list(infos), select)
    every = names_of_tree(node)
    new_names = {name: name for name in names} if rename is None else renamed_by(names, rename, every)
    chosen = [infos[name] for name in new_names]
    parts: list[Cut | None] = [None] * len(chosen) if shard is None else parts_of_rank(node, chosen, shard)
    dtypes = dtypes_wanted(chosen, dtype, packed, every)
    return Wanted(node, list(new_names), list(new_names.values()), chosen, dtypes, parts)


def names_of_tree(node: WeightsNode) -> Callable[[], list[str]]:
    """Return a function that lists all names of the checkpoint: a table of options may be for more than one node."""
    return lambda: [info.name for info in node._root.infos()]


class Rank(NamedTuple):
    """What is loaded for one rank, and to which device."""

    shard: Shard | None
    """`None` for everything."""
    device: Any
    """`None` for host memory."""


def ranks_of(shard: Any, device: Any) -> Rank | list[Rank]:
    """Return the rank to load, or a list of ranks, each with a device of its own.

    Raises:
        ArgumentError: the numbers of ranks and devices differ, or a device is given twice (a ValueError).
    """
    ranks = shard[0] if isinstance(shard, tuple | list) and len(shard) == 3 else None
    several = isinstance(ranks, Sequence) and not isinstance(ranks, str)
    if not several and not isinstance(device, list | tuple):
        return Rank(shard, device)
    devices = list(device) if isinstance(device, list | tuple) else []
    if not several or not ranks or len(devices) != len(ranks) or len({place(one) for one in devices}) != len(devices):
        raise ArgumentError(
            "several ranks need as many different devices: shard=(range(2), 2, strategies), device=['cuda:0', 'cuda:1']"
        )
    return [Rank((rank, *shard[1:]), one) for rank, one in zip(ranks, devices, strict=True)]


def wanted_of_ranks(
    node: WeightsNode,
    select: Select | None,
    rename: Rename | str | None,
    dtype: Any,
    packed: bool,
    ranks: Rank | list[Rank],
) -> tuple[Wanted, list[tuple[Any, int]] | None]:
    """Return what is wanted, rank by rank, and each rank's device (`None`: host memory) and number of weights."""
    if isinstance(ranks, Rank):
        wanted = resolved(node, select, rename, dtype, packed, ranks.shard)
        return wanted, None if ranks.device is None else [(ranks.device, len(wanted.names))]
    of_ranks = [resolved(node, select, rename, dtype, packed, rank.shard) for rank in ranks]
    joined = (list(itertools.chain(*lists)) for lists in zip(*(one[1:] for one in of_ranks), strict=True))
    places = [(rank.device, len(one.names)) for rank, one in zip(ranks, of_ranks, strict=True)]
    return Wanted(of_ranks[0].node, *joined), places


def by_position(out: Mapping[str, Any], wanted: Wanted) -> dict[int, Any]:
    """Look up the given memory by new name, and return it by the positions of the weights."""
    positions = {new: position for position, new in enumerate(wanted.new_names)}
    for name in out:
        if name not in positions:
            raise not_found(name, list(positions), "out names")
    return {positions[name]: memory for name, memory in out.items()}


def digests(
    node: WeightsNode,
    select: Select | None = None,
    *,
    threads: int | None = None,
    progress: Progress | bool | None = None,
) -> dict[str, str]:
    """Compute the digests of the weights below a node; see `WeightsNode.digests`."""
    names = [info.name for info in node.infos()]
    names = names if select is None else selected(names, select)
    told, end = progress_of(progress)
    try:
        return dict(zip(names, digests_of(node, names, threads=threads, progress=told), strict=True))
    finally:
        end()


def digests_expected(wanted: Wanted, verify: Mapping[str, str]) -> list[str]:
    """Return the digest that each weight must have, or raise an error for a weight that has none in `verify`."""
    for name in wanted.names:
        if not isinstance(verify.get(name), str):
            raise ArgumentError(
                f"verify has no digest of '{shown(name)}': it needs one for every weight that is loaded"
            )
    return [verify[name] for name in wanted.names]


def check_copy(copy: bool | None, storage: str, backend: str, drop_cache: bool, verify: object) -> None:
    """Check that views are not combined with options that rule them out, and that the kind of storage is known."""
    if not (copy is None or isinstance(copy, bool)):
        raise ArgumentError(f"copy must be True, False or None, not {copy!r}")
    if storage not in _STORAGES:
        raise ArgumentError(f"storage must be 'arena' or 'per-tensor', not {storage!r}")
    if copy is False and (drop_cache or backend not in ("auto", "mmap")):
        raise ArgumentError("copy=False asks for views of the file: they need backend='mmap' and no drop_cache")
    if copy is False and verify is not None:
        raise ArgumentError("verify compares bytes that nothing changes later: it gives no views, as copy=False asks")


def device_for(device: Any, out: Mapping[str, Any] | None) -> Any:
    """Return the device to load to: the requested one, or else the GPU that holds the memory in `out`.

    Raises:
        DeviceError: some of the memory is elsewhere.
    """
    if not out or isinstance(device, list | tuple):
        return device
    found = {name: _place_of(memory) for name, memory in out.items()}
    if device is None:
        device = next((f"{kind}:{number}" for kind, number in found.values() if kind == "gpu"), None)
    wanted = ("cpu", 0) if device is None else place(device)
    for name, there in found.items():
        if there != wanted:
            raise DeviceError(
                f"out of '{shown(name)}' is on {there[0]}:{there[1]}, but the load goes to {wanted[0]}:{wanted[1]}: "
                "load to one device at a time"
            )
    return device


def host_bytes(most: Any) -> int | None:
    """Return `max_host_bytes` as a number: it may be a string such as "500MB"."""
    if most is None:
        return None
    count = bytes_of(most, "max_host_bytes") if isinstance(most, str) else most
    if not isinstance(count, int) or count <= 0:
        raise ArgumentError(f"max_host_bytes must be a number of bytes above 0, not {most!r}")
    return count


def _place_of(memory: Any) -> tuple[str, int]:
    """Return where memory is; host memory if it does not say, or does not say it as GPU memory does."""
    try:
        kind, number = memory.__dlpack_device__()
    except Exception:
        return "cpu", 0  # the code that uses the memory reports what is wrong
    return ("gpu", int(number)) if kind == _CUDA else ("cpu", 0)


def check_device(
    ranks: Rank | list[Rank], copy: bool | None, framework: str | None, out: Mapping[str, Any] | None
) -> None:
    """Check that no option is combined with a GPU that a load cannot apply there."""
    devices = [ranks.device] if isinstance(ranks, Rank) else [rank.device for rank in ranks]
    elsewhere = [device for device in devices if device is not None and place(device)[0] != "cpu"]
    if not isinstance(ranks, Rank) and (out or len(elsewhere) != len(devices)):
        raise ArgumentError("several ranks go to separate GPUs; to the CPU, or with out, load one at a time")
    if not elsewhere:
        return
    refused = {
        "copy=False": copy is False,
        "framework='numpy'": framework == "numpy",
    }
    if asked := next((name for name, given in refused.items() if given), None):
        raise DeviceError(
            f"load to {shown(str(elsewhere[0]))} has no {asked} yet: "
            'load to the CPU, and move the tensors with .to("cuda")'
        )


def backend_for(backend: str, copy: bool | None = None) -> str:
    """Return the requested backend, or else the one that the environment variable names, which gives way to views."""
    if copy is False:
        return "mmap"
    return os.environ.get("MAX_WEIGHTS_BACKEND", backend) if backend == "auto" else backend


def log_choice(what: str, choice: str) -> None:
    """Log one line on how files are read for `what`; without `logging` imported, nobody can be listening."""
    if logging := sys.modules.get("logging"):
        logging.getLogger("max_weights").info("%s: %s", what, choice)


def as_they_are(node: WeightsNode, options: LoadOptions) -> bool:
    """Whether views of the file will do: no option of `load` is given, and nothing has to be decoded."""
    packed = options.get("packed", False)
    asked = any(
        name not in _DEFAULTS or value != _DEFAULTS[name] for name, value in options.items() if name != "packed"
    )
    return not asked and (packed or not any(info.encoding is not None for info in _gguf_infos(node)))


def _gguf_infos(node: WeightsNode) -> Iterable[WeightInfo]:
    return node.infos() if isinstance(node, GGUFWeights) else ()


def renamed_by(
    names: Iterable[str], rename: Rename, every: Callable[[], Iterable[str]] | None = None
) -> dict[str, str]:
    """Return {name: new name}, without the names that are dropped.

    Args:
        names: The current names.
        rename: A function (returning `None` drops the weight) or a mapping. A key that ends with a dot stands for every
            name that starts with it; each `*` in a key is any text, which the new name has for its `*` of the same
            number. A key for one name applies before the longest that ends with a dot, and that before the first
            with `*`; other names stay.
        every: Returns all names that a key may stand for; default: `names`.

    Raises:
        ArgumentError: two names become the same, or the mapping is empty (a ValueError).
        WeightNotFoundError: a key stands for no name.
    """
    names = list(names)
    if isinstance(rename, Mapping):
        require_effect("rename", rename, names, every, fits=_renames)
        new_names = renamed_names(names, list(rename.items()))
        table = {name: name if new is None else new for name, new in zip(names, new_names, strict=True)}
        new_name: Callable[[str], str | None] = table.__getitem__
    else:
        new_name = rename
    found: dict[str, str] = {}
    old_names: dict[str, str] = {}
    for name in names:
        new = new_name(name)
        if new is None:
            continue
        if new in old_names:
            raise ArgumentError(
                f"rename gives '{shown(old_names[new])}' and '{shown(name)}' the same name, '{shown(new)}'"
            )
        found[name], old_names[new] = new, name
    return found


def _renames(key: Pattern) -> Callable[[str], bool]:
    """Return a function that says whether a key of `rename` stands for a name."""
    if not isinstance(key, str):
        raise TypeError(f"a key of rename is a name, a begin of names that ends with a dot, or has *, not {key!r}")
    if "*" in key:
        any_text = re.compile(".*".join(map(re.escape, key.split("*"))), re.DOTALL)
        return lambda name: any_text.fullmatch(name) is not None
    return (lambda name: name.startswith(key)) if key.endswith(".") else (lambda name: name == key)


def dtypes_wanted(
    infos: list[WeightInfo], dtype: Any, packed: bool, every: Callable[[], Iterable[str]] | None = None
) -> list[DType | None]:
    """Return the dtype wanted for each weight; `None` for the dtype in the file.

    Args:
        infos: The weights.
        dtype: What is wanted, as for `load`.
        packed: Whether packed blocks stay as they are.
        every: Returns all names that a pattern may be for; default: those of the weights.

    Raises:
        WeightNotFoundError: a pattern fits no weight.
    """
    if isinstance(dtype, Mapping):
        require_effect("dtype", dtype, [info.name for info in infos], every)
        by_name = {pattern: DType(wanted) for pattern, wanted in dtype.items()}
        table = [(fits(pattern), wanted) for pattern, wanted in by_name.items()]
        named = [
            by_name[info.name]
            if info.name in by_name
            else next((wanted for fit, wanted in table if fit(info.name)), None)
            for info in infos
        ]
    else:
        wanted = None if dtype is None else DType(dtype)
        named = [wanted if holds_floats(info) else None for info in infos]
    if packed:
        return [None if info.encoding is not None else one for info, one in zip(infos, named, strict=True)]
    return [
        DType.float32 if one is None and info.encoding is not None else one
        for info, one in zip(infos, named, strict=True)
    ]


def holds_floats(info: WeightInfo) -> bool:
    return info.encoding is not None or (isinstance(info.dtype, DType) and info.dtype.is_float())


def converter(framework: str | None) -> Convert:
    """Return the function that turns a `Buffer` into a tensor of a framework."""
    if framework not in _FRAMEWORKS:
        known = ", ".join(repr(name) for name in _FRAMEWORKS if name)
        meant = _ELSEWHERE.get(framework) if isinstance(framework, str) else None
        hint = "" if meant is None else f": did you mean {meant!r}?"
        raise ArgumentError(f"framework must be {known} or None, not {framework!r}{hint}")
    return _FRAMEWORKS[framework]()


def _as_numpy() -> Convert:
    return lambda buffer, _: buffer.to_numpy()


def _as_torch() -> Convert:
    from torch.utils.dlpack import from_dlpack

    def convert(buffer: Buffer, info: WeightInfo) -> Any:
        tensor = from_dlpack(buffer)
        return own_dtype(tensor, info) if isinstance(info.dtype, str) else tensor

    return convert


def own_dtype(tensor: Any, info: WeightInfo) -> Any:
    """Return a torch tensor in its own dtype, if it came as bytes because only torch has that dtype."""
    import torch

    dtype = getattr(torch, info.dtype, None) if isinstance(info.dtype, str) else None
    rank = len(info.shape)
    is_bytes = isinstance(dtype, torch.dtype) and tensor.ndim == rank + 1 and tensor.shape[-1] == dtype.itemsize
    return tensor.view(dtype).squeeze(-1) if is_bytes else tensor


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
