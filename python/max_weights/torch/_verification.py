"""`verify_loaded`: whether the parameters of a module equal the weights of a checkpoint."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import nn

from max_weights._checkpoints import opened
from max_weights._core import WeightsNode, escape, fingerprint_of, weights_are_held
from max_weights._dtype import DType
from max_weights._fingerprint import of_tensor
from max_weights._fingerprint_record import Fingerprint, format_rows
from max_weights._load_request import LoadRequest, ResolvedRequest, renamed_by
from max_weights._loading import LoadMethod, converter, load_resolved
from max_weights._memory_source import host_buffer
from max_weights._result import Finding
from max_weights._threads import threads_of_call
from max_weights._typing import known
from max_weights.errors import ArgumentError
from max_weights.torch._slots import ParameterSlot, all_slots, declared_ties, dtype_of_decoded, is_distributed, local
from max_weights.torch._verification_report import Outcome, VerificationReport, of_all_ranks
from max_weights.torch._verification_values import (
    dtype_of,
    kind_of,
    kind_of_weight,
    may_overflow,
    part_of,
    shape_of,
    signs_differ,
    values_of,
    wrapped,
)
from max_weights.torch._weight_rows import RowIndex, Sums, row_sums

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from max_weights._checkpoints import Checkpoint, Tensors
    from max_weights._core import Buffer, WeightInfo
    from max_weights._load_request import Rename
    from max_weights._selection import Pattern

__all__ = ["VerificationReport", "verify_loaded", "verify_some"]

_READ_AT_A_TIME = 256 << 20
"""How many bytes of weights are read before they are compared."""


def verify_loaded(
    module: nn.Module,
    checkpoint: Checkpoint | Tensors | Fingerprint,
    *,
    rename: Rename | str | None = None,
    ignore: Pattern | Collection[Pattern] | None = None,
    group: ProcessGroup | None = None,
    threads: int | None = None,
) -> VerificationReport:
    """Compare the parameters and saved buffers of a module with a checkpoint, by fingerprints.

    The module has to match the checkpoint exactly: a weight that no parameter holds, or a parameter that no weight
    fills, is a finding. A parameter with several names, such as tied weights, is compared with the weight of each name;
    a checkpoint may lack all of its names but one. Buffers that are not saved need no weight.

    What differs is looked up: rows of another weight, of another place in the same one, transposed, NaN, zeros. If a
    parameter's dtype does not hold all values of its weight, the weight is first converted to that dtype, with one
    rounding to the nearest, ties to even. Values that overflow, to infinity or around the end of an integer, are
    findings. Packed blocks are decoded to the parameter's dtype.

    Args:
        module: The module, after loading; its tensors may be on any device.
        checkpoint: A tree, anything that `load_weights` opens, {name: tensor}, or another module. Or a `Fingerprint`,
            if the files are not available: then the dtype of a parameter has to hold the values exactly, and
            differences are reported per row block.
        rename: As for `load_into`: a function, a mapping, or the name of a layout, such as "transformers5" or "vllm",
            whose parameters are fused and stacked.
        ignore: Names and patterns, as for `load`, of weights that nothing holds, by their renamed names, and of
            parameters that nothing fills or that cannot be compared. A parameter that differs is never excused.
        group: A process group of torch.distributed: each rank verifies its module, or its part of distributed tensors,
            and all ranks return the findings of all. A weight that any rank holds is used.
        threads: How many; `None` for as many as there are cores.

    Returns:
        The report; true if everything is equal.

    Raises:
        ArgumentError: `module` has tensors on the meta device, a pattern of `ignore` excuses nothing, or `checkpoint`
            is not a checkpoint (a ValueError).
        TypeError: `module` is not a module.
        FileChangedError: a file changed meanwhile.
        RankError: with `group`, on all ranks, the error of one of them.

    Example:
        >>> report = max_weights.torch.load_into(model, "model.safetensors")
        >>> assert max_weights.torch.verify_loaded(model, "model.safetensors")
    """
    began = time.perf_counter()
    outcome: Outcome | None = None
    error: Exception | None = None
    own: tuple[str, ...] = ()
    size = 0
    try:
        verification = _verified(module, checkpoint, rename, threads)
        outcome, size = verification.outcome, verification.bytes
        own = tuple(outcome.verified)
    except Exception as failed:
        if group is None:
            raise
        error = failed
    if group is not None:
        outcome = of_all_ranks(outcome, error, group)
    outcome = known(outcome)
    patterns = [ignore] if isinstance(ignore, str | re.Pattern) else ignore
    return outcome.reported(patterns, own, size, time.perf_counter() - began)


def verify_some(
    module: nn.Module, weights: WeightsNode, names: Collection[str], *, rename: Rename | str | None = None
) -> VerificationReport:
    """Verify the parameters and buffers of these names alone; those on the meta device are findings."""
    began = time.perf_counter()
    verification = _Verification(module, weights, rename, frozenset(names))
    verification.run()
    outcome = verification.outcome
    outcome.weights = []  # the others are not needed
    return outcome.reported(None, tuple(outcome.verified), verification.bytes, time.perf_counter() - began)


def _verified(
    module: object, checkpoint: Checkpoint | Tensors | Fingerprint, rename: Rename | str | None, threads: int | None
) -> _Verification:
    """Verify the module of this process."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"verify_loaded compares a torch.nn.Module, not a {type(module).__name__}")
    with ExitStack() as stack:
        if not isinstance(checkpoint, Fingerprint):
            checkpoint = stack.enter_context(opened(checkpoint, "verify_loaded", tensors=True))
        stack.enter_context(threads_of_call(threads))
        verification = _Verification(module, checkpoint, rename)
        verification.run()
    return verification


@dataclass
class _Verification:
    module: nn.Module
    weights: WeightsNode | Fingerprint
    rename: Rename | str | None
    names: frozenset[str] | None = None
    """Return the tensors to verify; `None` for all, of which none may be on the meta device."""
    outcome: Outcome = field(default_factory=Outcome)
    bytes: int = 0

    def run(self) -> None:
        slots = all_slots(self.module)
        self._ties = declared_ties(self.module)
        before = {slot.name: _state(slot.tensor) for slot in slots}
        if isinstance(self.weights, Fingerprint):
            self._run_with_fingerprint(slots, self.weights)
        else:
            self._run_with_weights(slots, self.weights)
        for slot in all_slots(self.module):
            if before.get(slot.name) != _state(slot.tensor):
                message = "it was changed while it was verified: verify again when nothing writes to the module"
                self._differs(slot.name, None, message)

    def _run_with_weights(self, slots: list[ParameterSlot], weights: WeightsNode) -> None:
        by_name = {place.name: slot for slot in slots for place in slot.places}
        quantized = functools.partial(dtype_of_decoded, by_name)  # as load_into decodes them
        request = LoadRequest(rename=self.rename).resolve(weights, unpack=DType.float32, quantized=quantized)
        infos = dict(zip(request.new_names, request.infos, strict=True))
        self._rows = RowIndex(request)
        pairs: list[tuple[ParameterSlot, str, WeightInfo]] = []
        for slot, name in self._pairs(slots, infos):
            info = infos[name]
            if kind_of(dtype_of(slot.tensor)) != kind_of_weight(info):
                own = dtype_of(slot.tensor).name
                message = f"its elements are {own}, and those of the weight {info.encoding or info.dtype}"
                self._differs(_name_in(slot, name), name, message)
            elif shape_of(slot.tensor) != tuple(info.logical_shape or ()):
                message = f"its shape is {list(slot.tensor.shape)}, and that of the weight {list(info.logical_shape)}"
                self._differs(_name_in(slot, name), name, message)
            else:
                pairs.append((slot, name, info))
        pairs.sort(key=lambda pair: (pair[2].file, pair[2].offset))
        held = self._held(request, pairs)
        overflowing: list[tuple[ParameterSlot, str, WeightInfo]] = []
        for batch in _batches([pair for pair, holds in zip(pairs, held, strict=True) if not holds]):
            # Integers are compared by their values: a conversion would wrap those that do not fit.
            dtypes = [dtype_of(slot.tensor) if kind_of_weight(info) == "float" else None for slot, _, info in batch]
            tensors = _loaded(request, dict(zip((name for _, name, _ in batch), dtypes, strict=True)))
            for slot, name, info in batch:
                if self._compare(slot, name, tensors.pop(name)) and may_overflow(slot.tensor, info):
                    overflowing.append((slot, name, info))
        equal = (pair for pair, holds in zip(pairs, held, strict=True) if holds)
        overflowing += [pair for pair in equal if may_overflow(pair[0].tensor, pair[2])]
        for batch in _batches(overflowing):
            wide = {name: DType.float32 if info.encoding is not None else None for _, name, info in batch}
            tensors = _loaded(request, wide)
            for slot, name, _ in batch:
                self._require_finite(slot, name, tensors.pop(name))

    def _held(self, request: ResolvedRequest, pairs: list[tuple[ParameterSlot, str, WeightInfo]]) -> list[bool]:
        """For each pair, whether memory is known to hold the weight unchanged: then nothing has to be hashed."""
        full_names = dict(zip(request.new_names, request.names, strict=True))
        alike: list[tuple[int, str, Buffer]] = []
        for number, (slot, name, info) in enumerate(pairs):
            tensor = slot.tensor.detach()
            plain = tensor.device.type == "cpu" and not is_distributed(tensor) and tensor.is_contiguous()
            if plain and (kind_of_weight(info) == "float" or info.dtype == dtype_of(tensor)):
                alike.append((number, full_names[name], host_buffer(name, tensor)))
        tensors = [tensor for _, _, tensor in alike]
        held = weights_are_held(request.node, [name for _, name, _ in alike], tensors)
        numbers = {number for (number, _, _), holds in zip(alike, held, strict=True) if holds}
        return [number in numbers for number in range(len(pairs))]

    def _run_with_fingerprint(self, slots: list[ParameterSlot], weights: Fingerprint) -> None:
        if isinstance(self.rename, str):
            raise ArgumentError(
                f"rename={self.rename!r} makes weights of several, and a fingerprint has none: take it of "
                f"max_weights.renamed(weights, {self.rename!r})",
                rule="argument.packed",
            )
        new_names = {name: name for name in weights} if self.rename is None else renamed_by(weights, self.rename)
        by_new = {new: weights[name] for name, new in new_names.items()}
        for slot, name in self._pairs(slots, by_new):
            own_name, expected = _name_in(slot, name), by_new[name]
            if is_distributed(slot.tensor):
                why = "it was not compared: each rank has a part of it, for which the weights are needed"
                self.outcome.leave_out(own_name, name, why, _names(slot), unfilled=False)
                continue
            own = of_tensor(own_name, slot.tensor, digest=expected.digest is not None)
            if own.kind != expected.kind or own.shape != expected.shape:
                message = f"it is {own.kind} {list(own.shape)}, and the weight {expected.kind} {list(expected.shape)}"
                self._differs(own_name, name, message)
                continue
            if rows := own.differing_rows(expected):
                same = next((key for key, other in by_new.items() if other.total == own.total), None)
                message = f"it differs in the blocks of rows {format_rows(rows)}"
                if same is not None:
                    message = f"it holds '{escape(same)}'"
                self._differs(own_name, name, message, tuple(rows))
            elif own.digest_dtype == expected.digest_dtype and own.digest != expected.digest:
                message = "its SHA-256 differs, though its sums are equal: a NaN, or a constructed collision"
                self._differs(own_name, name, message)

    def _differs(self, name: str, weight: str | None, message: str, rows: tuple[range, ...] = ()) -> None:
        self.outcome.differences.append(Finding(name, message, other=weight, rows=rows))

    def _pairs(self, slots: list[ParameterSlot], named: Mapping[str, object]) -> Iterator[tuple[ParameterSlot, str]]:
        """Yield each parameter and saved buffer with each of its weights; those without one are recorded."""
        self.outcome.weights = list(named)
        for slot in slots:
            names = _names(slot)
            # A buffer that is not saved keeps its value, whatever a file says: its weight is not unused.
            self.outcome.held.update(place.name for place in slot.places if place.name in named)
            if not names or (self.names is not None and self.names.isdisjoint(names)):
                continue
            if slot.tensor.is_meta and self.names is None:
                raise ArgumentError(
                    f"'{escape(slot.name)}' is on the meta device: there is nothing to compare; load first",
                    rule="argument.meta",
                )
            if (why := _refusal(slot)) is not None:
                self.outcome.leave_out(slot.name, None, f"it was not compared: {why}", names, unfilled=False)
                continue
            weights = [name for name in names if name in named]
            # If a model declares parameters tied, a checkpoint may have one name, although they do not share memory.
            weights = weights or [other for name in names for other in self._ties.get(name, ()) if other in named][:1]
            if not weights:
                why = "the checkpoint has no weight of this name"
                self.outcome.leave_out(slot.name, None, why, names, unfilled=True)
                continue
            self.outcome.verified += names
            self.outcome.held.update(weights)
            self.bytes += local(slot.tensor).nbytes
            for name in weights:
                yield slot, name

    def _compare(self, slot: ParameterSlot, name: str, expected: Buffer) -> bool:
        """Whether a parameter is equal to its weight, of the same shape; a difference is recorded."""
        own = host_buffer(name, local(slot.tensor))
        if is_distributed(slot.tensor):
            expected = part_of(expected, slot.tensor)
        rows: list[range] = []
        if fingerprint_of(own)[4] != fingerprint_of(expected)[4]:
            of_own, of_weight = row_sums(own), row_sums(expected)
            rows = _runs((of_own != of_weight).any(dim=1).nonzero().flatten().tolist())
            message = wrapped(own, expected) or self._explain(own, name, of_own, of_weight, rows)
        elif signs_differ(own, expected):
            message = f"some of its values do not fit {own.dtype.name}: those of the weight are {expected.dtype.name}"
        else:
            return True
        if is_distributed(slot.tensor):
            message = f"of the part that this rank has, {message}"
        self._differs(_name_in(slot, name), name, message, tuple(rows))
        return False

    def _require_finite(self, slot: ParameterSlot, name: str, weight: Buffer) -> None:
        """Record values that became infinite or NaN in a parameter of less range than its weight."""
        own = values_of(host_buffer(name, local(slot.tensor)))
        if is_distributed(slot.tensor):
            weight = part_of(weight, slot.tensor)
        lost = values_of(weight).isfinite() & ~own.isfinite()
        if count := int(lost.sum()):
            place = lost.reshape(-1).nonzero()[0]
            value, became = (float(one.reshape(-1)[place]) for one in (values_of(weight), own))
            message = (
                f"{count} values of the weight '{escape(name)}' do not fit {dtype_of(slot.tensor).name}, and are not "
                f"finite in it: {value:g} became {became:g}"
            )
            self._differs(_name_in(slot, name), name, message)

    def _explain(self, own: Buffer, name: str, sums: Sums, expected: Sums, rows: list[range]) -> str:
        """Explain where the differing rows come from."""
        shape = tuple(own.shape)
        columns = shape[-1] if shape else 1
        is_square = len(shape) == 2 and shape[0] == shape[1] and own.dtype.size_in_bits >= 8
        if is_square and torch.equal(row_sums(host_buffer(name, own.torch().t())), expected):
            return f"it is '{escape(name)}' transposed"
        counted = sum(map(len, rows))
        flat = values_of(own).reshape(-1, columns)
        different = torch.cat([flat[run.start : run.stop] for run in rows])
        if different.is_floating_point() and (nans := int(torch.isnan(different).sum())):
            return f"{nans} of its values are NaN, in the rows {format_rows(rows)}"
        sources = self._rows.find(sums, rows, own.dtype, columns)
        if sources:
            held = "; ".join(
                f"rows {format_rows([run])} hold rows {format_rows([origin])} of '{escape(weight)}'"
                for run, weight, origin in sources[:5]
            )
            run, weight, origin = sources[0]
            if len(run) == len(sums) and origin == range(self._rows.count(own.dtype, columns, weight)):
                held = f"it holds '{escape(weight)}'"
            found = sum(len(run) for run, _, _ in sources)
            rest = "" if found == counted else f"; {counted - found} more rows differ"
            return held + rest
        if not torch.count_nonzero(different):
            return f"the rows {format_rows(rows)} are zeros"
        return f"{counted} of {len(sums)} rows differ from the weight '{escape(name)}': {format_rows(rows)}"


def _names(slot: ParameterSlot) -> list[str]:
    """The names of a parameter or buffer in the state dict."""
    return [place.name for place in slot.places if place.saved]


def _name_in(slot: ParameterSlot, weight: str) -> str:
    """Return the name of a parameter for a comparison: of tied ones, the name of the weight."""
    return weight if weight in _names(slot) else slot.name


def _refusal(slot: ParameterSlot) -> str | None:
    """Why a parameter cannot be compared; `None` if it can."""
    if nn.parameter.is_lazy(slot.tensor):
        return "it is not initialized: its shape is not known yet"
    if slot.tensor.is_meta:
        return "it is on the meta device"
    if (refusal := slot.refusal()) is not None:
        return refusal
    try:
        dtype_of(slot.tensor)
    except ValueError as error:
        return str(error)
    return None


def _loaded(request: ResolvedRequest, dtypes: Mapping[str, DType | None]) -> dict[str, Buffer]:
    names = request.only(dtypes)
    return dict(zip(names.new_names, load_resolved(names, LoadMethod(), convert=converter(None)), strict=True))


def _state(tensor: torch.Tensor) -> tuple[int, int]:
    """Return a state that changes when torch replaces a tensor or writes to it."""
    unversioned = nn.parameter.is_lazy(tensor) or tensor.is_inference()
    return id(tensor), 0 if unversioned else tensor._version


def _runs(rows: list[int]) -> list[range]:
    """Neighbouring rows together."""
    runs: list[range] = []
    for row in rows:
        if runs and runs[-1].stop == row:
            runs[-1] = range(runs[-1].start, row + 1)
        else:
            runs.append(range(row, row + 1))
    return runs


def _batches(
    pairs: list[tuple[ParameterSlot, str, WeightInfo]],
) -> Iterator[list[tuple[ParameterSlot, str, WeightInfo]]]:
    batch: list[tuple[ParameterSlot, str, WeightInfo]] = []
    names: set[str] = set()
    size = 0
    for pair in pairs:
        # Two parameters may be compared with one weight: it is loaded for each, as their dtypes are.
        if batch and (size + pair[2].bytes > _READ_AT_A_TIME or pair[1] in names):
            yield batch
            batch, size = [], 0
            names.clear()
        names.add(pair[1])
        batch.append(pair)
        size += pair[2].bytes
    if batch:
        yield batch
