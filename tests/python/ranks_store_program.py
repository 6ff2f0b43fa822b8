"""Saves to an object store by several processes over gloo, for test_ranks_store.py; run as ranks_program.py is."""

import functools
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard

import max_weights
import ranks_program as ranks
from max_weights import save_sharded
from max_weights._ranks import saving
from max_weights.remote import Remote
from ranks_program import FOLDER, every_placement, line, numbers, placed, raised
from ranks_saving_program import content

URL = "s3://bucket/saved"


def _remote() -> Remote:
    return Remote(endpoint=os.environ["RANKS_STORE"], credentials={"key_id": "AKIDEXAMPLE", "secret": "secret"})


def _stored() -> dict[str, bytes]:
    return content(Path(os.environ["RANKS_BUCKET"]) / "bucket" / "saved")


def _large(more: float = 0) -> dict[str, tuple[torch.Tensor, Any, Any]]:
    """Rows, columns and whole tensors, of several parts of an upload."""
    return {
        "columns": (numbers(3000, 1500) + more, line(), [Shard(1)]),
        "rows": (numbers(3001, 1000) + more, line(), [Shard(0)]),
        "whole": (numbers(1100, 1024) + more, line(), [Replicate()]),
        "norm": (numbers(77) + more, line(), [Replicate()]),
    }


def _save(tensors: dict[str, tuple[torch.Tensor, Any, Any]], **options: Any) -> list[Path]:
    own = {name: placed(tensor, mesh, how) for name, (tensor, mesh, how) in tensors.items()}
    return save_sharded(own, URL, group=dist.group.WORLD, remote=_remote(), **options)


def store() -> dict[str, Any]:
    """Every placement, into files of one part and of several, with an index and without, over those of older saves."""
    wrong = []
    for size in ("700", "20MB", "5GB"):
        tensors = every_placement() if size == "700" else every_placement() | _large()
        expected = save_sharded(
            {name: tensor for name, (tensor, _, _) in tensors.items()},
            FOLDER / f"alone-{size}-{ranks.RANK}",
            max_shard_size=size,
            sync=False,
        )
        paths = _save(tensors, max_shard_size=size)
        dist.barrier()
        if _stored() != content(expected[0].parent) or [path.name for path in paths] != [
            path.name for path in expected
        ]:
            wrong.append(size)
        dist.barrier()
    return {"wrong": wrong, "path": str(paths[0])}


class _Failing:
    """Where a rank has pieces of a round to write, it does something else."""

    def __init__(self, *arguments: Any, instead: Any, **options: Any) -> None:
        self._save = max_weights._core.RankSave(*arguments, **options)
        self._instead = instead

    def __getattr__(self, name: str) -> Any:
        return getattr(self._save, name)

    def take(self, arrived: Any, round: int) -> int:
        taken: int = self._save.take(arrived, round)
        self._instead()
        return taken


def _over(rank: int, instead: Any) -> dict[str, Any]:
    """A save over an older one, in which a rank does this when it has sent something."""
    if not _stored():
        dist.barrier()
        _save(_large(), max_shard_size="20MB")
    dist.barrier()
    before = _stored()
    dist.barrier()
    if rank == ranks.RANK:
        saving.RankSave = functools.partial(_Failing, instead=instead)  # type: ignore[misc, assignment]
    failed = raised(lambda: _save(_large(1), max_shard_size="20MB", timeout=20))
    saving.RankSave = max_weights._core.RankSave  # type: ignore[misc]
    return {"failed": failed, "same": _stored() == before, "files": len(before)}


def _fail() -> None:
    raise OSError(5, "Input/output error", "model.safetensors")


def store_raised() -> dict[str, Any]:
    return _over(1, _fail)


def store_killed_one() -> dict[str, Any]:
    return _over(2, lambda: os.kill(os.getpid(), signal.SIGKILL))


def store_killed_first() -> dict[str, Any]:
    return _over(0, lambda: os.kill(os.getpid(), signal.SIGKILL))


if __name__ == "__main__":
    ranks.main(sys.argv[4:], globals())
