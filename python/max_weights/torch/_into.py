"""`load_into`: from a checkpoint straight into the parameters and buffers of a module."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from max_weights._checkpoints import opened
from max_weights._core import PytorchWeights, escape
from max_weights._dtype import DType
from max_weights._group_options import refuse_group_options, require_spread
from max_weights._load_report import LoadReport, mismatch_error
from max_weights._load_request import LoadRequest, ResolvedRequest
from max_weights._loading import LoadMethod, converter, load_resolved, resolve_device
from max_weights._progress import progress_of
from max_weights._read_options import ReadOptions
from max_weights._transaction import Destination, Transaction, copy_into, known_dtype, shared_memory
from max_weights.errors import ArgumentError
from max_weights.sharding._by_name import shape_of
from max_weights.torch._slots import (
    CODES,
    ParameterSlot,
    SlotFill,
    Slots,
    can_initialize,
    dtype_of_decoded,
    has_distributed,
    initialize_missing,
    is_distributed,
    keep_module,
    keep_values,
    local,
    run_hooks,
)

if TYPE_CHECKING:
    from typing import Unpack

    import torch.distributed as dist

    from max_weights._checkpoints import Checkpoint
    from max_weights._core import WeightsNode
    from max_weights._loading import LoadOptions
    from max_weights._ranks.session import Session
    from max_weights.sharding._by_name import ShardBox
    from max_weights.torch._distributed import CollectiveFill, Spread

__all__ = ["load_into"]

_STAGED_AT_A_TIME = 256 << 20
"""How many bytes of the file are in memory at a time, where tensors are copied from it."""


def load_into(
    module: nn.Module,
    checkpoint: Checkpoint,
    *,
    strict: bool = True,
    group: dist.ProcessGroup | None = None,
    spread: Spread = "auto",
    rank_timeout: float = 600.0,
    undo: bool = True,
    **options: Unpack[LoadOptions],
) -> LoadReport:
    """Fill the parameters and buffers of a module from a checkpoint, as one transaction.

    Everything is checked before the module is changed. An error or an interrupt restores the module, on all ranks.
    Until the end, the replaced values are kept on their device if they fit there, otherwise up to 1 GiB in memory, and
    the rest in a temporary file. Tensors on the meta device have no values to keep.

    - Tensors with contiguous memory on the CPU are written in place, and keep their dtype: elements are converted.

    - Tensors on the meta device get memory: a view of the file if the file has the requested form, otherwise (or always
      with `copy=True`) a copy. From a PyTorch file they get copies unless you set `copy=False`, because programs save
      over such files, which is safe after torch.load: it reads copies. The dtype is that of the file, or `dtype`;
      `requires_grad` stays.

    - Tensors on another device, or not contiguous, are copied there, a part of the file at a time, and keep their
      dtype.

    - Tied parameters stay tied, and the file may have them under any of their names. Parameters that a model of
      transformers declares tied become tied.

    - Buffers that a module does not save (`persistent=False`) keep their values. On the meta device they are taken from
      the file, or computed by a model of transformers; other modules have to create them.

    - Modules with a custom `_load_from_state_dict`, hooks, or extra state, such as `BatchNorm2d`, load themselves with
      `load_state_dict`, and with `assign=True` if they have anything on the meta device.

    - Of distributed tensors (`DTensor`, as of FSDP2 and tensor parallelism) each rank gets its part: all ranks call
      this. On the meta device, parts get memory on the device of their mesh.

    Args:
        module: The module.
        checkpoint: A path, a list of paths, a URL, or an open tree, which stays open.
        strict: Refuse a file that lacks a parameter or a saved buffer, or that has an unexpected name; otherwise the
            report lists them. A shape that does not fit is always an error.
        group: The ranks that load together, each byte read by one of them: a process group of torch.distributed, all of
            whose ranks call this with the same file. Default: all ranks for a module with distributed tensors, and
            otherwise this process alone.
        spread: Which ranks read. With `rank`, each reads for itself; with `node`, one reads for all ranks of its
            machine; with `world`, one for all. With `auto`, local files are read by `rank`, because all ranks of a
            machine share its page cache; other files by `node`, or by `world` over NCCL.
        rank_timeout: For how many seconds ranks wait for one that does not answer.
        undo: Keep the replaced values until everything is written. False: keep nothing, which is faster and takes no
            memory. An error after the checks may then leave part of the new values, and its message says so.
        **options: Those of `WeightsNode.load`: select, rename, dtype, packed, shard, copy, progress, options (a
            `max_weights.types.ReadOptions`) and its fields. `dtype` applies to tensors on the meta device.

    Returns:
        The names that were loaded, converted and tied, and with `strict=False`, those missing or unexpected.

    Raises:
        ArgumentError: the checkpoint does not fit the module (a ValueError); the message lists every mismatch.
        FormatError: the file is damaged.
        RankError: on all ranks, the error of one of them: the rank, its host, the tensor and the cause.

    Example:
        >>> max_weights.torch.load_into(model, "model.safetensors").ok
        True
    """
    began = time.perf_counter()
    if not isinstance(module, nn.Module):
        raise TypeError(f"load_into fills a torch.nn.Module, not a {type(module).__name__}")
    if group is None and not has_distributed(module):
        require_spread(spread)
        refuse_group_options("load_into", rank_timeout=rank_timeout, spread=spread)
        with opened(checkpoint, "load_into") as weights, Transaction(undo=undo) as transaction:
            own = _Plan(module, weights, strict, options, transaction)
            own.require_fit()
            return own.run(began)
    from max_weights._ranks.session import Session

    # Each rank reports its error to all before it restores its tensors.
    with (
        ExitStack() as files,
        Transaction(undo=undo) as transaction,
        Session(group, rank_timeout, "load_into") as session,
    ):
        made: list[tuple[_Plan, CollectiveFill]] = []

        def make() -> dict[str, Any]:
            run_hooks(module, before=True)
            plan = _Plan(module, files.enter_context(opened(checkpoint, "load_into")), strict, options, transaction)
            plan.require_fit()
            made.append((plan, plan.collective(session, spread)))
            return made[0][1].record

        records = session.agreed(make)
        plan, collective = made[0]
        collective.plan(records)
        session.note = "the module is unchanged" if undo else "modules may hold part of the new values"
        reports: list[LoadReport] = []

        def run() -> dict[str, Any]:
            reports.append(plan.run(began, collective))
            run_hooks(module, before=False)
            return {}

        session.agreed(run)
        return reports[0]


@dataclass
class _Plan:
    """Which weight fills which tensor, and which weights do not fit."""

    module: nn.Module
    weights: WeightsNode
    strict: bool
    options: LoadOptions
    transaction: Transaction
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    non_persistent: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    fills: list[SlotFill] = field(default_factory=list)
    _cuts: dict[str, ShardBox | None] = field(default_factory=dict)
    """This rank's boxes of distributed weights."""

    def __post_init__(self) -> None:
        options: dict[str, Any] = dict(self.options)
        self._progress = options.pop("progress", None)
        names = ("select", "rename", "dtype", "packed", "shard")
        what = {name: options.pop(name) for name in names if name in options}
        if isinstance(self.weights, PytorchWeights) and options.get("copy") is None:
            options["copy"] = True
        copy = options.pop("copy", None)
        read = ReadOptions.of("load_into", options.pop("options", None), options)
        self._how = LoadMethod(copy, read)
        # The module's dtypes decide how packed and quantized weights are decoded, unless the caller sets them.
        self._unpacks = what.get("dtype") is None and what.get("packed") != "keep"
        self.slots = Slots(self.module)
        request = LoadRequest(**what)
        self._request = (
            request.resolve(self.weights, unpack=DType.float32, quantized=self._quantized)
            if self._unpacks
            else request.resolve(self.weights)
        )
        self._decoded = dict(zip(self._request.new_names, self._request.decoded, strict=True))
        self._infos = dict(zip(self._request.new_names, self._request.infos, strict=True))
        self._dtypes = dict(zip(self._request.new_names, self._request.dtypes, strict=True))
        self._can_initialize = can_initialize(self.module)
        self._shapes = _shapes_of_parts(self._request)
        self.slots.tie(set(self._infos))
        for slot in self.slots:
            self._examine(slot)
        self.problems += self.slots.destroyed()
        self.problems += [
            f"'{escape(one)}' and '{escape(other)}' share memory, at least in part: each needs its own"
            for one, other in shared_memory([(fill.name, fill.slot.tensor) for fill in self.fills])
        ]
        prefixes = tuple(self.slots.custom_loaders)
        self.custom_loaded = [name for name in self._infos if prefixes and name.startswith(prefixes)]
        self.unexpected = [
            name
            for name in self._infos
            if name not in self.slots.by_name and not (prefixes and name.startswith(prefixes))
        ]

    def _quantized(self, weight: str | None, packed: str | None) -> DType | None:
        """Return the dtype that the module has for a quantized weight; `None` for the stored form."""
        return dtype_of_decoded(self.slots.by_name, weight, packed)

    def _examine(self, slot: ParameterSlot) -> None:
        """Decide how a slot is filled."""
        names = [place.name for place in slot.places if place.name in self._infos]
        if not slot.saved and not slot.tensor.is_meta:
            self.non_persistent += names
            return
        if not names:
            if slot.saved:
                self.missing.append(slot.name)
            elif self.strict and not self._can_initialize:
                self.problems.append(
                    f"'{escape(slot.name)}': the module does not save this buffer, and it is on the meta device; "
                    "make it on the CPU (strict=False leaves it unchanged)"
                )
            return
        name = names[-1]  # as in load_state_dict, the last one counts
        info, dtype = self._infos[name], self._dtypes[name]
        shape = self._shapes[name]
        refusal = slot.refusal()
        decoded = self._decoded[name]
        if refusal is None and decoded == "turned":
            refusal = (
                "it is decoded as [experts, out, in], and modules may have [experts, in, out]: decode it with "
                "max_weights.quantized, and copy it in the order of the module"
            )
        if refusal is None and decoded is not None and known_dtype(slot.tensor) in CODES:
            refusal = "the module has codes, and the weight is decoded: omit dtype and packed"
        if refusal is None and not slot.accepts(shape):
            refusal = f"the file has the shape {list(shape)}, but the module has {list(slot.tensor.shape)}"
        if refusal is not None:
            self.problems.append(f"'{escape(name)}': {refusal}")
            return
        out = None
        if slot.tensor.is_meta and self._unpacks and info.encoding is not None:
            dtype = DType.from_torch(slot.tensor.dtype)
        if not slot.tensor.is_meta:
            if isinstance(info.dtype, DType) and not is_distributed(slot.tensor):
                out = Destination(slot.tensor).straight(shape)
            if out is not None:
                dtype = DType.from_torch(out.dtype)
            elif info.encoding is None:
                dtype = None  # torch converts as it copies
        self.fills.append(SlotFill(slot, name, info, dtype, out))

    def require_fit(self) -> None:
        """Raise one error that lists everything that does not fit."""
        if self.problems or (self.strict and (self.missing or self.unexpected)):
            missing, unexpected = (self.missing, self.unexpected) if self.strict else ([], [])
            what = f"the file does not fit {escape(type(self.module).__name__)}"
            remedy = "strict=False takes what fits, and reports the rest; rename= gives weights other names"
            raise mismatch_error(what, missing, unexpected, self.problems, remedy)

    def collective(self, session: Session, spread: Spread) -> CollectiveFill:
        """Return the plan of all ranks for everything that modules do not load themselves."""
        from max_weights.torch._distributed import CollectiveFill

        if self.options.get("shard") is not None:
            raise ArgumentError(
                "shard= is for one rank of several; with group=, the tensors define the parts", rule="argument.conflict"
            )
        if self._how.read.digests is not None:
            raise ArgumentError(
                "digests= compares whole tensors, which no rank has; see max_weights.fingerprint",
                rule="argument.conflict",
            )
        request = self._request.only({fill.name: fill.dtype for fill in self.fills})
        return CollectiveFill(session, request, {fill.name: fill for fill in self.fills}, spread)

    def _fills_of_rank(self, collective: CollectiveFill) -> list[SlotFill]:
        """Allocate missing memory, exchange the bytes, and return the fills that this rank reads alone."""
        alone = collective.reads_alone
        for fill in self.fills:
            has_memory, distributed = not fill.slot.tensor.is_meta, is_distributed(fill.slot.tensor)
            if not has_memory and (distributed or not alone):
                fill.give_memory()
            elif has_memory and not alone:
                self.transaction.keep(fill.slot.tensor)
            if alone and distributed:
                fill.out = fill.memory.straight(fill.shape) if fill.size else None
                if fill.out is not None:
                    fill.dtype = DType.from_torch(fill.out.dtype)
        if not alone:
            collective.run(self._how.read, self._note)
            return []
        self._cuts = collective.cuts()
        return [fill for fill in self.fills if fill.name in self._cuts]

    def _note(self, size: int) -> None:
        """Report bytes that were exchanged."""
        self._done += size
        if self._report_progress is not None:
            self._report_progress(self._done, max(self._total, self._done))

    def run(self, began: float, collective: CollectiveFill | None = None) -> LoadReport:
        """Carry out the plan."""
        total = sum(fill.info.bytes for fill in self.fills) + sum(
            self._infos[name].bytes for name in self.custom_loaded
        )
        self._done, self._total = 0, total
        self._report_progress, finish = progress_of(self._progress)
        try:
            keep_module(self.module, self.transaction)
            self._load_custom()
            fills = self.fills if collective is None else self._fills_of_rank(collective)
            straight = [fill for fill in fills if fill.out is not None or fill.slot.tensor.is_meta]
            staged = [fill for fill in fills if fill.out is None and not fill.slot.tensor.is_meta]
            self._fill_straight(straight)
            for batch in _batches(staged):
                loaded = self._load({fill.name: fill.dtype for fill in batch}, {})
                for fill in batch:
                    self.transaction.keep(fill.slot.tensor)
                    own = fill.memory.local
                    copy_into(own, loaded.pop(fill.name).reshape(own.shape))
        finally:
            finish()
        for slot in self.slots:
            for place in slot.places:
                place.put(slot.tensor)
        if self._can_initialize and any(slot.tensor.is_meta for slot in self.slots):
            initialize_missing(self.module, self.slots)
        return self._report(began)

    def _fill_straight(self, fills: list[SlotFill]) -> None:
        # Tensors without memory yet go to the CPU, like those that have their memory there.
        places = [None if fill.out is None or fill.out.device.type == "cpu" else fill.out.device for fill in fills]
        for place in dict.fromkeys(places):
            batch = [fill for fill, own in zip(fills, places, strict=True) if own == place]
            outs = {fill.name: fill.out for fill in batch if fill.out is not None}
            for out in outs.values():
                self.transaction.keep(out)
            loaded = self._load({fill.name: fill.dtype for fill in batch}, outs)
            for fill in batch:
                if fill.out is None:
                    fill.slot.tensor = fill.slot.materialize(loaded[fill.name])
                else:
                    torch.autograd.graph.increment_version(local(fill.slot.tensor))

    def _load_custom(self) -> None:
        """Load the modules that load themselves."""
        if not self.slots.custom_loaders:
            return
        loaded = self._load({name: self._dtypes[name] for name in self.custom_loaded}, {})
        unexpected: set[str] = set()
        for prefix, owner in self.slots.custom_loaders.items():
            state = {name[len(prefix) :]: tensor for name, tensor in loaded.items() if name.startswith(prefix)}
            meta = any(tensor.is_meta for tensor in (*owner.parameters(), *owner.buffers()))
            keep_values(owner, self.transaction)
            try:
                result = owner.load_state_dict(state, strict=False, assign=meta)
            except RuntimeError as error:
                self.problems.append(f"'{escape(prefix or type(owner).__name__)}': {escape(str(error))}")
                continue
            self.missing += [prefix + name for name in result.missing_keys]
            unexpected.update(prefix + name for name in result.unexpected_keys)
        self.unexpected += unexpected
        self.custom_loaded = [name for name in self.custom_loaded if name not in unexpected]
        self.require_fit()

    def _load(self, dtypes: dict[str, DType | None], outs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return these weights by their new names."""
        if not dtypes:
            return {}
        report = None
        if (progress := self._report_progress) is not None:
            before = self._done

            def report(done: int, of: int) -> object:
                self._done = before + done
                return progress(self._done, max(self._total, before + of))

        request = self._request.only(dtypes)
        if self._cuts:
            cuts = zip(request.new_names, request.parts, strict=True)
            request = request._replace(parts=[self._cuts.get(name, part) for name, part in cuts])
        device = resolve_device(None, outs)
        loaded = load_resolved(
            request,
            self._how,
            convert=converter("torch"),
            places=None if device is None else [(device, len(request.names))],
            out=outs,
            progress=report,
        )
        return dict(zip(request.new_names, loaded, strict=True))

    def _report(self, began: float) -> LoadReport:
        loaded: list[str] = []
        tied: dict[str, str] = {}
        converted: dict[str, tuple[DType | str, DType | str]] = {}
        for fill in self.fills:
            names = [place.name for place in fill.slot.places]
            loaded += names
            tied |= {name: fill.name for name in names if name != fill.name}
            old: DType | str = fill.info.dtype if fill.info.encoding is None else fill.info.encoding.name
            new = _name(fill.slot.tensor.dtype)
            if old != new and (fill.info.encoding is None or fill.dtype is not None):
                converted[fill.name] = (old, new)
        size = sum(local(fill.slot.tensor).nbytes for fill in self.fills) + sum(
            self._infos[name].bytes for name in self.custom_loaded
        )
        return LoadReport(
            loaded=(*loaded, *self.custom_loaded),
            missing=tuple(self.missing),
            unexpected=tuple(self.unexpected),
            non_persistent=tuple(self.non_persistent),
            converted=converted,
            tied=tied,
            bytes=size,
            seconds=time.perf_counter() - began,
        )


def _shapes_of_parts(request: ResolvedRequest) -> dict[str, tuple[int, ...]]:
    """Return the shapes to be loaded, by new name: of whole weights, or of one rank's parts."""
    shapes: dict[str, tuple[int, ...]] = {}
    for new, info, dtype, part in zip(request.new_names, request.infos, request.dtypes, request.parts, strict=True):
        packed = info.encoding is not None and dtype is None
        shapes[new] = shape_of(part, info.shape if packed else info.logical_shape)
    return shapes


def _batches(fills: list[SlotFill]) -> Iterator[list[SlotFill]]:
    """Split the slots into batches of limited size, in the order of the files."""
    batch: list[SlotFill] = []
    size = 0
    for fill in sorted(fills, key=lambda fill: (fill.info.file, fill.info.offset)):
        if batch and size + fill.info.bytes > _STAGED_AT_A_TIME:
            yield batch
            batch, size = [], 0
        batch.append(fill)
        size += fill.info.bytes
    if batch:
        yield batch


def _name(dtype: torch.dtype) -> DType | str:
    try:
        return DType.from_torch(dtype)
    except ValueError:
        return str(dtype).removeprefix("torch.")
