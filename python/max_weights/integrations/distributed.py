"""torch's distributed checkpoints: `torch.distributed.checkpoint` reads safetensors, GGUF and PyTorch files, and writes
safetensors files.
"""

from __future__ import annotations

import contextlib
import math
import os
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

from max_weights._core import infos, printable, shown
from max_weights._lazy import lazy_state_dict
from max_weights._ranks.boxes import Box, read_boxes, tensors_of
from max_weights._ranks.saving import ROUND, Files
from max_weights._saving import buffer_of, metadata_of
from max_weights._sizes import bytes_of
from max_weights._weights import load_weights
from max_weights.dtype import DType
from max_weights.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch.distributed import ProcessGroup
    from torch.distributed.checkpoint.planner import ReadItem, WriteItem

    from max_weights._buffer import Buffer
    from max_weights._core import RankSave, WeightInfo, WeightsNode

    Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

__all__ = ["WeightsReader", "WeightsWriter"]


class WeightsReader(StorageReader):
    """The storage reader of `torch.distributed.checkpoint.load(state_dict, storage_reader=WeightsReader(path))`.

    Every process reads the parts that its plan asks for, and nothing else: whole tensors straight into their
    destinations, and for others the byte runs of their slices. Packed weights of GGUF are decoded to float32.

    Args:
        path: Anything that `load_weights` accepts: a file, a folder, an index of shards, a list of files; also a folder
            that torch wrote, in which every rank saved its own parts.
        group: The ranks that load, to read for each other: each byte is read by one of them, and sent to those that
            need it. Without it, each reads what it needs; for files on a disk that is the faster way.
        timeout: For how many seconds the ranks of `group` wait for one that does not answer.

    Raises:
        RankError: on all ranks of `group`, what went wrong on one of them.
        FormatError: a file is damaged.
        MissingFileError: there is no such file.
    """

    def __init__(self, path: Paths, *, group: ProcessGroup | None = None, timeout: float = 600.0) -> None:
        self._group, self._timeout = group, timeout
        self.reset()
        self._open(path)

    def _open(self, path: Paths) -> None:
        self._path = path
        self._weights: WeightsNode = load_weights(path)
        self._infos: dict[str, WeightInfo] = {info.name: info for info in infos(self._weights)}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another load, of the checkpoint at this path if there is one."""
        self._load_id: str | None = None
        if checkpoint_id is not None:
            self._open(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether there is something at this path."""
        return os.path.exists(checkpoint_id)

    def read_metadata(self, *_: object, **__: object) -> Metadata:
        """Return the dtypes and shapes of all weights; each is one chunk, however many files have its parts."""
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
        """Read what the plan asks for; all of it is there when this returns.

        Raises:
            ArgumentError: a destination has another shape than the data for it.
        """
        items = [(item, planner.resolve_tensor(item).detach()) for item in plan.items]
        for item, target in items:
            if target.shape != item.lengths:
                raise ArgumentError(
                    f"'{shown(item.storage_index.fqn)}': a part of shape {tuple(item.lengths)} goes to a tensor of "
                    f"shape {tuple(target.shape)}"
                )
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
        """Fill tensors with all ranks of a group, each of which has items of its own."""
        boxes: dict[str, list[tuple[Box, torch.Tensor]]] = {}
        for item, target in items:
            box = list(zip(item.storage_offsets, item.lengths, strict=True))
            boxes.setdefault(item.storage_index.fqn, []).append((box, target))
        left = read_boxes(self._weights, self._infos, boxes, group, self._timeout)
        self._read([(item, target) for item, target in items if item.storage_index.fqn in left])

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
class _Begun:
    """What the coordinator tells all ranks: the tensors, and the unfinished files that they write to."""

    files: Files
    tensors: list[tuple[str, str, list[int]]]
    unfinished: Sequence[str] = ()

    def save(self) -> RankSave:
        return self.files.save(self.tensors, [None] * len(self.tensors), [], 1)


class WeightsWriter(StorageWriter):
    """The storage writer of `torch.distributed.checkpoint.save(state_dict, storage_writer=WeightsWriter(folder))`.

    Every process writes the parts that its plan says straight to their places in the final safetensors files, with the
    index of Hugging Face if they are several: nothing is gathered, and nothing is put together later. The files are,
    byte for byte, those that `save_sharded` writes of the whole tensors on one process. They take their places when all
    processes have written; what was in the folder before is as it was until then, and after an error.

    Args:
        folder: Where the files go: all processes have to see it under this path.
        metadata: As for `save_sharded`.
        max_shard_size: As for `save_sharded`.
        name: As for `save_sharded`.
        alignment: As for `save_sharded`.
        sync: As for `save_sharded`.

    Raises:
        ArgumentError: the folder is a URL, or the size is not valid (a ValueError).
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        metadata: Mapping[str, str] | None = None,
        max_shard_size: int | str = "5GB",
        name: str = "model",
        alignment: int = 64,
        sync: bool = True,
    ) -> None:
        size = bytes_of(max_shard_size)
        self._files = Files(_folder(folder), metadata_of(metadata), size, name, alignment, sync)
        self._rank = 0
        self._save: RankSave | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another save, to this folder if there is one; files that one before has not finished are removed."""
        self._discard()
        if checkpoint_id is not None:
            self._files = replace(self._files, folder=_folder(checkpoint_id))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether this may be a folder."""
        return "://" not in os.fspath(checkpoint_id)

    def set_up_storage_writer(self, *_: object, **options: object) -> None:
        """Take the rank of this process."""
        rank = options.get("rank", 0)
        self._rank = rank if isinstance(rank, int) else 0

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan unchanged.

        Raises:
            ArgumentError: something of it is not a tensor (a ValueError).
        """
        for item in plan.items:
            if item.tensor_data is None:
                raise ArgumentError(
                    f"'{shown(item.index.fqn)}' is not a tensor, and safetensors files have tensors alone: save it in "
                    "another way"
                )
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Work out where everything lies, make the unfinished files, and tell all ranks.

        Raises:
            ArgumentError: ranks have different tensors of one name, or no rank has some part (a ValueError).
        """
        begun = _Begun(self._files, tensors_of(item for plan in plans for item in plan.items))
        self._save = begun.save()
        begun = replace(begun, unfinished=self._save.begin())
        return [replace(plan, storage_data=begun) for plan in plans]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write what the plan says; all of it is written when this returns."""
        begun = plan.storage_data
        assert isinstance(begun, _Begun)
        save = self._save or begun.save()
        numbers = {name: number for number, (name, _, _) in enumerate(begun.tensors)}
        try:
            boxes = [_box(numbers[item.index.fqn], item, planner) for item in plan.items]
            save.open_boxes(self._rank, begun.unfinished, boxes)
            while save.write(ROUND):
                pass
            save.flush()
        except BaseException:
            self._save = self._save or save
            self._discard()
            for path in begun.unfinished:  # the coordinator does not hear of this before the next save
                with contextlib.suppress(OSError):
                    os.remove(path)
            raise
        done: Future[list[WriteResult]] = Future()
        rows = zip(plan.items, boxes, strict=True)
        done.set_result([WriteResult(item.index, buffer.nbytes, None) for item, (_, _, buffer) in rows])
        return done

    def finish(self, *_: object, **__: object) -> None:
        """Put the files into their places."""
        assert self._save is not None
        save, self._save = self._save, None
        save.finish()

    def _discard(self) -> None:
        save, self._save = self._save, None
        if save is not None:
            save.discard()


def _box(number: int, item: WriteItem, planner: SavePlanner) -> tuple[int, list[tuple[int, int]], Buffer]:
    """Return the number of a tensor, which part of it a rank writes, and what that is."""
    assert item.tensor_data is not None
    chunk = item.tensor_data.chunk
    data = planner.resolve_data(item)
    if not isinstance(data, torch.Tensor) or data.shape != chunk.sizes:
        raise ArgumentError(f"tensor '{shown(item.index.fqn)}': its planner gave no part of the shape {chunk.sizes}")
    ranges = [(start, start + size) for start, size in zip(chunk.offsets, chunk.sizes, strict=True)]
    return number, ranges, buffer_of(item.index.fqn, data.detach())


def _folder(path: str | os.PathLike[str]) -> str:
    """Return a folder as text; a URL is refused."""
    folder = os.fsdecode(path)
    if "://" in folder:
        raise ArgumentError(
            f"'{printable(folder)}': dcp.save writes to a folder that all ranks see, not to a URL: "
            "save_sharded(state, url, group=) writes there"
        )
    return folder


def _goes_straight(info: WeightInfo, lengths: torch.Size, target: torch.Tensor) -> bool:
    """Whether the engine can write a whole weight to its destination."""
    return (
        info.encoding is None
        and isinstance(info.dtype, DType)
        and target.dtype == _dtype(info)
        and target.device.type == "cpu"
        and target.is_contiguous()
        and math.prod(lengths) == math.prod(info.shape)
    )


def _dtype(info: WeightInfo) -> torch.dtype:
    if info.encoding is not None:
        return torch.float32
    if isinstance(info.dtype, DType):
        return info.dtype.to_torch()
    dtype: torch.dtype = getattr(torch, info.dtype)
    return dtype
