"""Fingerprints of weights, which survive layouts: `max_weights.fingerprint`. docs/fingerprint.md specifies them."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from max_weights._core import Buffer, WeightsNode, fingerprint_of, fingerprints_of, infos, shown
from max_weights._progress import progress_of
from max_weights._selection import selected
from max_weights.errors import ArgumentError, FormatError

if TYPE_CHECKING:
    import os

    from max_weights._buffer import DLPackArray
    from max_weights._progress import Progress
    from max_weights._selection import Select

__all__ = ["Fingerprint", "FingerprintComparison", "FingerprintDifference", "TensorFingerprint", "fingerprint"]

_VERSION = 1
_FORMAT = "max-weights-fingerprint"
_MANIFEST = "max-weights.manifest/1"
_ONES = (1 << 64) - 1
_SUMS = 16
"""Bytes of the two sums of a block."""
_ROW_BLOCKS, _MOST_MATRICES, _MOST_COLUMN_BLOCKS = 64, 4096, 64
_LARGEST_FILE = 1 << 30


@dataclass(frozen=True)
class TensorFingerprint:
    """The fingerprint of one tensor."""

    kind: str
    """`float`, `integer`, or the name of the dtype or of the packed blocks whose bytes are compared."""
    shape: tuple[int, ...]
    rows_per_block: int
    column_blocks: int
    blocks: bytes
    """16 bytes for each block of rows and columns, row after row of blocks."""
    file: str | None = field(default=None, compare=False)
    """The file that the tensor is in, if it is a weight's."""

    @property
    def total(self) -> str:
        """The sum of all blocks, 32 hexadecimal digits: equal for equal tensors, however their blocks were cut."""
        sums = self._sums()
        return struct.pack("<QQ", *(sum(of[which] for of in sums) & _ONES for which in (0, 1))).hex()

    def differing_rows(self, other: TensorFingerprint) -> list[range]:
        """Return the rows, of all dimensions but the last, of the blocks that differ from those of the same shape."""
        one, two = self._sums(), other._sums()
        rows, matrices = _matrices(self.shape)
        per_matrix = -(-rows // self.rows_per_block)
        runs: list[range] = []
        for block in (block for block, (own, there) in enumerate(zip(one, two, strict=True)) if own != there):
            first = block // per_matrix * rows + block % per_matrix * self.rows_per_block
            last = min(first + self.rows_per_block, block // per_matrix * rows + rows, rows * matrices)
            if runs and runs[-1].stop == first:
                runs[-1] = range(runs[-1].start, last)
            else:
                runs.append(range(first, last))
        return runs

    def _sums(self) -> list[tuple[int, int]]:
        """Of each block of rows, with all its columns."""
        sums = list(struct.iter_unpack("<QQ", self.blocks))
        starts = range(0, len(sums), self.column_blocks)
        blocks = (sums[start : start + self.column_blocks] for start in starts)
        return [(sum(of[0] for of in block) & _ONES, sum(of[1] for of in block) & _ONES) for block in blocks]


@dataclass(frozen=True)
class FingerprintDifference:
    """A tensor that differs."""

    name: str
    reason: str
    """What differs, in words."""
    rows: tuple[range, ...] = ()
    """Rows of the blocks that differ, counted over all dimensions but the last; empty where the whole tensor does."""
    same_as: str | None = None
    """The name of the tensor on the other side that is equal to it, if there is one."""
    file: str | None = None
    """The file that it is in, if known."""

    def __str__(self) -> str:
        where = f" ({self.file})" if self.file else ""
        return f"'{shown(self.name)}'{where}: {self.reason}"


@dataclass(frozen=True)
class FingerprintComparison:
    """What differs between two fingerprints."""

    differences: tuple[FingerprintDifference, ...]
    compared: int
    """How many tensors are on both sides."""

    @property
    def ok(self) -> bool:
        """Whether nothing differs, and anything was compared."""
        return not self.differences and self.compared > 0

    def __str__(self) -> str:
        lines = [f"{self.compared} tensors were compared, {len(self.differences)} differ"]
        return "\n".join((*lines, *map(str, self.differences)))


class Fingerprint(Mapping[str, TensorFingerprint]):
    """The fingerprints of tensors by their names.

    Equal values have equal fingerprints, whatever file, format, order or wider dtype they are in. Fingerprints detect
    errors; they are no protection from somebody who makes tensors to collide.
    """

    def __init__(self, tensors: Mapping[str, TensorFingerprint]) -> None:
        self._tensors = dict(tensors)

    def __getitem__(self, name: str) -> TensorFingerprint:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"<Fingerprint of {len(self)} tensors>"

    def compare(self, other: Fingerprint) -> FingerprintComparison:
        """Compare with another fingerprint, tensor by tensor of the same name: which tensors differ, and in which rows.

        A tensor that differs and is equal to another one of `other` is said to be that one.
        """
        by_total: dict[tuple[str, str], str] = {}
        differences: list[FingerprintDifference] = []
        compared = 0
        for name, own in self.items():
            there = other.get(name)
            if there is None:
                differences.append(FingerprintDifference(name, "the other side has no such tensor", file=own.file))
                continue
            compared += 1
            reason, rows = _difference(own, there)
            if reason is None:
                continue
            if not by_total:
                by_total = {(tensor.kind, tensor.total): key for key, tensor in other.items()}
            same_as = by_total.get((own.kind, own.total))
            if same_as is not None:
                reason = f"it is '{shown(same_as)}' of the other side"
            differences.append(FingerprintDifference(name, reason, rows, same_as, own.file or there.file))
        differences += [
            FingerprintDifference(name, "only the other side has this tensor", file=tensor.file)
            for name, tensor in other.items()
            if name not in self
        ]
        return FingerprintComparison(tuple(differences), compared)

    def to_json(self) -> str:
        """Return JSON of the schema in docs/fingerprint.md."""
        tensors = {
            name: {
                "kind": tensor.kind,
                "shape": list(tensor.shape),
                "rows_per_block": tensor.rows_per_block,
                "column_blocks": tensor.column_blocks,
                "blocks": tensor.blocks.hex(),
            }
            for name, tensor in self.items()
        }
        return json.dumps({"format": _FORMAT, "version": _VERSION, "tensors": tensors}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes, *, source: str = "the text") -> Fingerprint:
        """Read what `to_json` writes, or a manifest of `max-weights manifest create --fingerprints`.

        Args:
            text: The JSON.
            source: What errors call it.

        Raises:
            FormatError: it is something else, of another version, or says of a tensor what cannot be.
        """
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise FormatError(f"{shown(source)}: it is not JSON: {error}") from None
        if isinstance(document, dict) and document.get("schema") == _MANIFEST:
            return cls(_of_manifest(source, document.get("tensors")))
        if not isinstance(document, dict) or document.get("format") != _FORMAT:
            raise FormatError(f"{shown(source)}: it is no fingerprint: format is not {_FORMAT!r}")
        if document.get("version") != _VERSION:
            raise FormatError(
                f"{shown(source)}: it is of version {document.get('version')!r}, and this release reads {_VERSION}: "
                "take the fingerprint again"
            )
        tensors = document.get("tensors")
        if not isinstance(tensors, dict):
            raise FormatError(f"{shown(source)}: it has no object 'tensors'")
        return cls({name: _tensor(source, name, record) for name, record in tensors.items()})

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write `to_json` to a file."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Fingerprint:
        """Read what `write` wrote.

        Raises:
            FormatError: as `from_json`, and a file of more than a gibibyte.
        """
        path = Path(path)
        if path.stat().st_size > _LARGEST_FILE:
            raise FormatError(f"{shown(str(path))}: a fingerprint has at most {_LARGEST_FILE} bytes")
        return cls.from_json(path.read_bytes(), source=str(path))


def fingerprint(
    source: WeightsNode | Mapping[str, DLPackArray] | DLPackArray,
    select: Select | None = None,
    *,
    column_blocks: int = 1,
    threads: int | None = None,
    progress: Progress | bool | None = None,
) -> Fingerprint:
    """Return the fingerprint of all weights at and below a node, or of tensors in memory.

    A tensor has the same fingerprint in every file, format and memory, and as every dtype that holds its values
    exactly: a bfloat16 as float32, for example. It consists of sums over blocks of rows: where two differ, `compare`
    says in which rows, and the parts of a tensor that several ranks have add up to the whole.

    Args:
        source: A tree of weights, a branch of it, or a weight; or {name: tensor}, such as the state dict of a module.
            Tensors on GPUs are copied to the host, one at a time.
        select: Which; see `WeightsNode.load`.
        column_blocks: Parts, at most 64, that the columns of each block of rows are in, for tensors that are cut there.
        threads: How many; see `WeightsNode.load`.
        progress: A function of (bytes done, bytes of all), or True for a bar.

    Raises:
        WeightNotFoundError: `select` names what is not there.
        FileChangedError: a file was truncated meanwhile.
        ArgumentError: `column_blocks` is not 1 to 64 (a ValueError).
    """
    if not isinstance(source, WeightsNode):
        if not isinstance(source, Mapping):
            raise ArgumentError(
                f"a fingerprint is taken of weights, or of {{name: tensor}}, not of a {type(source).__name__}: "
                "of a module give module.state_dict()"
            )
        names = list(source) if select is None else selected(list(source), select)
        return Fingerprint({name: of_tensor(source[name], column_blocks) for name in names})
    listed = {info.name: info for info in infos(source)}
    names = list(listed) if select is None else selected(list(listed), select)
    report, finish = progress_of(progress)
    try:
        records = fingerprints_of(source, names, column_blocks=column_blocks, threads=threads, progress=report)
    finally:
        finish()
    files = [str(listed[name].file) for name in names]
    return Fingerprint(
        {name: _of_record(record, file) for name, record, file in zip(names, records, files, strict=True)}
    )


def of_tensor(tensor: Any, column_blocks: int = 1) -> TensorFingerprint:
    """Return the fingerprint of one tensor in memory."""
    return _of_record(fingerprint_of(on_host(tensor), column_blocks=column_blocks), None)


def on_host(tensor: Any) -> Buffer:
    """Return a tensor of any library as a Buffer of the host."""
    if type(tensor).__module__.partition(".")[0] == "torch":
        tensor = tensor.detach().cpu().contiguous()
    buffer = tensor if isinstance(tensor, Buffer) else Buffer.from_dlpack(tensor)
    return buffer if buffer.device.label == "cpu" else buffer.to("cpu")


def _of_record(record: tuple[str, list[int], int, int, bytes], file: str | None) -> TensorFingerprint:
    kind, shape, rows_per_block, column_blocks, blocks = record
    return TensorFingerprint(kind, tuple(shape), rows_per_block, column_blocks, blocks, file)


def _matrices(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows of a matrix, and how many matrices there are."""
    if len(shape) < 2:
        return 1, 1
    matrices = math.prod(shape[:-2])
    return (shape[-2] * matrices, 1) if matrices > _MOST_MATRICES else (shape[-2], matrices)


def _difference(own: TensorFingerprint, other: TensorFingerprint) -> tuple[str | None, tuple[range, ...]]:
    """What differs in words, or `None`, and in which rows."""
    if own.kind != other.kind:
        return f"its elements are {own.kind}, and {other.kind} on the other side", ()
    if own.shape != other.shape:
        return f"its shape is {list(own.shape)}, and {list(other.shape)} on the other side", ()
    rows = own.differing_rows(other)
    if not rows:
        return None, ()
    if len(own.shape) < 2:
        return "its values differ", ()
    return f"its values differ in the blocks of rows {said_rows(rows)}", tuple(rows)


def said_rows(rows: list[range]) -> str:
    """Return runs of rows in words, the first ones."""
    runs = ", ".join(f"{run.start}-{run.stop - 1}" if len(run) > 1 else str(run.start) for run in rows[:5])
    return runs + (f" and {len(rows) - 5} more runs" if len(rows) > 5 else "")


def _of_manifest(source: str, records: object) -> dict[str, TensorFingerprint]:
    if not isinstance(records, list):
        raise FormatError(f"{shown(source)}: the manifest has no list 'tensors'")
    tensors: dict[str, TensorFingerprint] = {}
    for record in records:
        name, sums = (record.get("name"), record.get("fingerprint")) if isinstance(record, dict) else (None, None)
        if not isinstance(name, str):
            raise FormatError(f"{shown(source)}: the manifest has a tensor without a name")
        if not isinstance(sums, dict):
            raise FormatError(
                f"{shown(source)}: tensor '{shown(name)}' has no fingerprint: make the manifest with --fingerprints"
            )
        file = record.get("file")
        tensor = _tensor(source, name, sums | {"shape": record.get("shape")}, file if isinstance(file, str) else None)
        if tensors.setdefault(name, tensor) != tensor:
            raise FormatError(f"{shown(source)}: the manifest has two tensors '{shown(name)}' that differ")
    return tensors


def _tensor(source: str, name: str, record: object, file: str | None = None) -> TensorFingerprint:
    def refuse(cause: str) -> FormatError:
        return FormatError(f"{shown(source)}: tensor '{shown(name)}': {cause}")

    if not isinstance(record, dict):
        raise refuse("it is no object")
    kind, shape, blocks = record.get("kind"), record.get("shape"), record.get("blocks")
    if not isinstance(kind, str) or not isinstance(blocks, str):
        raise refuse("'kind' and 'blocks' have to be texts")
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < 1 << 63 for size in shape):
        raise refuse("'shape' has to be a list of sizes")
    rows_per_block, column_blocks = record.get("rows_per_block"), record.get("column_blocks")
    if type(column_blocks) is not int or not 1 <= column_blocks <= _MOST_COLUMN_BLOCKS:
        raise refuse(f"'column_blocks' has to be 1 to {_MOST_COLUMN_BLOCKS}")
    rows, matrices = _matrices(tuple(shape))
    per_matrix = max(1, _ROW_BLOCKS // max(1, matrices))
    expected = 1 << max(0, -(-rows // per_matrix) - 1).bit_length()
    if rows_per_block != expected:
        raise refuse(f"'rows_per_block' is {rows_per_block!r}, and {expected} for its shape")
    count = 0 if 0 in shape else -(-rows // expected) * matrices * column_blocks
    if len(blocks) != 2 * _SUMS * count:
        raise refuse(f"'blocks' has {len(blocks)} digits, and {2 * _SUMS * count} are needed for its shape")
    try:
        sums = bytes.fromhex(blocks)
    except ValueError:
        raise refuse("'blocks' has something else than hexadecimal digits") from None
    if len(sums) != _SUMS * count:
        raise refuse("'blocks' has spaces")
    return TensorFingerprint(kind, tuple(shape), expected, column_blocks, sums, file)
