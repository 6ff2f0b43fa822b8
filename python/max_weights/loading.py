"""Loading many weights at once: which, under which names, as which dtype, into which memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from max_weights._core import GGUFWeights, digests_of, load_tensors, shown
from max_weights.dtype import DType
from max_weights.errors import ArgumentError
from max_weights.selection import Select, fits, not_found, selected
from max_weights.sharding.by_name import NOTHING, Shard, parts_of_rank
from max_weights.sharding.data import read
from max_weights.sharding.pieces import Pieces
from max_weights.weight_data import WeightData

if TYPE_CHECKING:
    from max_weights._core import Buffer, WeightInfo, WeightsNode

__all__ = [
    "LoadOptions",
    "Progress",
    "Rename",
    "Select",
    "as_they_are",
    "digests",
    "dtypes_wanted",
    "load",
    "own_dtype",
    "progress_of",
    "renamed_by",
    "selected",
]

Rename = Callable[[str], "str | None"] | Mapping[str, str]
Progress = Callable[[int, int], object]
_Convert = Callable[["Buffer", "WeightInfo"], Any]


class LoadOptions(TypedDict, total=False):
    """The options of `WeightsNode.load` that the doors take, too."""

    select: Select | None
    rename: Rename | str | None
    dtype: Any
    packed: bool
    shard: Shard | None
    copy: bool | None
    storage: Literal["arena", "per-tensor"]
    backend: Literal["auto", "mmap", "read", "direct"]
    max_host_bytes: int | None
    threads: int | None
    progress: Progress | bool | None
    drop_cache: bool
    verify: Mapping[str, str] | None


# What stands for "as if it had not been said".
_DEFAULTS: dict[str, object] = dict.fromkeys(LoadOptions.__annotations__) | {
    "packed": False,
    "storage": "arena",
    "backend": "auto",
    "drop_cache": False,
}
_STORAGES = ("arena", "per-tensor")


def load(
    node: WeightsNode,
    select: Select | None = None,
    *,
    rename: Rename | str | None = None,
    dtype: Any = None,
    packed: bool = False,
    shard: Shard | None = None,
    framework: str | None = None,
    copy: bool | None = None,
    storage: str = "arena",
    backend: str = "auto",
    max_host_bytes: int | None = None,
    threads: int | None = None,
    progress: Progress | bool | None = None,
    drop_cache: bool = False,
    verify: Mapping[str, str] | None = None,
    out: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The weights below a node; see `WeightsNode.load`."""
    if copy is False and (drop_cache or backend not in ("auto", "mmap")):
        raise ArgumentError("copy=False asks for views of the file: they need backend='mmap' and no drop_cache")
    if storage not in _STORAGES:
        raise ArgumentError(f"storage is 'arena' or 'per-tensor', not {storage!r}")
    if framework not in _FRAMEWORKS:
        known = ", ".join(repr(name) for name in _FRAMEWORKS if name)
        raise ArgumentError(f"framework is {known} or None, not {framework!r}")
    if isinstance(rename, str):
        node, rename = node.renamed(rename), None
    infos = {info.name: info for info in node.infos()}
    names = list(infos) if select is None else selected(list(infos), select)
    new_names = {name: name for name in names} if rename is None else renamed_by(names, rename)
    wanted = [infos[name] for name in new_names]
    dtypes = dtypes_wanted(wanted, dtype, packed)
    parts = [None] * len(wanted) if shard is None else parts_of_rank(node, wanted, shard)
    positions = {new: position for position, new in enumerate(new_names.values())}
    outs = {}
    for name, memory in ({} if out is None else out).items():
        if name not in positions:
            raise not_found(name, list(positions), "out names")
        outs[positions[name]] = memory
    if verify is not None:
        _verify(node, list(new_names), verify, threads)
    apart = {i: (part, outs.pop(i, None)) for i, part in enumerate(parts) if isinstance(part, Pieces)}
    told, end = progress_of(progress)
    try:
        loaded, choice = load_tensors(
            node,
            list(new_names),
            dtypes,
            cuts=[NOTHING if isinstance(part, Pieces) else part for part in parts],
            own=bool(copy),
            outs=outs,
            backend=_backend(backend),
            threads=threads,
            drop_cache=drop_cache,
            per_tensor=storage == "per-tensor",
            max_host_bytes=max_host_bytes,
            progress=told,
        )
    finally:
        end()
    _log(choice)
    for i, (pieces, memory) in apart.items():
        loaded[i] = _cut(node, wanted[i], pieces, dtypes[i], memory)
    convert = _FRAMEWORKS[framework]()
    return {new: convert(buffer, infos[name]) for (name, new), buffer in zip(new_names.items(), loaded, strict=True)}


def digests(
    node: WeightsNode,
    select: Select | None = None,
    *,
    threads: int | None = None,
    progress: Progress | bool | None = None,
) -> dict[str, str]:
    """The digests of the weights below a node; see `WeightsNode.digests`."""
    names = [info.name for info in node.infos()]
    names = names if select is None else selected(names, select)
    told, end = progress_of(progress)
    try:
        return dict(zip(names, digests_of(node, names, threads=threads, progress=told), strict=True))
    finally:
        end()


def _verify(node: WeightsNode, names: list[str], expected: Mapping[str, str], threads: int | None) -> None:
    """An error for a weight that has another digest than is expected, or of which none is."""
    for name in names:
        if not isinstance(expected.get(name), str):
            raise ArgumentError(f"verify has no digest of '{shown(name)}': it needs one of every weight that is loaded")
    digests_of(node, names, [expected[name] for name in names], threads=threads)


def _cut(node: WeightsNode, info: WeightInfo, pieces: Pieces, dtype: DType | None, out: Any) -> Buffer:
    """Pieces of several axes at once: cut out of the tensor, and then converted."""
    part = read(next(weight for name, weight in node.items() if name == info.name), pieces)
    if dtype is None and out is None:
        return part
    data = WeightData(part, info.name, part.dtype, part.shape, None if dtype is None else info.encoding)
    return data.astype(data.dtype if dtype is None else dtype, out=out).to_buffer()


def _backend(backend: str) -> str:
    """The backend that was asked for, or else the one that the environment variable names."""
    return os.environ.get("MAX_WEIGHTS_BACKEND", backend) if backend == "auto" else backend


def _log(choice: str) -> None:
    """One line of how the files were read; nobody listens where nobody imported logging."""
    if logging := sys.modules.get("logging"):
        logging.getLogger("max_weights").info("load: %s", choice)


def as_they_are(node: WeightsNode, options: LoadOptions) -> bool:
    """Whether views of the file are what is asked for: no option of `load` is given, and nothing is to be decoded."""
    packed = options.get("packed", False)
    asked = any(
        name not in _DEFAULTS or value != _DEFAULTS[name] for name, value in options.items() if name != "packed"
    )
    return not asked and (packed or not any(info.encoding is not None for info in _gguf_infos(node)))


def _gguf_infos(node: WeightsNode) -> Iterable[WeightInfo]:
    return node.infos() if isinstance(node, GGUFWeights) else ()


def renamed_by(names: Iterable[str], rename: Rename) -> dict[str, str]:
    """{name: new name}, without the names for which there is none.

    Args:
        names: The names as they are.
        rename: A function (None drops the weight), or a mapping: a key that ends with a dot stands for every name that
            starts with it, the longest first; other names stay.

    Raises:
        ArgumentError: a ValueError; two names become one.
    """
    new_name = _by_table(rename) if isinstance(rename, Mapping) else rename
    found: dict[str, str] = {}
    old_names: dict[str, str] = {}
    for name in names:
        new = new_name(name)
        if new is None:
            continue
        if new in old_names:
            raise ArgumentError(f"rename gives '{shown(old_names[new])}' and '{shown(name)}' one name, '{shown(new)}'")
        found[name], old_names[new] = new, name
    return found


def _by_table(table: Mapping[str, str]) -> Callable[[str], str]:
    prefixes = sorted((key for key in table if key.endswith(".")), key=len, reverse=True)

    def new_name(name: str) -> str:
        if name in table:
            return table[name]
        prefix = next((prefix for prefix in prefixes if name.startswith(prefix)), None)
        return name if prefix is None else table[prefix] + name[len(prefix) :]

    return new_name


def dtypes_wanted(infos: list[WeightInfo], dtype: Any, packed: bool) -> list[DType | None]:
    """The dtype that is wanted of each weight; None for that of the file."""
    if isinstance(dtype, Mapping):
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
        named = [wanted if _holds_floats(info) else None for info in infos]
    if packed:
        return [None if info.encoding is not None else one for info, one in zip(infos, named, strict=True)]
    return [
        DType.float32 if one is None and info.encoding is not None else one
        for info, one in zip(infos, named, strict=True)
    ]


def _holds_floats(info: WeightInfo) -> bool:
    return info.encoding is not None or (isinstance(info.dtype, DType) and info.dtype.is_float())


def progress_of(progress: Progress | bool | None) -> tuple[Progress | None, Callable[[], None]]:
    """What is called with bytes done and bytes of all, and what ends it."""
    if progress is None or progress is False:
        return None, lambda: None
    if progress is not True:
        return progress, lambda: None
    from rich import progress as rich
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

    bar = rich.Progress(BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    task = bar.add_task("load")
    bar.start()
    return (lambda done, total: bar.update(task, completed=done, total=total)), bar.stop


def _as_numpy() -> _Convert:
    return lambda buffer, _: buffer.to_numpy()


def _as_torch() -> _Convert:
    from torch.utils.dlpack import from_dlpack

    def convert(buffer: Buffer, info: WeightInfo) -> Any:
        return own_dtype(from_dlpack(buffer), info)

    return convert


def own_dtype(tensor: Any, info: WeightInfo) -> Any:
    """A torch tensor; what came as bytes because only torch has its dtype, in that dtype."""
    import torch

    dtype = getattr(torch, info.dtype, None) if isinstance(info.dtype, str) else None
    rank = len(info.shape)
    is_bytes = isinstance(dtype, torch.dtype) and tensor.ndim == rank + 1 and tensor.shape[-1] == dtype.itemsize
    return tensor.view(dtype).squeeze(-1) if is_bytes else tensor


def _as_jax() -> _Convert:
    from jax.dlpack import from_dlpack

    return lambda buffer, _: from_dlpack(buffer)


_FRAMEWORKS: dict[str | None, Callable[[], _Convert]] = {
    None: lambda: lambda buffer, _: buffer,
    "numpy": _as_numpy,
    "torch": _as_torch,
    "jax": _as_jax,
}
