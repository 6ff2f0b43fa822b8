"""The record of a fingerprint, the comparison of two, and its JSON, which docs/fingerprint.md specifies."""

from __future__ import annotations

import json
import math
import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from max_weights._core import escape
from max_weights._result import Finding, Result
from max_weights._saved_paths import place_text
from max_weights.errors import FormatError

if TYPE_CHECKING:
    import os

__all__ = ["Fingerprint", "FingerprintComparison", "TensorFingerprint", "format_rows"]

_VERSION = 1
_FORMAT = "max-weights-fingerprint"
_MANIFEST = "max-weights.manifest/1"
_ONES = (1 << 64) - 1
_SUMS = 16
"""Bytes of the two sums of a block."""
_ROW_BLOCKS, _MAX_MATRICES, _MAX_COLUMN_BLOCKS = 64, 4096, 64
_MAX_FILE = 1 << 30
_DIGEST, _IDENTITY = re.compile("sha256:[0-9a-f]{64}"), re.compile("[0-9a-f]{32}")


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
    """The file of the weight; `None` for other tensors."""
    digest: str | None = field(default=None, compare=False)
    """`sha256:` and 64 hexadecimal digits of the elements in C order, little-endian; of packed blocks unchanged."""
    digest_dtype: str | None = field(default=None, compare=False)
    """The dtype, or the packed blocks, whose bytes were hashed: a cast changes the digest."""

    @property
    def total(self) -> str:
        """The sum of all blocks, 32 hexadecimal digits: equal for equal tensors, whatever the block size."""
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
        """The sums of each block of rows, over all columns."""
        sums = list(struct.iter_unpack("<QQ", self.blocks))
        starts = range(0, len(sums), self.column_blocks)
        blocks = (sums[start : start + self.column_blocks] for start in starts)
        return [(sum(of[0] for of in block) & _ONES, sum(of[1] for of in block) & _ONES) for block in blocks]


@dataclass(frozen=True, repr=False)
class FingerprintComparison(Result):
    """The differences of two fingerprints; ok if nothing differs, and anything was compared.

    Kinds of findings: "differs", "removed" (the other side has no such tensor), "added" (only the other side has it).
    """

    _KINDS = ("differs", "removed", "added")

    findings: tuple[Finding, ...]
    compared: int
    """How many tensors both sides have."""

    @property
    def ok(self) -> bool:
        """Whether nothing differs, and anything was compared."""
        return not self.findings and self.compared > 0

    def _summary(self) -> str:
        differ = len(self.by_kind("differs"))
        one_sided = len(self.findings) - differ
        done = f"{self.compared} tensors were compared, {differ} differ" if self.compared else "no tensor was compared"
        return done + (f"; only one side has {one_sided}" if one_sided else "")


class Fingerprint(Mapping[str, TensorFingerprint]):
    """The fingerprints of tensors by their names.

    Equal values have equal fingerprints, whatever file, format, order or wider dtype they are in. Fingerprints detect
    errors; only `digests` detect deliberate changes, because a collision can be constructed.

    Each tensor has `kind` (`float`, `integer`, or the name of the dtype or packed blocks whose bytes are compared),
    `shape`, `file`, `digest` and `digest_dtype`. Equal tensors have the same `total`, 32 hexadecimal digits.
    """

    def __init__(
        self,
        tensors: Mapping[str, TensorFingerprint],
        *,
        identity: str | None = None,
        checksums: int | None = None,
    ) -> None:
        self._tensors = dict(tensors)
        self.identity = identity
        """The identity of this version, which deltas use: 32 hexadecimal digits of names, dtypes, shapes and bytes,
        whatever files they are in. A cast changes it. `None` if it was not computed."""
        self.checksums = checksums
        """How many storages of PyTorch files were compared with their checksums; `None` if this was not requested."""

    @property
    def digests(self) -> dict[str, str]:
        """{name: `sha256:` and 64 hexadecimal digits} of the tensors whose digests were computed.

        A digest is the same in every file and format, and different for every dtype.
        """
        return {name: tensor.digest for name, tensor in self.items() if tensor.digest is not None}

    def __getitem__(self, name: str) -> TensorFingerprint:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"<Fingerprint of {len(self)} tensors>"

    def compare(self, other: Fingerprint, *, require_digests: bool = False) -> FingerprintComparison:
        """Compare with another fingerprint, tensor by tensor of the same name: which tensors differ, and in which rows.

        If a tensor differs, and equals another tensor of `other`, the finding names that one. Digests are compared,
        too, if both sides have one of the same dtype.

        Args:
            other: The other fingerprint.
            require_digests: A tensor whose digests cannot be compared counts as different, because its sums alone could
                be a constructed collision.

        Returns:
            The differences; true if there are none.

        Raises:
            TypeError: `other` is no fingerprint.

        Example:
            >>> max_weights.fingerprint("model.safetensors").compare(max_weights.fingerprint("model.pt"))
            <FingerprintComparison: ok, 5 tensors were compared, 0 differ>
        """
        if not isinstance(other, Fingerprint):
            raise TypeError(f"a fingerprint is compared with another one, not with a {type(other).__name__}")
        by_total: dict[tuple[str, str], str] = {}
        findings: list[Finding] = []
        compared = 0
        for name, own in self.items():
            there = other.get(name)
            if there is None:
                findings.append(Finding(name, "the other side has no such tensor", own.file, "removed"))
                continue
            compared += 1
            reason, rows = _difference(own, there, require_digests)
            if reason is None:
                continue
            if not by_total:
                by_total = {(tensor.kind, tensor.total): key for key, tensor in other.items()}
            same_as = by_total.get((own.kind, own.total))
            if same_as == name:  # the sums are equal, the digests differ
                same_as = None
            if same_as is not None:
                reason = f"it is '{escape(same_as)}' of the other side"
            findings.append(Finding(name, reason, own.file or there.file, other=same_as, rows=rows))
        findings += [
            Finding(name, "only the other side has this tensor", tensor.file, "added")
            for name, tensor in other.items()
            if name not in self
        ]
        return FingerprintComparison(tuple(findings), compared)

    def to_json(self) -> str:
        """Write it as JSON.

        Returns:
            JSON of the schema in docs/fingerprint.md.

        Example:
            >>> max_weights.fingerprint("model.safetensors").to_json()
            '{"format":"max-weights-fingerprint","version":1,...
        """
        tensors = {
            name: {
                "kind": tensor.kind,
                "shape": list(tensor.shape),
                "rows_per_block": tensor.rows_per_block,
                "column_blocks": tensor.column_blocks,
                "blocks": tensor.blocks.hex(),
            }
            | ({} if tensor.digest is None else {"digest": tensor.digest, "digest_dtype": tensor.digest_dtype})
            for name, tensor in self.items()
        }
        head = {"format": _FORMAT, "version": _VERSION} | ({"identity": self.identity} if self.identity else {})
        return json.dumps(head | {"tensors": tensors}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes, *, source: str = "the text") -> Fingerprint:
        """Read what `to_json` writes, or a manifest of `max-weights manifest create --fingerprints`.

        Args:
            text: The JSON.
            source: The name of the text in errors.

        Returns:
            The fingerprint.

        Raises:
            FormatError: it is something else, of another version, or has an invalid entry for a tensor.

        Example:
            >>> taken = max_weights.fingerprint("model.safetensors")
            >>> max_weights.types.Fingerprint.from_json(taken.to_json()) == taken
            True
        """
        try:
            document = json.loads(text, object_pairs_hook=_object)
        except (ValueError, RecursionError) as error:
            raise FormatError(f"{escape(source)}: it is not JSON: {error}", rule="fingerprint.content") from None
        schema = document.get("schema") if isinstance(document, dict) else None
        if schema == _MANIFEST:
            return cls(_of_manifest(source, document.get("tensors")))
        if isinstance(schema, str) and schema.startswith(_MANIFEST.partition("/")[0]):
            raise FormatError(
                f"{escape(source)}: it is a manifest of the schema {escape(schema)!r}, and this release reads "
                f"{_MANIFEST!r}: make it again",
                rule="fingerprint.version",
            )
        if not isinstance(document, dict) or document.get("format") != _FORMAT:
            raise FormatError(
                f"{escape(source)}: it is no fingerprint: format is not {_FORMAT!r}", rule="fingerprint.version"
            )
        if document.get("version") != _VERSION:
            raise FormatError(
                f"{escape(source)}: it is of version {document.get('version')!r}, and this release reads {_VERSION}: "
                "take the fingerprint again",
                rule="fingerprint.version",
            )
        tensors, identity = document.get("tensors"), document.get("identity")
        if not isinstance(tensors, dict):
            raise FormatError(f"{escape(source)}: it has no object 'tensors'", rule="fingerprint.content")
        if identity is not None and not (isinstance(identity, str) and _IDENTITY.fullmatch(identity)):
            raise FormatError(
                f"{escape(source)}: 'identity' has to be 32 hexadecimal digits", rule="fingerprint.content"
            )
        return cls({name: _tensor(source, name, record) for name, record in tensors.items()}, identity=identity)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write `to_json` to a file. An existing file that is not text, such as a checkpoint, is not replaced.

        Args:
            path: The file.

        Raises:
            OSError: it cannot be written.

        Example:
            >>> max_weights.fingerprint("model.safetensors").write("model.fingerprint.json")
        """
        place_text(path, self.to_json())

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Fingerprint:
        """Read what `write` wrote.

        Args:
            path: The file.

        Returns:
            The fingerprint.

        Raises:
            FormatError: as for `from_json`, and a file of more than a gibibyte.

        Example:
            >>> max_weights.fingerprint("model.safetensors").write("taken.json")
            >>> max_weights.types.Fingerprint.read("taken.json")
            <Fingerprint of 5 tensors>
        """
        path = Path(path)
        if path.stat().st_size > _MAX_FILE:
            raise FormatError(
                f"{escape(str(path))}: a fingerprint has at most {_MAX_FILE} bytes", rule="fingerprint.content"
            )
        return cls.from_json(path.read_bytes(), source=str(path))


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object; a repeated name is an error, because readers disagree on which of two counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"two entries are called '{escape(twice)}'")
    return found


def _matrices(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the rows of a matrix, and the number of matrices."""
    if len(shape) < 2:
        return 1, 1
    matrices = math.prod(shape[:-2])
    return (shape[-2] * matrices, 1) if matrices > _MAX_MATRICES else (shape[-2], matrices)


def _difference(
    own: TensorFingerprint, other: TensorFingerprint, require_digests: bool
) -> tuple[str | None, tuple[range, ...]]:
    """Describe the difference, or return `None`, and the rows that differ."""
    if own.kind != other.kind:
        return f"its elements are {own.kind}, and {other.kind} on the other side", ()
    if own.shape != other.shape:
        return f"its shape is {list(own.shape)}, and {list(other.shape)} on the other side", ()
    rows = own.differing_rows(other)
    if not rows:
        return _difference_of_digests(own, other, require_digests), ()
    if len(own.shape) < 2:
        return "its values differ", ()
    return f"its values differ in the blocks of rows {format_rows(rows)}", tuple(rows)


def _difference_of_digests(own: TensorFingerprint, other: TensorFingerprint, required: bool) -> str | None:
    if own.digest is None or other.digest is None:
        return "a digest is missing: take fingerprints with digests=True" if required else None
    if own.digest_dtype != other.digest_dtype:
        dtypes = f"{own.digest_dtype} and {other.digest_dtype}"
        return f"its digests cannot be compared: they are those of {dtypes}" if required else None
    if own.digest != other.digest:
        return "its SHA-256 differs, though its sums are equal: a NaN, or a constructed collision"
    return None


def format_rows(rows: list[range]) -> str:
    """Describe the first runs of rows."""
    runs = ", ".join(f"{run.start}-{run.stop - 1}" if len(run) > 1 else str(run.start) for run in rows[:5])
    return runs + (f" and {len(rows) - 5} more runs" if len(rows) > 5 else "")


def _of_manifest(source: str, records: object) -> dict[str, TensorFingerprint]:
    if not isinstance(records, list):
        raise FormatError(f"{escape(source)}: the manifest has no list 'tensors'", rule="fingerprint.content")
    tensors: dict[str, TensorFingerprint] = {}
    for record in records:
        name, sums = (record.get("name"), record.get("fingerprint")) if isinstance(record, dict) else (None, None)
        if not isinstance(name, str):
            raise FormatError(f"{escape(source)}: the manifest has a tensor without a name", rule="fingerprint.content")
        if not isinstance(sums, dict):
            raise FormatError(
                f"{escape(source)}: tensor '{escape(name)}' has no fingerprint: make the manifest with --fingerprints",
                rule="fingerprint.content",
            )
        file = record.get("file")
        more: dict[str, object] = {"shape": record.get("shape")}
        if record.get("sha256") is not None:
            more |= {"digest": f"sha256:{record['sha256']}".lower(), "digest_dtype": record.get("dtype")}
        tensor = _tensor(source, name, sums | more, file if isinstance(file, str) else None)
        if tensors.setdefault(name, tensor) != tensor:
            raise FormatError(
                f"{escape(source)}: the manifest has two tensors '{escape(name)}' that differ",
                rule="fingerprint.content",
            )
    return tensors


def _tensor(source: str, name: str, record: object, file: str | None = None) -> TensorFingerprint:
    def refuse(cause: str) -> FormatError:
        return FormatError(f"{escape(source)}: tensor '{escape(name)}': {cause}", rule="fingerprint.content")

    if not isinstance(record, dict):
        raise refuse("it is no object")
    kind, shape, blocks = record.get("kind"), record.get("shape"), record.get("blocks")
    if not isinstance(kind, str) or not isinstance(blocks, str):
        raise refuse("'kind' and 'blocks' have to be texts")
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < 1 << 63 for size in shape):
        raise refuse("'shape' has to be a list of sizes")
    rows_per_block, column_blocks = record.get("rows_per_block"), record.get("column_blocks")
    if type(column_blocks) is not int or not 1 <= column_blocks <= _MAX_COLUMN_BLOCKS:
        raise refuse(f"'column_blocks' has to be 1 to {_MAX_COLUMN_BLOCKS}")
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
    digest, dtype = record.get("digest"), record.get("digest_dtype")
    if (digest is None) != (dtype is None):
        raise refuse("'digest' and 'digest_dtype' belong together")
    if digest is not None and not (isinstance(digest, str) and _DIGEST.fullmatch(digest) and isinstance(dtype, str)):
        raise refuse("'digest' has to be 'sha256:' and 64 hexadecimal digits, and 'digest_dtype' a text")
    return TensorFingerprint(kind, tuple(shape), expected, column_blocks, sums, file, digest, dtype)
