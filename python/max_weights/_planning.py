"""The plan of a load, without loading: which byte ranges are read, in which order, where to, and in how much memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from max_weights._checkpoints import opened
from max_weights._core import escape, files, plan_tensors, printable
from max_weights._dtype import DType
from max_weights._html import count, paragraph, table, view
from max_weights._load_request import LoadRequest
from max_weights._loading import LoadMethod, check_device, converter, resolve_device
from max_weights._read_options import ReadKeywords, ReadOptions

if TYPE_CHECKING:
    from typing import Unpack

    from max_weights._buffer import DLPackArray
    from max_weights._checkpoints import Checkpoint
    from max_weights._devices import DeviceLike
    from max_weights._load_request import DTypeOption, PackedOption, Rename
    from max_weights._loading import CopyOption
    from max_weights._progress import Progress
    from max_weights._selection import Select
    from max_weights.sharding._by_name import Shard

__all__ = ["LoadPlan", "PlannedRange", "plan"]

_ROWS = 24
_COLUMNS = ("offset", "bytes", "what is done", "where to", "weights")
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """A range of bytes of a file that a load reads at once, or whose pages it fetches at once."""

    file: str
    """The path of the file."""
    offset: int
    """The first byte in the file."""
    bytes: int
    """The number of bytes in the file."""
    names: tuple[str, ...]
    """The weights that have bytes in this range, by their new names."""
    action: str
    """What is done with the bytes: `fetch pages`, or `read` and the steps after it (`convert`, `decode`, `inflate`
    …)."""
    to: str
    """Where the bytes go: `mapping`, `arena of DTYPE`, `own memory` or `out`."""
    at: int
    """The offset in the arena, in bytes."""
    memory: int
    """The bytes of memory that this takes; 0 for pages of a mapping, which belong to the system."""


@dataclass(frozen=True, slots=True, repr=False)
class LoadPlan:
    """The plan of a `load` with the same arguments; it prints as a table."""

    ranges: tuple[PlannedRange, ...]
    """The ranges that are read, in the order of the files."""
    names: tuple[str, ...]
    """The weights, in the order in which they are returned."""
    arenas: Mapping[DType, int]
    """The size in bytes of the memory that the weights of each dtype share."""
    how: str
    """How the files would be read, and why: the backend, the threads, and whether their bytes are in the page cache."""

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of the files that are read from, in order."""
        return tuple(dict.fromkeys(part.file for part in self.ranges))

    @property
    def bytes_read(self) -> int:
        """The number of bytes that are read from the files."""
        return sum(part.bytes for part in self.ranges)

    @property
    def bytes_in_memory(self) -> int:
        """The bytes of memory that the load takes: arenas, and separately allocated tensors.

        This excludes pages of mapped files, which the system can reclaim, and memory of the caller.
        """
        return sum(self.arenas.values()) + sum(part.memory for part in self.ranges if part.to == "own memory")

    def _head(self) -> str:
        return (
            f"{count(len(self.names), 'weight')}, {_size(self.bytes_read)} of {count(len(self.files), 'file')} in"
            f" {count(len(self.ranges), 'range')}, {_size(self.bytes_in_memory)} of memory"
        )

    def _repr_html_(self) -> str:
        several = len(self.files) > 1
        rows = (
            (*((part.file,) * several), part.offset, part.bytes, part.action, _place(part), _listed(part.names))
            for part in self.ranges
        )
        columns = (*(("file",) * several), *_COLUMNS)
        numbers, code = ("offset", "bytes"), ("file", "weights")
        parts = [paragraph(self.how), table(columns, rows, total=len(self.ranges), numbers=numbers, code=code)]
        return view("LoadPlan", self._head(), *parts)

    def __repr__(self) -> str:
        rows = [_COLUMNS]
        lines: list[tuple[str, ...] | str] = []
        before = None
        for part in self.ranges[:_ROWS]:
            if part.file != before:
                lines.append(printable(part.file))
                before = part.file
            row = (f"{part.offset:,}", f"{part.bytes:,}", part.action, _place(part), _listed(part.names))
            lines.append(row)
            rows.append(row)
        lines.insert(1, rows[0])
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        text = [self._head(), self.how]
        for line in lines if self.ranges else []:
            text.append(line if isinstance(line, str) else _row(line, widths))
        more = len(self.ranges) - _ROWS
        if more > 0:
            text.append(f"  and {count(more, 'more range')}: see .ranges")
        return "\n".join(text)


def _row(row: tuple[str, ...], widths: list[int]) -> str:
    offset, size, action, place, names = row
    return f"  {offset:>{widths[0]}}  {size:>{widths[1]}}  {action:<{widths[2]}}  {place:<{widths[3]}}  {names}"


def _place(part: PlannedRange) -> str:
    return f"{part.to} at {part.at:,}" if part.to.startswith("arena") else part.to


def _listed(names: tuple[str, ...]) -> str:
    if len(names) <= 2:
        return ", ".join(map(escape, names))
    return f"{escape(names[0])} … {escape(names[-1])} ({len(names):,})"


def _size(count: int) -> str:
    size, unit = float(count), 0
    while size >= 1024 and unit + 1 < len(_UNITS):
        size, unit = size / 1024, unit + 1
    return f"{count} bytes" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def plan(
    checkpoint: Checkpoint,
    select: Select | None = None,
    *,
    rename: Rename | str | None = None,
    dtype: DTypeOption | None = None,
    packed: PackedOption = None,
    shard: Shard | None = None,
    framework: Literal["numpy", "torch", "jax"] | None = None,
    copy: CopyOption = None,
    progress: Progress | bool | None = None,  # noqa: ARG001 (accepted so that the arguments of `load` can be given)
    device: DeviceLike | None = None,
    out: Mapping[str, DLPackArray] | None = None,
    options: ReadOptions | None = None,
    **read: Unpack[ReadKeywords],
) -> LoadPlan:
    """Return the plan of a `load` with these arguments: which bytes are read, in which order, and where to.

    No content is read, and no memory is allocated. The arguments are those of `load`; `progress`, and the contents of
    `out` and of `digests`, are ignored.

    Args:
        checkpoint: A tree, a branch or one weight; or anything that `load_weights` opens.
        select: Which weights: names, globs, regular expressions or a function.
        rename: New names: a function, a mapping or `hf`.
        dtype: The dtype for floats, packed blocks and quantized weights; or {name or pattern: dtype}.
        packed: `keep` leaves packed blocks and quantized weights unchanged, `decode` decodes all.
        shard: The part of one rank, such as `max_weights.sharding.Shard(0, 8, "llama")`.
        framework: `numpy`, `torch` or `jax`; default: Buffer.
        copy: True: copies in one arena for each dtype; `per-tensor`: separate copies; False: views.
        progress: Ignored.
        device: Where tensors would go; default: host memory.
        out: {new name: array or tensor} that would be written to.
        options: How files would be read, as a `max_weights.types.ReadOptions`.
        **read: Single fields of `options`.

    Returns:
        The plan.

    Raises:
        WeightNotFoundError: `select` or `out` names a weight that does not exist.
        ArgumentError: as for `load` (a ValueError).
        UnsupportedError: an unsupported conversion.

    Example:
        >>> max_weights.plan("model.safetensors", "model.norm").bytes_read
        32
    """
    request = LoadRequest(select, rename, dtype, packed, shard)
    how = LoadMethod(copy, ReadOptions.of("plan", options, read))
    device = resolve_device(device, out)
    check_device(device, how.copy, framework)
    converter(framework)
    with opened(checkpoint, "plan") as weights:
        resolved = request.resolve(weights)
        places = None if device is None else [(device, len(resolved.names))]
        outs = resolved.index_outputs({} if out is None else out)
        ranges, arenas, choice = plan_tensors(
            resolved.node,
            resolved.names,
            resolved.dtypes,
            cuts=resolved.parts,
            outs=set(outs),
            places=places,
            whole=how.read.digests is not None,
            **how.arguments(),
        )
        paths = files(resolved.node)
    planned = [
        PlannedRange(
            file=paths[file],
            offset=offset,
            bytes=size,
            names=tuple(resolved.new_names[position] for position in positions),
            action=action,
            to="out" if any(position in outs for position in positions) else to,
            at=at,
            memory=memory,
        )
        for file, offset, size, memory, positions, action, to, at in ranges
    ]
    return LoadPlan(tuple(planned), tuple(resolved.new_names), {DType[name]: size for name, size in arenas}, choice)
