"""torch's distributed checkpoints: `torch.distributed.checkpoint` reads safetensors, GGUF and PyTorch files, and writes
safetensors files.
"""

from __future__ import annotations

import math
import os
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from max_weights._checkpoints import tree_of
from max_weights._core import escape, infos
from max_weights._dtype import DType
from max_weights._group_options import refuse_group_options, require_timeout
from max_weights._lazy import lazy_state_dict
from max_weights._ranks.boxes import read_boxes, tensors_of
from max_weights._ranks.saving import Files, save_boxes
from max_weights._ranks.session import Members, Session
from max_weights._saved_tensors import buffer_of, metadata_of
from max_weights._sizes import bytes_of
from max_weights._transaction import Box, Destination, Transaction, torch_dtype
from max_weights._typing import known
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch.distributed import ProcessGroup
    from torch.distributed.checkpoint.planner import ReadItem, WriteItem

    from max_weights._buffer import Buffer
    from max_weights._checkpoints import Checkpoint
    from max_weights._core import WeightInfo, WeightsNode
    from max_weights._remote import Remote

__all__ = ["WeightsReader", "WeightsWriter"]


_NO_CHECKPOINT = "WeightsReader has no checkpoint: give it one, or checkpoint_id= to dcp.load"


class WeightsReader(StorageReader):
    """The storage reader of `torch.distributed.checkpoint.load(state_dict, storage_reader=WeightsReader(path))`.

    Every process reads only the parts in its plan: whole tensors straight into their destinations, and for others the
    byte runs of their slices. Packed weights of GGUF are decoded to float32.

    Args:
        checkpoint: An open tree, or anything that `load_weights` opens: a file, a folder, an index of shards, a list of
            files, a URL; also a folder that torch wrote, in which every rank saved its parts. Default: the
            `checkpoint_id` that is given to `load`.
        group: The ranks that load, to read for each other: each byte is read by one of them, and sent to those that
            need it. Without it, each reads what it needs, which is faster for files on a local disk.
        rank_timeout: For how many seconds the ranks of `group` wait for one that does not answer.

    Raises:
        RankError: on all ranks of `group`, the error of one of them.
        FormatError: a file is damaged.
        MissingFileError: the checkpoint does not exist.
    """

    def __init__(
        self,
        checkpoint: Checkpoint | None = None,
        *,
        group: ProcessGroup | None = None,
        rank_timeout: float = 600.0,
    ) -> None:
        if group is None:
            refuse_group_options("WeightsReader", rank_timeout=rank_timeout)
        self._group, self._rank_timeout = group, rank_timeout
        self._load_id: str | None = None
        self._opened: WeightsNode | None = None
        self._infos: dict[str, WeightInfo] = {}
        if checkpoint is not None:
            self._open(checkpoint)

    @property
    def _weights(self) -> WeightsNode:
        if self._opened is None:
            raise ArgumentError(_NO_CHECKPOINT, rule="argument.plan")
        return self._opened

    def _open(self, checkpoint: Checkpoint) -> None:
        self._opened = tree_of(checkpoint, "WeightsReader")
        self._infos = {info.name: info for info in infos(self._opened)}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another load, of the checkpoint at this path if one is given."""
        self._load_id = None
        if checkpoint_id is not None:
            self._open(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether this path exists."""
        return os.path.exists(checkpoint_id)

    def read_metadata(self, *_: object, **__: object) -> Metadata:
        """Return the dtypes and shapes of all weights; each is one chunk, however many files have its parts."""
        if self._opened is None:
            raise ArgumentError(_NO_CHECKPOINT, rule="argument.plan")
        tensors: dict[str, TensorStorageMetadata] = {}
        places: dict[MetadataIndex, None] = {}
        for name, info in self._infos.items():
            shape = torch.Size(info.logical_shape)
            start = torch.Size([0] * len(shape))
            chunk = ChunkStorageMetadata(offsets=start, sizes=shape)
            tensors[name] = TensorStorageMetadata(TensorProperties(dtype=_dtype(info)), shape, [chunk])
            places[MetadataIndex(name, start)] = None
        return Metadata(
            state_dict_metadata=tensors,  # type: ignore[arg-type]
            storage_data=places,
            storage_meta=StorageMeta(load_id=self._load_id),
        )

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: object, **__: object) -> None:
        """Do nothing: the files are open already."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans unchanged."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the parts in the plan; all are in memory when this returns.

        Raises:
            ArgumentError: a destination has another shape than its data.
        """
        items = [(item, planner.resolve_tensor(item).detach()) for item in plan.items]
        for item, target in items:
            if target.shape != item.lengths:
                raise ArgumentError(
                    f"'{escape(item.storage_index.fqn)}': a part of shape {tuple(item.lengths)} goes to a tensor of "
                    f"shape {tuple(target.shape)}",
                    rule="argument.shape",
                )
        with Transaction() as transaction:
            for _, target in items:
                transaction.keep(target)
            if self._group is None:
                self._read(items)
            else:
                self._read_together(items, self._group)
            for item, target in items:
                planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read_together(self, items: list[tuple[ReadItem, torch.Tensor]], group: ProcessGroup) -> None:
        """Fill tensors with all ranks of a group, each of which has separate items."""
        boxes: dict[str, list[tuple[Box, torch.Tensor]]] = {}
        for item, target in items:
            box = Box.at(item.storage_offsets, item.lengths)
            boxes.setdefault(item.storage_index.fqn, []).append((box, target))
        with Session(group, self._rank_timeout, "WeightsReader") as session:
            session.note = "the tensors are unchanged"

            def read() -> dict[str, object]:
                left = read_boxes(session, self._weights, self._infos, boxes)
                self._read([(item, target) for item, target in items if item.storage_index.fqn in left])
                return {}

            session.agreed(read)

    def _read(self, items: list[tuple[ReadItem, torch.Tensor]]) -> None:
        """Fill tensors."""
        file, about = self._weights, self._infos
        whole: dict[str, torch.Tensor] = {}
        parts = []
        for item, target in items:
            name = item.storage_index.fqn
            if name not in whole and _goes_straight(about[name], item.lengths, target):
                whole[name] = target
            else:
                parts.append((item, target))
        if whole:
            file.load(whole.__contains__, framework="torch", out=whole)
        if parts:
            names = {item.storage_index.fqn for item, _ in parts}
            packed = {name: DType.float32 for name in names if about[name].encoding is not None}
            lazy = lazy_state_dict(file, names.__contains__, dtype=packed or None)
            for item, target in parts:
                index = tuple(
                    slice(offset, offset + length)
                    for offset, length in zip(item.storage_offsets, item.lengths, strict=True)
                )
                target.copy_(lazy[item.storage_index.fqn][index if index else ...])


@dataclass(frozen=True)
class _ToSave:
    """The coordinator's message to all ranks: the members, and the tensors of which they have boxes."""

    members: Members
    tensors: list[tuple[str, str, list[int]]]


class WeightsWriter(StorageWriter):
    """The storage writer of `torch.distributed.checkpoint.save(state_dict, storage_writer=WeightsWriter(folder))`.

    The files equal those of `save_sharded` of the whole tensors on one process, byte for byte. As with
    `save_sharded(group=)`, every process writes the parts in its plan straight to their places in the final safetensors
    files, or sends its share of the parts of uploads. Several files get the index of Hugging Face. Files take their
    places when all processes have written; until then, and after an error, the folder is unchanged. Errors are
    collective.

    Args:
        folder: The folder to write: all processes have to see it under this path. Or a URL, as for `save_sharded`.
            Default: the `checkpoint_id` that is given to `save`.
        metadata: As for `save_sharded`.
        max_shard_size: As for `save_sharded`.
        name: As for `save_sharded`.
        alignment: As for `save_sharded`.
        sync: As for `save_sharded`.
        remote: As for `save_sharded`.
        rank_timeout: As for `save_sharded`.

    Raises:
        ArgumentError: the size is not valid (a ValueError).
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        metadata: Mapping[str, str] | None = None,
        max_shard_size: int | str = "5GB",
        name: str = "model",
        alignment: int = 64,
        sync: bool = True,
        remote: Remote | None = None,
        rank_timeout: float = 600.0,
    ) -> None:
        size, store = bytes_of(max_shard_size), None if remote is None else remote._store
        to = "" if folder is None else os.fsdecode(folder)
        self._files = Files(to, metadata_of(metadata), size, name, alignment, sync, store)
        require_timeout(rank_timeout)
        self._rank_timeout = rank_timeout

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another save, to this folder or URL if one is given."""
        if checkpoint_id is not None:
            self._files = replace(self._files, folder=os.fsdecode(checkpoint_id))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether this can be a folder, as every path and every URL can."""
        return bool(os.fspath(checkpoint_id))

    def set_up_storage_writer(self, *_: object, **__: object) -> None:
        """Check that a folder is given; the ranks meet when they write.

        Raises:
            ArgumentError: no folder is given (a ValueError).
        """
        if not self._files.folder:
            raise ArgumentError(
                "WeightsWriter has no folder: give it one, or checkpoint_id= to dcp.save", rule="argument.plan"
            )

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan, with the rank of this process.

        Raises:
            ArgumentError: an item is not a tensor, or the plan omits unchanged tensors (a ValueError).
        """
        if not plan.usable:
            raise ArgumentError(
                "the planner omits what it has planned before: WeightsWriter needs whole plans", rule="argument.plan"
            )
        for item in plan.items:
            if item.tensor_data is None:
                raise ArgumentError(
                    f"'{escape(item.index.fqn)}' is not a tensor, and safetensors files have only tensors: save it in "
                    "another way",
                    rule="argument.type",
                )
        return replace(plan, storage_data=Members.own_rank())

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Combine the tensors of all ranks, and tell all ranks.

        Raises:
            ArgumentError: ranks have different tensors under one name, or no rank has some part (a ValueError).
        """
        # A new name for each save, so that a rank that missed one cannot confuse the next.
        members = Members([plan.storage_data for plan in plans], f"dcp/{uuid.uuid4()}")
        to_save = _ToSave(members, tensors_of(item for plan in plans for item in plan.items))
        return [replace(plan, storage_data=to_save) for plan in plans]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write the parts in the plan, together with all ranks; the files are in their places when this returns."""
        to_save = plan.storage_data
        if not isinstance(to_save, _ToSave):
            raise ArgumentError(
                "the plan was not made by this writer: call prepare_global_plan first", rule="argument.plan"
            )
        numbers = {name: number for number, (name, _, _) in enumerate(to_save.tensors)}
        sizes: list[int] = []

        def boxes() -> Iterator[tuple[int, list[tuple[int, int]], Buffer]]:
            for item in plan.items:
                box = _box(numbers[item.index.fqn], item, planner)
                sizes.append(box[2].nbytes)
                yield box

        save_boxes(to_save.members, to_save.tensors, boxes, self._files, self._rank_timeout)
        done: Future[list[WriteResult]] = Future()
        rows = zip(plan.items, sizes, strict=True)
        done.set_result([WriteResult(item.index, size, None) for item, size in rows])
        return done

    def finish(self, *_: object, **__: object) -> None:
        """Do nothing: the files are in their places already."""


def _box(number: int, item: WriteItem, planner: SavePlanner) -> tuple[int, list[tuple[int, int]], Buffer]:
    """Return the number of a tensor, the box of it that a rank writes, and the elements."""
    chunk = known(item.tensor_data).chunk
    data = planner.resolve_data(item)
    if not isinstance(data, torch.Tensor) or data.shape != chunk.sizes:
        raise ArgumentError(
            f"tensor '{escape(item.index.fqn)}': its planner gave no part of the shape {chunk.sizes}",
            rule="argument.shape",
        )
    ranges = [(start, start + size) for start, size in zip(chunk.offsets, chunk.sizes, strict=True)]
    return number, ranges, buffer_of(item.index.fqn, data.detach())


def _goes_straight(info: WeightInfo, lengths: torch.Size, target: torch.Tensor) -> bool:
    """Whether the engine can write a whole weight to its destination."""
    is_whole = isinstance(info.dtype, DType) and math.prod(lengths) == math.prod(info.shape)
    return is_whole and Destination(target).raw(info, torch.device("cpu")) is not None


def _dtype(info: WeightInfo) -> torch.dtype:
    return torch.float32 if info.encoding is not None else torch_dtype(info)
