"""`table`: rows of tables that are larger than memory, by their numbers; and integer arrays as indices of weights."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

from max_weights._checkpoints import tree_of
from max_weights._core import GGUFWeights, RowTable, escape, infos, may_be_quantized, near_names, quantized_record
from max_weights._core import rows_of as core_rows_of
from max_weights._dtype import DType, DTypeLike
from max_weights._html import properties, view
from max_weights._loading import converter
from max_weights._quantized_weights.config import config_of
from max_weights._quantized_weights.decoded import stored_weights
from max_weights._sizes import bytes_of
from max_weights.errors import ArgumentError, WeightNotFoundError

if TYPE_CHECKING:
    from max_weights._buffer import Buffer, DLPackArray
    from max_weights._checkpoints import Checkpoint
    from max_weights._core import PendingRows as CorePendingRows
    from max_weights._core import QuantizedRecord, WeightsNode
    from max_weights._loading import Convert

__all__ = ["CacheCounts", "PendingRows", "Table", "index_rows", "is_array", "rows_of", "table"]


@dataclass(frozen=True)
class CacheCounts:
    """What the cache of a table had."""

    hits: int
    """Rows that were in the cache."""
    misses: int
    """Rows that were read."""
    rows: int
    """The rows in the cache now; scales count, too."""
    bytes: int
    """Their bytes, with what the cache needs to find them."""
    limit: int
    """The most bytes."""


class PendingRows:
    """Rows that a thread reads: `result()` waits for them."""

    def __init__(self, pending: CorePendingRows, convert: Convert, like: Any, out: Any) -> None:
        self._pending = pending
        self._convert = convert
        self._like = like
        self._out = out

    def result(self) -> Any:
        """Return what `take` would return, once it is there.

        Raises:
            ArgumentError: this is another process than that which called `take` (a ValueError).
            FileChangedError: the file was changed; as for `take`, whose other errors are raised here, too.

        Example:
            >>> table = max_weights.table("model.safetensors", "model.embed_tokens.weight")
            >>> table.take([3, 5], wait=False).result().shape
            (2, 8)
        """
        made = self._pending.result()
        return self._convert(made, self._like) if self._out is None else self._out

    def done(self) -> bool:
        """Return whether `result` would return, or raise, at once.

        Example:
            >>> table = max_weights.table("model.safetensors", "model.embed_tokens.weight")
            >>> pending = table.take([3, 5], wait=False)
            >>> _ = pending.result()
            >>> pending.done()
            True
        """
        return self._pending.done()

    def __repr__(self) -> str:
        return f"<PendingRows: {'done' if self.done() else 'being read'}>"


class Table:
    """Rows of a tensor, or of several that are joined, on a disk or a server. `take` reads some by their numbers.

    Nothing but headers, and single numbers that scale a whole tensor, is read before.
    """

    def __init__(self, core: RowTable, nodes: list[WeightsNode], arguments: tuple[Any, ...]) -> None:
        self._core = core
        self._nodes = nodes
        self._arguments = arguments

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of rows, and the shape of a row, in elements."""
        return self._core.shape

    @property
    def dtype(self) -> DType:
        """The dtype of rows that are taken without one: that of the file; bfloat16 of packed and scaled rows."""
        return self._core.dtype

    @property
    def nbytes(self) -> int:
        """The bytes in the files, with scales."""
        return self._core.nbytes

    @property
    def names(self) -> list[str]:
        """The names of its tensors, in the order of its rows."""
        return [node.name for node in self._nodes]

    @property
    def cache_counts(self) -> CacheCounts | None:
        """What the cache of rows had; `None` without a cache."""
        counts = self._core.counts()
        return None if counts is None else CacheCounts(*counts)

    def __len__(self) -> int:
        return self.shape[0]

    if TYPE_CHECKING:
        # fmt: off
        @overload
        def take(self, ids: Any, dtype: DTypeLike | None = None, *, out: DLPackArray | None = None,
                 framework: str | None = None, wait: Literal[True] = True) -> Any: ...
        @overload
        def take(self, ids: Any, dtype: DTypeLike | None = None, *, out: DLPackArray | None = None,
                 framework: str | None = None, wait: Literal[False]) -> PendingRows: ...
        @overload
        def take(self, ids: Any, dtype: DTypeLike | None = None, *, out: DLPackArray | None = None,
                 framework: str | None = None, wait: bool) -> Any: ...
        # fmt: on

    def take(
        self,
        ids: Any,
        dtype: DTypeLike | None = None,
        *,
        out: DLPackArray | None = None,
        framework: str | None = None,
        wait: bool = True,
    ) -> Any:
        """Return the rows of these ids: `ids.shape` followed by the shape of a row.

        Each row is read once, however often it is requested, in the order of the files and with many requests in
        flight. Rows that are not in the page cache are read past it.

        Args:
            ids: An array of integers of any shape and any library, a sequence of integers, or one.
            dtype: The dtype of the result; default: `self.dtype`.
            out: A contiguous Buffer, array or tensor to write to, of the shape and the dtype, also pinned or on a GPU.
            framework: `numpy`, `torch` or `jax`; default: Buffer.
            wait: False: a thread reads the rows, and a `PendingRows` is returned. `out` must not be used meanwhile.

        Returns:
            The rows; `out`, if it is given.

        Raises:
            IndexError: ids that are negative, or that no row has; the message names them.
            ArgumentError: ids that are not integers, or another framework (a ValueError).
            ValueError: `out` does not fit.
            UnsupportedError: a dtype to which the rows cannot be converted.
            FileChangedError: a file was changed since it was opened.
            ClosedError: the checkpoint was closed.

        Example:
            >>> table = max_weights.table("model.safetensors", "model.embed_tokens.weight")
            >>> table.take([[3, 5], [5, 0]], "float16", framework="numpy").shape
            (2, 2, 8)
        """
        convert = converter(framework)
        if out is not None and not hasattr(type(out), "__dlpack__"):
            raise ArgumentError(
                f"out must be a Buffer, an array or a tensor, not a {escape(type(out).__name__)}", rule="argument.type"
            )
        ids, dtype = _integers(ids), None if dtype is None else DType(dtype)
        like = infos(self._nodes[0])[0]
        if not wait:
            return PendingRows(self._core.start(ids, dtype, out), convert, like, out)
        made = self._core.take(ids, dtype, out)
        return convert(made, like) if out is None else out

    def hint(self, ids: Any) -> None:
        """Announce rows that will be taken soon: a thread reads them into the cache, and this does not wait.

        They are read in the order of the announcements. Without a cache, and for rows in the page cache, this does
        nothing.

        Args:
            ids: As for `take`.

        Raises:
            IndexError: as for `take`, like ArgumentError and ClosedError.

        Example:
            >>> max_weights.table("model.safetensors", "model.embed_tokens.weight").hint([3, 5])
        """
        self._core.hint(_integers(ids))

    def __copy__(self) -> Table:
        return self

    def __deepcopy__(self, _memo: object) -> Table:
        return self  # nothing of it changes, and its files are shared

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, self._arguments

    def __repr__(self) -> str:
        names = self.names
        where = escape(names[0]) + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        return f"Table({list(self.shape)} {self.dtype.name}, {where})"

    def _repr_html_(self) -> str:
        counts = self.cache_counts
        cached = None if counts is None else f"{counts.bytes} of {counts.limit} bytes, {counts.hits} hits"
        names = self.names
        facts: list[tuple[str, object]] = [
            ("dtype", self.dtype.name),
            ("shape", self.shape),
            ("bytes", self.nbytes),
            ("tensors", len(names)),
            ("cache", cached),
        ]
        return view(escape(names[0]), f"{self.dtype.name} {list(self.shape)}", properties(facts))


def table(
    checkpoint: Checkpoint, name: str | None = None, *, scales: str | None = None, cache: int | str = "64MB"
) -> Table:
    """Return a table whose rows are read by their numbers, and whose rest stays where it is.

    It is for embeddings and gather tables that are larger than memory. Nothing of the table is read yet.

    Args:
        checkpoint: A tree or a branch; or anything that `load_weights` opens, which stays open for the table.
        name: A weight below it; of a quantized one, that of its module, too. Or one with a `*` for a number, such as
            `ngram_embedding.shard_*`: the weights of consecutive numbers are joined. Default: the one that is given.
        scales: The tensor of scales, where its name does not say that it is: one number, one for each row, for equal
            parts of each row or for blocks of 128 rows. With a `*`, one for each weight. Default: that which goes with
            the weight by the conventions of quantized checkpoints.
        cache: How many bytes of rows from a disk or a server stay in memory, such as `64MB`; 0 for none. Rows in the
            page cache are not kept twice.

    Returns:
        The table.

    Raises:
        WeightNotFoundError: there is no such weight; the message lists similar names.
        ArgumentError: weights that cannot be joined, a number that is missing, scales that do not fit, or a scheme
            whose rows cannot be decoded by themselves (a ValueError).

    Example:
        >>> table = max_weights.table("model.safetensors", "model.embed_tokens.weight")
        >>> table.shape, len(table)
        ((16, 8), 16)
    """
    node = tree_of(checkpoint, "table")
    limit = bytes_of(cache, "cache")
    for option, value in (("name", name), ("scales", scales)):
        if value is not None and not isinstance(value, str):
            raise ArgumentError(f"{option} must be a str, not a {escape(type(value).__name__)}", rule="argument.type")
    if name is None:
        node, name = node._root, node.name
    arguments = node, name, scales, limit
    if scales is None:
        nodes, records = _quantized(node, _matching(node, name))
        return Table(RowTable(nodes, records, [], False, limit), nodes, arguments)
    names, given = _matching(node, name), _matching(node, scales)
    if len(given) not in {1, len(names)}:
        raise ArgumentError(
            f"scales={scales!r} are {len(given)} tensors, and the table has {len(names)}", rule="argument.mismatch"
        )
    nodes = [node[one] for one in names]
    core = RowTable(nodes, [None] * len(nodes), [node[one] for one in given], len(given) == 1, limit)
    return Table(core, nodes, arguments)


def _restored(node: WeightsNode, name: str, scales: str | None, cache: int) -> Table:
    return table(node, name, scales=scales, cache=cache)


def _matching(node: WeightsNode, name: str) -> list[str]:
    """Return the names that a name with a `*` stands for, in the order of their numbers."""
    if "*" not in name:
        return [name]
    before, _, after = name.partition("*")
    if "*" in after:
        raise ArgumentError(f"'{escape(name)}' has two '*': one stands for a number", rule="argument.name")
    front = f"{node.name}." if node.name else ""
    pattern = re.compile(f"{re.escape(front + before)}([0-9]{{1,18}}){re.escape(after)}")
    names: dict[int, str] = {}  # by their numbers
    for info in infos(node):
        if (match := pattern.fullmatch(info.name)) is None:
            continue
        number = int(match[1])
        if number in names:
            raise ArgumentError(
                f"'{escape(info.name)}' and '{escape(front + names[number])}' have the same number",
                rule="argument.name",
            )
        names[number] = info.name.removeprefix(front)
    if not names:
        (near,) = near_names([info.name for info in infos(node)], [front + name.replace("*", "0")])
        meant = f"; did you mean {' or '.join(repr(escape(one)) for one in near)}?" if near else ""
        raise WeightNotFoundError(f"no weight named '{escape(front + name)}', with a number for the '*'{meant}")
    first, last = min(names), max(names)
    if last - first >= len(names):
        missing = next(number for number in range(first, last) if number not in names)
        raise ArgumentError(
            f"'{escape(name)}': number {missing} is missing between {first} and {last}", rule="argument.name"
        )
    return [names[number] for number in sorted(names)]


def _quantized(node: WeightsNode, names: list[str]) -> tuple[list[WeightsNode], list[QuantizedRecord | None]]:
    """Return the weights of these names, and how each is quantized."""
    if isinstance(node, GGUFWeights) or not may_be_quantized(node):
        return [node[name] for name in names], [None] * len(names)
    config, stored = config_of(node), stored_weights(node)
    rows = {info.name: info.shape[0] if info.shape else 1 for info in infos(node)}
    nodes: list[WeightsNode] = []
    records: list[QuantizedRecord | None] = []
    for name in names:
        weight = node[name]
        # A tensor without rows has no scales to find.
        record = quantized_record(node, name, config) if rows.get(weight.name, 1) else None
        if record is not None and record.refusal is not None:
            raise record.refusal.with_traceback(None)
        packed = None if record is None else record.parts.get("packed")
        if packed is not None and weight.name in {*rows} - {packed.name}:
            record = packed = None  # another of its tensors, such as the scales
        if record is None and stored is not None and weight.name in stored.unknown:
            raise stored.not_known(weight.name)
        nodes.append(packed or weight)
        records.append(record)
    return nodes, records


def _integers(ids: Any) -> Any:
    """Return ids as an array that the compiled part reads."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(ids, torch.Tensor):
        if ids.is_meta:
            raise ArgumentError("row ids are on the meta device, and have no values", rule="argument.meta")
        return ids.detach().cpu()
    if hasattr(type(ids), "__dlpack__") and not hasattr(type(ids), "__array_interface__"):
        return ids
    import numpy as np

    try:
        array = np.asarray(ids)
    except ValueError as error:  # lists of different lengths
        raise ArgumentError(f"row ids are an array of integers: {error}", rule="argument.type") from None
    if array.size == 0 and not hasattr(type(ids), "dtype"):
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise ArgumentError(f"row ids are integers, not {array.dtype}", rule="argument.type")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def is_array(index: object) -> bool:
    """Return whether an index is a list or an array of at least one dimension."""
    return isinstance(index, list) or getattr(index, "ndim", 0) > 0


def rows_of(node: WeightsNode, ids: Any, dtype: DType | None) -> Buffer:
    """Return rows of a weight by NumPy's rules: negative ids count from the end."""
    return core_rows_of(node, _integers(ids), dtype)


def index_rows(node: WeightsNode, key: Any) -> Buffer:
    """Return what an index selects that begins with a list or an array of integers."""
    ids, *rest = key if isinstance(key, tuple) else (key,)
    array = _integers(ids)
    rows = core_rows_of(node, array, None)
    return rows[(slice(None),) * array.ndim + tuple(rest)] if rest else rows
