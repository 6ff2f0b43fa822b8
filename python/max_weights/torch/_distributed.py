"""`load_into` on several ranks: what each has of the module's tensors, and how the bytes get there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from max_weights._buffer import Buffer
from max_weights._core import RankPlan, dequantize, shown
from max_weights._dtype import DType
from max_weights._group_options import require_spread
from max_weights._ranks.agreement import digest, record_of, require_alike
from max_weights._ranks.exchange import Target, exchange
from max_weights._ranks.placements import ABSENT, Mesh, Meshes, Split, splits_of, together
from max_weights.errors import ArgumentError
from max_weights.torch._slots import Slot, local

if TYPE_CHECKING:
    from max_weights._core import WeightInfo
    from max_weights._load_request import ResolvedRequest
    from max_weights._ranks.session import Session
    from max_weights._read_options import ReadOptions
    from max_weights.sharding._by_name import Cut

__all__ = ["Part", "Spread", "Together"]

Spread = Literal["auto", "rank", "node", "world"]


class Part:
    """What this rank has of one tensor of the module, and the memory that it goes to.

    Args:
        name: The new name of the weight.
        tensor: The parameter or buffer, with memory.
        dtype: What packed blocks become; `None` for what is not packed.
    """

    def __init__(self, name: str, tensor: torch.Tensor, dtype: DType | None) -> None:
        self.name = name
        self.tensor = tensor
        self.local = local(tensor).detach()
        self.dtype = dtype
        self.cut: Cut | None = None
        self.shape: list[int] = []
        """That of the part, as the file has it."""
        self.size = 0
        """Bytes in the file."""

    def give_memory(self, dtype: DType | str) -> torch.Tensor:
        """Return the tensor with memory, in place of one on the meta device."""
        old = self.tensor
        new = _with_memory(old, dtype.to_torch() if isinstance(dtype, DType) else getattr(torch, dtype))
        if isinstance(old, nn.Parameter):
            new = nn.Parameter(new, old.requires_grad and (new.is_floating_point() or new.is_complex()))
            vars(new).update(vars(old))
        self.tensor, self.local = new, local(new).detach()
        return new

    def destination(self) -> torch.Tensor | None:
        """Return the memory for the engine to write to; `None` if it has to be filled in another way."""
        return Slot(self.local).destination(tuple(self.shape)) if self.size else None

    def target(self, info: WeightInfo, device: torch.device) -> Target:
        """Return where its bytes go."""
        own = self.local
        if info.encoding is None and own.dtype == _dtype_of(info) and own.is_contiguous() and own.device == device:
            return Target(self.size, own.reshape(-1).view(torch.uint8))
        return Target(self.size, None, lambda raw: self._store(raw, info))

    def _store(self, raw: torch.Tensor, info: WeightInfo) -> None:
        """Convert what has arrived, and put it into the memory."""
        own = self.local
        straight = own.device.type == "cpu" and own.is_contiguous() and raw.device.type == "cpu"
        known = _known(own.dtype)
        with torch.no_grad():
            if info.encoding is not None:
                shape = list(own.shape) if own.ndim else [1]
                dtype = known if straight and known is not None else self.dtype or DType.float32
                out = own.view(shape) if straight and known is not None else None
                made = dequantize(Buffer.of(raw.cpu()), info.encoding, dtype, shape, out=out)
                if out is None:
                    own.copy_(made.torch().view(own.shape))
                return
            typed = raw.view(_dtype_of(info)).view(own.shape)
            if straight and known is not None and isinstance(info.dtype, DType) and info.dtype != known:
                Buffer.of(typed).astype(known, out=own)
            else:
                own.copy_(typed)


class Together:
    """The plan of all ranks for the tensors of a module.

    Args:
        session: The ranks.
        request: The weights that are loaded, by their names in the file.
        parts: What goes where, by new name.
        spread: Whose reading is shared.
    """

    def __init__(self, session: Session, request: ResolvedRequest, parts: Mapping[str, Part], spread: Spread) -> None:
        require_spread(spread)
        self._session = session
        self._request = request
        self.parts = parts
        self._parts = [parts[name] for name in request.new_names]
        meshes = Meshes(session.ranks)
        self._sharings: list[int | None] = []
        rows = []
        for part in self._parts:
            tensor = part.tensor
            splits: Sequence[Split] = ()
            number = None
            if isinstance(tensor, DTensor):
                try:
                    number = meshes.number(tensor)
                except ArgumentError as error:
                    raise ArgumentError(f"'{shown(part.name)}': {error}") from None
                splits = splits_of(tensor)
            self._sharings.append(number)
            rows.append((part.name, tuple(tensor.shape), str(tensor.dtype), number, splits))
        self._tables = meshes.tables
        self._spread = spread
        self._infos = list(request.infos)
        self.record = record_of(request.node, self._infos, placements=digest(rows), spread=spread, meshes=self._tables)

    def plan(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Make the plan, when all ranks have said what they see.

        Raises:
            RankError: one of them sees something else.
        """
        session = self._session
        require_alike(
            session,
            records,
            {
                "placements": "has other names, shapes, dtypes or placements of tensors in the module",
                "spread": "was called with another spread=",
            },
        )
        error: Exception | None = None
        hashed = b""
        try:
            meshes = together([record["meshes"] for record in records])
            self._plan = self._plan_of(meshes, session.machines)
            self._meshes = meshes
            hashed = self._plan.hash()
            self._take_parts()
        except Exception as failed:
            error = failed
        hashes = session.agree({"plan": hashed.hex()}, error)
        require_alike(
            session,
            [dict(record) | one for record, one in zip(records, hashes, strict=True)],
            {"plan": "has another plan"},
        )

    def _plan_of(self, meshes: Sequence[Mesh], nodes: Sequence[int]) -> RankPlan:
        request = self._request
        return RankPlan(request.node, request.names, self._sharings, meshes=meshes, part_of=[], nodes=nodes)

    def _take_parts(self) -> None:
        for part, info, own in zip(self._parts, self._infos, self._plan.parts(self._session.rank), strict=True):
            size, runs = own if own is not None else (0, [[(0, 0)]] * len(info.logical_shape))
            shape = [sum(stop - start for start, stop in of_axis) for of_axis in runs]
            part.size, part.shape = size, shape
            own_shape = list(part.local.shape)
            if math.prod(shape) != part.local.numel() or (len(own_shape) == len(shape) and own_shape != shape):
                raise ArgumentError(
                    f"'{shown(part.name)}': this rank has a part of the shape {own_shape}, and by the "
                    f"placements it is {shape}"
                )
            part.cut = [
                (axis, [(start, stop) for start, stop in of_axis] or [(0, 0)])
                for axis, (of_axis, whole) in enumerate(zip(runs, info.logical_shape, strict=True))
                if list(of_axis) != [(0, whole)]
            ] or None

    @property
    def reads_alone(self) -> bool:
        """Whether each rank reads its own parts, and nothing is exchanged."""
        if self._spread != "auto":
            return self._spread == "rank"
        # What local ranks read of local files is in the page cache for all of them.
        return not any("://" in str(info.file) for info in self._infos)

    def cuts(self) -> dict[str, Cut | None]:
        """Return the cut of each weight that this rank has something of."""
        return {part.name: part.cut for part in self._parts if part.size}

    def run(self, read: ReadOptions, progress: Callable[[int], object] | None) -> None:
        """Read and exchange all that the plan says."""
        device = self._session.device
        targets = [
            part.target(info, device) if part.size else None
            for part, info in zip(self._parts, self._infos, strict=True)
        ]
        if not self._is_of_machines:
            exchange(self._plan, self._request.node, targets, self._session, read, progress)
            return
        session, ranks = self._session.of_this_machine()
        places = {rank: place for place, rank in enumerate(ranks)}
        meshes: list[Mesh] = [
            ([places.get(rank, ABSENT) for rank in of_mesh], sizes, splits) for of_mesh, sizes, splits in self._meshes
        ]
        plan = self._plan_of(meshes, [0] * len(ranks))
        with session:
            exchange(plan, self._request.node, targets, session, read, progress)

    @property
    def _is_of_machines(self) -> bool:
        """Whether the ranks of each machine read for each other, and for no other machine's."""
        if len(set(self._session.machines)) == 1:
            return False
        return self._spread == "node" or (self._spread == "auto" and "nccl" not in self._session.backend)


def _with_memory(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if not isinstance(tensor, DTensor):
        return torch.empty(tensor.shape, dtype=dtype, device="cpu")
    kind = tensor.device_mesh.device_type
    device = torch.device(kind) if kind == "cpu" else torch.device(kind, torch.get_device_module(kind).current_device())
    part = torch.empty(tensor.to_local().shape, dtype=dtype, device=device)
    made: DTensor = DTensor.from_local(
        part, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )
    return made


def _known(dtype: torch.dtype) -> DType | None:
    try:
        return DType.from_torch(dtype)
    except ValueError:
        return None


def _dtype_of(info: WeightInfo) -> torch.dtype:
    if isinstance(info.dtype, DType):
        return info.dtype.to_torch()
    dtype: torch.dtype = getattr(torch, info.dtype)
    return dtype
