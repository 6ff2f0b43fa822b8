"""torch's distributed checkpoints: `torch.distributed.checkpoint` reads safetensors, GGUF and PyTorch files."""

from __future__ import annotations

import json
import math
import os
import re
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from max_weights._core import infos, shown
from max_weights.dtype import DType
from max_weights.errors import ArgumentError
from max_weights.lazy import lazy_state_dict
from max_weights.weights import load_weights

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.distributed.checkpoint.planner import ReadItem

    from max_weights._core import WeightInfo, WeightsNode

    Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

__all__ = ["WeightsReader"]


_OF_ONE_RANK = re.compile(r"shard-\d+-model-\d+-of-\d+\.safetensors")
"""The files that torch's own writer makes of the parts that each rank has, with `save_distributed=True`."""
_PARTS = "DCP_SHARDING_INFO"
"""The entry of their metadata that says where the parts begin: {name: {"saved_offsets": [...]}}, as JSON."""
_MOST = 1 << 62
"""No tensor has as many elements."""


class WeightsReader(StorageReader):
    """The storage reader of `torch.distributed.checkpoint.load(state_dict, storage_reader=WeightsReader(path))`.

    Every process reads the parts that its plan asks for, and nothing else: whole tensors straight into their
    destinations, and for others the byte runs of their slices. Packed weights of GGUF are decoded to float32.

    Args:
        path: Anything that `load_weights` accepts: a file, a folder, an index of shards, a list of files; or a folder
            in which every rank saved its own parts (`HuggingFaceStorageWriter(save_distributed=True)`).

    Raises:
        FormatError: a file is damaged.
        MissingFileError: there is no such file.
    """

    def __init__(self, path: Paths) -> None:
        self.reset()
        self._open(path)

    def _open(self, path: Paths) -> None:
        self._path = path
        # Parts of one tensor have its name in each file, so these are no one checkpoint.
        self._files: list[WeightsNode] = [load_weights(file) for file in _files_of_ranks(path)] or [load_weights(path)]
        self._infos: list[dict[str, WeightInfo]] = [{info.name: info for info in infos(file)} for file in self._files]
        self._places: dict[MetadataIndex, int] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin another load, of the checkpoint at this path if there is one."""
        self._load_id: str | None = None
        if checkpoint_id is not None:
            self._open(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether there is something at this path."""
        return os.path.exists(checkpoint_id)

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Return the dtypes and shapes of all weights; each is one chunk, or as many as ranks have saved.

        Raises:
            ArgumentError: a file does not say where its parts begin, or parts of a tensor do not fit together.
        """
        tensors: dict[str, TensorStorageMetadata] = {}
        places: dict[MetadataIndex, int] = {}
        for number, (file, listed) in enumerate(zip(self._files, self._infos, strict=True)):
            begins = _begins(file)
            for name, info in listed.items():
                shape = torch.Size(info.logical_shape)
                start = torch.Size(begins.get(name, [0] * len(shape)))
                end = torch.Size(offset + size for offset, size in zip(start, shape, strict=True))
                chunk = ChunkStorageMetadata(offsets=start, sizes=shape)
                about = tensors.get(name)
                if about is None:
                    tensors[name] = TensorStorageMetadata(TensorProperties(dtype=_dtype(info)), end, [chunk])
                elif about.properties.dtype != _dtype(info) or len(about.size) != len(shape):
                    raise ArgumentError(f"'{shown(name)}': its parts in several files have other dtypes or ranks")
                else:
                    about.size = torch.Size(map(max, about.size, end))
                    about.chunks.append(chunk)
                places[MetadataIndex(name, start)] = number
        self._places = places
        return Metadata(
            state_dict_metadata=tensors,  # type: ignore[arg-type]
            storage_data=places,
            storage_meta=StorageMeta(load_id=self._load_id),
        )

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: Any, **__: Any) -> None:
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
        if len(self._files) > 1 and not self._places:
            self.read_metadata()
        items = [(item, planner.resolve_tensor(item).detach()) for item in plan.items]
        of_files: dict[int, list[tuple[ReadItem, torch.Tensor]]] = {}
        for item, target in items:
            if target.shape != item.lengths:
                raise ArgumentError(
                    f"'{shown(item.storage_index.fqn)}': a part of shape {tuple(item.lengths)} goes to a tensor of "
                    f"shape {tuple(target.shape)}"
                )
            # Where every rank saved its parts, the plan names them by where they begin.
            file = 0 if len(self._files) == 1 else self._places[item.storage_index]
            of_files.setdefault(file, []).append((item, target))
        for file, wanted in of_files.items():
            self._read(self._files[file], self._infos[file], wanted)
        for item, target in items:
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @staticmethod
    def _read(file: WeightsNode, infos: dict[str, WeightInfo], items: list[tuple[ReadItem, torch.Tensor]]) -> None:
        """Fill tensors from one checkpoint."""
        whole: dict[str, torch.Tensor] = {}
        parts = []
        for item, target in items:
            name = item.storage_index.fqn
            if name not in whole and _goes_straight(infos[name], item.lengths, target):
                whole[name] = target
            else:
                parts.append((item, target))
        if whole:
            file.load(whole.__contains__, framework="torch", out=whole)
        if parts:
            wanted = {item.storage_index.fqn for item, _ in parts}
            packed = {name: DType.float32 for name in wanted if infos[name].encoding is not None}
            lazy = lazy_state_dict(file, wanted.__contains__, dtype=packed or None)
            for item, target in parts:
                index = tuple(
                    slice(offset, offset + length)
                    for offset, length in zip(item.storage_offsets, item.lengths, strict=True)
                )
                target.copy_(lazy[item.storage_index.fqn][index if index else ...])


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


def _files_of_ranks(path: Paths) -> list[str]:
    """Return the files of a folder in which every rank saved its own parts; nothing for any other path."""
    if not isinstance(path, str | os.PathLike) or not os.path.isdir(path):
        return []
    names = sorted(name for name in os.listdir(path) if _OF_ONE_RANK.fullmatch(name))
    return [os.path.join(path, name) for name in names]


def _begins(file: WeightsNode) -> dict[str, list[int]]:
    """Return where the parts in a file begin in their tensors, by name; nothing where they are whole."""
    said = file.metadata.get(_PARTS)
    if said is None:
        return {}
    try:
        begins = {name: part["saved_offsets"] for name, part in json.loads(said).items()}
        for info in infos(file):
            begin = begins[info.name]
            if len(begin) != len(info.logical_shape) or not all(type(at) is int and 0 <= at < _MOST for at in begin):
                raise ValueError(f"'{shown(info.name)}' begins at {shown(str(begin))}")
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(
            f"the metadata {_PARTS} of a file do not say where its parts of tensors begin: {shown(str(error))}"
        ) from error
    return begins


def _dtype(info: WeightInfo) -> torch.dtype:
    if info.encoding is not None:
        return torch.float32
    if isinstance(info.dtype, DType):
        return info.dtype.to_torch()
    found: torch.dtype = getattr(torch, info.dtype)
    return found
