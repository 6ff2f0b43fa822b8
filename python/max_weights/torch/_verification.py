"""`verify_loaded`: whether the parameters of a module are what a checkpoint holds."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn

from max_weights._core import fingerprint_of, fingerprints_of_rows, shown, weights_are_held
from max_weights._fingerprint import of_tensor, on_host
from max_weights._fingerprint_record import Fingerprint, said_rows
from max_weights._load_request import LoadRequest, ResolvedRequest, holds_floats
from max_weights._loading import LoadMethod, converter, load_resolved
from max_weights.dtype import DType
from max_weights.errors import ArgumentError
from max_weights.torch._slots import Slot, Slots, is_distributed, local, places_of

if TYPE_CHECKING:
    from max_weights._core import Buffer, WeightInfo, WeightsNode
    from max_weights._load_request import Rename

__all__ = ["ParameterFinding", "VerificationReport", "verify_loaded"]

_READ_AT_A_TIME = 256 << 20
"""How many bytes of weights are read before they are compared."""

_Sums: TypeAlias = torch.Tensor
"""Two integers of 64 bits for each row."""


@dataclass(frozen=True)
class ParameterFinding:
    """A parameter or buffer that is not what the checkpoint holds."""

    name: str
    """Its name in the module."""
    weight: str | None
    """The name of the weight that it should be."""
    message: str
    """What it is instead, in words."""
    rows: tuple[range, ...] = ()
    """Its rows that differ, counted over all dimensions but the last."""
    rank: int | None = None
    """The rank that found it, with `group`."""
    compared: bool = True
    """False for what could not be compared: the message says why."""

    def __str__(self) -> str:
        rank = "" if self.rank is None else f"rank {self.rank}: "
        return f"{rank}'{shown(self.name)}': {self.message}"


@dataclass(frozen=True)
class VerificationReport:
    """What a verification found."""

    findings: tuple[ParameterFinding, ...]
    verified: tuple[str, ...]
    """The names of all parameters and buffers that were compared, on this rank."""
    bytes: int
    """Bytes of these."""
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether everything that was compared is equal, and anything was."""
        return not self.findings and bool(self.verified)

    def __str__(self) -> str:
        lines = [f"{len(self.verified)} parameters and buffers were compared, {len(self.findings)} findings"]
        return "\n".join((*lines, *map(str, self.findings)))


def verify_loaded(
    module: nn.Module,
    weights: WeightsNode | Fingerprint,
    *,
    rename: Rename | str | None = None,
    group: Any = None,
) -> VerificationReport:
    """Compare the parameters and saved buffers of a module with a checkpoint, by fingerprints.

    What differs is looked up: rows of another weight, of another place in the same one, transposed, NaN, zeros. A
    parameter of a dtype that does not hold all values of its weight is compared with the weight converted to that
    dtype, with one rounding to the nearest, ties to even. Packed blocks are decoded to the parameter's dtype.

    Args:
        module: The module, after loading; its tensors may be on any device.
        weights: The checkpoint; or its fingerprint, where the files are not at hand: then a parameter has to be of a
            dtype that holds the values exactly, and what differs is said by blocks of rows.
        rename: As of `load_into`: a function, a mapping, or the name of a layout, such as "transformers5" or "vllm",
            whose parameters are fused and stacked.
        group: A process group of torch.distributed: each rank verifies its own module, of distributed tensors its own
            part, and all ranks return the findings of all.

    Raises:
        ArgumentError: `module` is no module, or has tensors on the meta device (a ValueError).
        FileChangedError: a file was changed meanwhile.
    """
    began = time.perf_counter()
    if not isinstance(module, nn.Module):
        raise TypeError(f"verify_loaded compares a torch.nn.Module, not a {type(module).__name__}")
    verification = _Verification(module, weights, rename)
    verification.run()
    findings = tuple(verification.findings)
    if group is not None:
        findings = _of_all_ranks(findings, group)
    return VerificationReport(findings, tuple(verification.verified), verification.bytes, time.perf_counter() - began)


def verify_some(
    module: nn.Module, weights: WeightsNode, names: Collection[str], *, rename: Rename | str | None = None
) -> VerificationReport:
    """Verify the parameters and buffers of these names; those on the meta device are findings."""
    began = time.perf_counter()
    verification = _Verification(module, weights, rename, frozenset(names))
    verification.run()
    findings, verified = tuple(verification.findings), tuple(verification.verified)
    return VerificationReport(findings, verified, verification.bytes, time.perf_counter() - began)


def _of_all_ranks(findings: tuple[ParameterFinding, ...], group: Any) -> tuple[ParameterFinding, ...]:
    """The findings of all ranks of a group, those that several have once."""
    import torch.distributed as dist

    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, findings, group=group)
    return tuple(dataclasses.replace(found, rank=rank) for rank, of_rank in enumerate(gathered) for found in of_rank)


@dataclass
class _Verification:
    module: nn.Module
    weights: WeightsNode | Fingerprint
    rename: Rename | str | None
    names: frozenset[str] | None = None
    """Those that are looked at; `None` for all, of which none may be on the meta device."""
    findings: list[ParameterFinding] = field(default_factory=list)
    verified: list[str] = field(default_factory=list)
    bytes: int = 0

    def run(self) -> None:
        slots = Slots(self.module)
        before = {slot.name: _state(slot.tensor) for slot in self._slots(slots)}
        if isinstance(self.weights, Fingerprint):
            self._run_with_fingerprint(slots, self.weights)
        else:
            self._run_with_weights(slots, self.weights)
        for slot in self._slots(Slots(self.module)):
            if before.get(slot.name) != _state(slot.tensor):
                message = "it was changed while it was verified: verify again when nothing writes to the module"
                self.findings.append(ParameterFinding(slot.name, None, message))

    def _run_with_weights(self, slots: Slots, weights: WeightsNode) -> None:
        request = LoadRequest(rename=self.rename).resolve(weights, unpack=DType.float32)
        infos = dict(zip(request.new_names, request.infos, strict=True))
        slots.tie(set(infos))
        pairs: list[tuple[Slot, str, WeightInfo]] = []
        for slot in self._slots(slots):
            if (name := self._name(slot, infos)) is None:
                continue
            if slot.tensor.is_floating_point() != holds_floats(infos[name]):
                own = DType.from_torch(slot.tensor.dtype).name
                message = f"its elements are {own}, and those of the weight {infos[name].encoding or infos[name].dtype}"
                self.findings.append(ParameterFinding(slot.name, name, message))
                continue
            pairs.append((slot, name, infos[name]))
        pairs.sort(key=lambda pair: (pair[2].file, pair[2].offset))
        self._rows = _RowIndex(request)
        held = self._held(request, pairs)
        for batch in _batches([pair for pair in pairs if pair[1] not in held]):
            dtypes: dict[str, DType | None] = {name: _dtype(slot.tensor) for slot, name, _ in batch}
            names = request.only(dtypes)
            loaded = load_resolved(names, LoadMethod(), convert=converter(None))
            tensors = dict(zip(names.new_names, loaded, strict=True))
            for slot, name, _ in batch:
                self._compare(slot, name, tensors.pop(name))

    def _held(self, request: ResolvedRequest, pairs: list[tuple[Slot, str, WeightInfo]]) -> set[str]:
        """The new names of the weights that are known to be in memory as they are: nothing has to be hashed of them."""
        full_names = dict(zip(request.new_names, request.names, strict=True))
        alike: list[tuple[str, Buffer]] = []
        for slot, name, info in pairs:
            tensor = slot.tensor.detach()
            plain = tensor.device.type == "cpu" and not is_distributed(tensor) and tensor.is_contiguous()
            if plain and slot.accepts(tuple(info.logical_shape or ())):
                alike.append((name, on_host(tensor)))
        tensors = [tensor for _, tensor in alike]
        held = weights_are_held(request.node, [full_names[name] for name, _ in alike], tensors)
        return {name for (name, _), holds in zip(alike, held, strict=True) if holds}

    def _run_with_fingerprint(self, slots: Slots, weights: Fingerprint) -> None:
        if isinstance(self.rename, str):
            raise ArgumentError(
                f"rename={self.rename!r} makes weights of several, and a fingerprint has none: take it of "
                f"max_weights.renamed(weights, {self.rename!r})"
            )
        new_names = {name: name for name in weights}
        if self.rename is not None:
            get = self.rename.get if isinstance(self.rename, Mapping) else self.rename
            new_names = {name: new for name in weights if (new := get(name)) is not None}
        by_new = {new: weights[name] for name, new in new_names.items()}
        slots.tie(set(by_new))
        for slot in self._slots(slots):
            if (name := self._name(slot, by_new)) is None:
                continue
            if is_distributed(slot.tensor):
                message = "it was not compared: each rank has a part of it, for which the weights are needed"
                self.findings.append(ParameterFinding(slot.name, name, message, compared=False))
                continue
            expected = by_new[name]
            own = of_tensor(slot.tensor, digest=expected.digest is not None)
            if own.kind != expected.kind or own.shape != expected.shape:
                message = f"it is {own.kind} {list(own.shape)}, and the weight {expected.kind} {list(expected.shape)}"
                self.findings.append(ParameterFinding(slot.name, name, message))
                continue
            if rows := own.differing_rows(expected):
                same = next((key for key, other in by_new.items() if other.total == own.total), None)
                message = f"it differs in the blocks of rows {said_rows(rows)}"
                if same is not None:
                    message = f"it holds '{shown(same)}'"
                self.findings.append(ParameterFinding(slot.name, name, message, tuple(rows)))
            elif own.digest_dtype == expected.digest_dtype and own.digest != expected.digest:
                message = "its SHA-256 differs, though its sums are equal: a NaN, or somebody made them so"
                self.findings.append(ParameterFinding(slot.name, name, message))

    def _slots(self, slots: Slots) -> Iterator[Slot]:
        """All of them, and those of modules that load themselves."""
        yield from slots
        for prefix, owner in slots.custom_loaders.items():
            for below, module in owner.named_modules(prefix=prefix.rstrip(".")):
                for place, tensor in places_of(f"{below}." if below else "", module):
                    yield Slot(tensor, [place])

    def _name(self, slot: Slot, named: Mapping[str, object]) -> str | None:
        """The name of the weight that a slot should be, or a finding."""
        if not slot.saved or (self.names is not None and self.names.isdisjoint(place.name for place in slot.places)):
            return None
        if slot.tensor.is_meta and self.names is not None:
            message = "it was not compared: it is on the meta device"
            self.findings.append(ParameterFinding(slot.name, None, message, compared=False))
            return None
        if slot.tensor.is_meta:
            raise ArgumentError(f"'{shown(slot.name)}' is on the meta device: there is nothing to compare; load first")
        if (refusal := slot.refusal()) is not None:
            self.findings.append(ParameterFinding(slot.name, None, f"it was not compared: {refusal}", compared=False))
            return None
        names = [place.name for place in slot.places if place.name in named]
        if not names:
            message = "the checkpoint has no weight of this name"
            self.findings.append(ParameterFinding(slot.name, None, message, compared=False))
            return None
        self.verified += [place.name for place in slot.places]
        self.bytes += local(slot.tensor).nbytes
        return names[-1]

    def _compare(self, slot: Slot, name: str, expected: Buffer) -> None:
        if not slot.accepts(tuple(expected.shape)):
            message = f"its shape is {list(slot.tensor.shape)}, and that of the weight {list(expected.shape)}"
            self.findings.append(ParameterFinding(slot.name, name, message))
            return
        own = on_host(local(slot.tensor))
        if is_distributed(slot.tensor):
            expected = _part(expected, slot.tensor)
        if fingerprint_of(own)[4] == fingerprint_of(expected)[4]:
            return
        of_own, of_weight = _row_sums(own), _row_sums(expected)
        rows = _runs((of_own != of_weight).any(dim=1).nonzero().flatten().tolist())
        message = self._explain(local(slot.tensor), name, of_own, of_weight, rows)
        if is_distributed(slot.tensor):
            message = f"of the part that this rank has, {message}"
        self.findings.append(ParameterFinding(slot.name, name, message, tuple(rows)))

    def _explain(self, tensor: torch.Tensor, name: str, own: _Sums, expected: _Sums, rows: list[range]) -> str:
        """Say what rows that differ are."""
        is_square = tensor.ndim == 2 and tensor.shape[0] == tensor.shape[1]
        if is_square and torch.equal(_row_sums(on_host(tensor.t())), expected):
            return f"it is '{shown(name)}' transposed"
        counted = sum(map(len, rows))
        flat = tensor.reshape(-1, tensor.shape[-1]) if tensor.ndim else tensor.reshape(1, 1)
        different = torch.cat([flat[run.start : run.stop] for run in rows])
        if different.is_floating_point() and (nans := int(torch.isnan(different).sum())):
            return f"{nans} of its values are NaN, in the rows {said_rows(rows)}"
        sources = self._rows.find(own, rows, _dtype(tensor), tensor.shape[-1] if tensor.ndim else 1)
        if sources:
            held = "; ".join(
                f"rows {said_rows([run])} hold rows {said_rows([origin])} of '{shown(weight)}'"
                for run, weight, origin in sources[:5]
            )
            run, weight, origin = sources[0]
            columns = tensor.shape[-1] if tensor.ndim else 1
            if len(run) == len(own) and origin == range(self._rows.count(_dtype(tensor), columns, weight)):
                held = f"it holds '{shown(weight)}'"
            found = sum(len(run) for run, _, _ in sources)
            rest = "" if found == counted else f"; {counted - found} more rows differ"
            return held + rest
        if not torch.count_nonzero(different):
            return f"the rows {said_rows(rows)} are zeros"
        return f"{counted} of {len(own)} rows differ from the weight '{shown(name)}': {said_rows(rows)}"


@dataclass(frozen=True)
class _WeightRows:
    """The rows of weights of one length, one weight after the other, and their order by the first of their sums."""

    sums: _Sums
    order: torch.Tensor
    sorted: torch.Tensor
    names: list[str]
    starts: list[int]
    """The number of the first row of each weight, and that of all rows."""

    def first(self, sums: _Sums) -> int | None:
        """The number of the first row with these sums."""
        at = int(torch.searchsorted(self.sorted, sums[0]))
        while at < len(self.sorted) and self.sorted[at] == sums[0]:
            number = int(self.order[at])
            if torch.equal(self.sums[number], sums):
                return number
            at += 1
        return None

    def place(self, number: int) -> tuple[str, int]:
        """The weight that a row is in, and which one of it."""
        weight = bisect.bisect_right(self.starts, number) - 1
        return self.names[weight], number - self.starts[weight]


class _RowIndex:
    """The rows of all weights, found by their sums: made when something differs."""

    def __init__(self, request: ResolvedRequest) -> None:
        self._request = request
        self._by_kind: dict[tuple[DType, int], _WeightRows] = {}

    def find(self, own: _Sums, rows: list[range], dtype: DType, columns: int) -> list[tuple[range, str, range]]:
        """Return runs of `rows`, of a tensor with these sums, each with the weight and the rows of it that they are."""
        weights = self._weights(dtype, columns)
        ends = set(weights.starts)
        runs: list[tuple[int, int, int]] = []
        """The first row, the number of its origin, and how many follow each other in both."""
        for row in (row for run in rows for row in run):
            if runs and runs[-1][0] + runs[-1][2] == row:
                first, number, count = runs[-1]
                after = number + count
                # Of rows that are alike, the one that goes on where the last one was.
                if after not in ends and torch.equal(weights.sums[after], own[row]):
                    runs[-1] = (first, number, count + 1)
                    continue
            if (origin := weights.first(own[row])) is not None:
                runs.append((row, origin, 1))
        sources: list[tuple[range, str, range]] = []
        for row, number, count in runs:
            weight, origin = weights.place(number)
            sources.append((range(row, row + count), weight, range(origin, origin + count)))
        return sources

    def count(self, dtype: DType, columns: int, weight: str) -> int:
        """Return how many rows a weight has."""
        weights = self._weights(dtype, columns)
        at = weights.names.index(weight)
        return weights.starts[at + 1] - weights.starts[at]

    def _weights(self, dtype: DType, columns: int) -> _WeightRows:
        key = dtype, columns
        if key not in self._by_kind:
            listed = zip(self._request.new_names, self._request.infos, strict=True)
            names = [new for new, info in listed if (info.logical_shape or (1,))[-1] == columns]
            parts = [_row_sums(self._load(name, dtype)) for name in names]
            sums = torch.cat([torch.empty((0, 2), dtype=torch.int64), *parts])
            ordered, order = torch.sort(sums[:, 0], stable=True)
            starts = [0, *itertools.accumulate(map(len, parts))]
            self._by_kind[key] = _WeightRows(sums, order, ordered, names, starts)
        return self._by_kind[key]

    def _load(self, name: str, dtype: DType) -> Buffer:
        tensors: list[Buffer] = load_resolved(self._request.only({name: dtype}), LoadMethod(), convert=converter(None))
        return tensors[0]


def _part(whole: Buffer, tensor: Any) -> Buffer:
    """The part of a weight that this rank has, as torch itself distributes it."""
    from torch.distributed.tensor import distribute_tensor

    shaped = whole.torch().reshape(tensor.shape)
    return on_host(local(distribute_tensor(shaped, tensor.device_mesh, tensor.placements, src_data_rank=None)))


def _state(tensor: torch.Tensor) -> tuple[int, int]:
    """What changes when a tensor is replaced or written to by torch."""
    return id(tensor), 0 if tensor.is_inference() else tensor._version


def _dtype(tensor: torch.Tensor) -> DType:
    return DType.from_torch(tensor.dtype)


def _row_sums(tensor: Buffer) -> _Sums:
    sums = bytearray(fingerprints_of_rows(tensor))
    return torch.frombuffer(sums, dtype=torch.int64).view(-1, 2) if sums else torch.empty((0, 2), dtype=torch.int64)


def _runs(rows: list[int]) -> list[range]:
    """Neighbouring rows together."""
    runs: list[range] = []
    for row in rows:
        if runs and runs[-1].stop == row:
            runs[-1] = range(runs[-1].start, row + 1)
        else:
            runs.append(range(row, row + 1))
    return runs


def _batches(pairs: list[tuple[Slot, str, WeightInfo]]) -> Iterator[list[tuple[Slot, str, WeightInfo]]]:
    batch: list[tuple[Slot, str, WeightInfo]] = []
    size = 0
    for pair in pairs:
        if batch and size + pair[2].bytes > _READ_AT_A_TIME:
            yield batch
            batch, size = [], 0
        batch.append(pair)
        size += pair[2].bytes
    if batch:
        yield batch
