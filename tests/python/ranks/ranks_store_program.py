"""Saves to an object store by several processes over gloo, for test_ranks_store.py; see ranks_program.py for the
arguments.
"""

import functools
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import Replicate, Shard
from torch.futures import Future

import max_weights
import ranks_program as ranks
from max_weights import load_weights, save_sharded
from max_weights._ranks import saving
from max_weights.errors import RankError
from max_weights.integrations import WeightsReader, WeightsWriter
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
        paths = _save(tensors, max_shard_size=size, read_back=size == "20MB")
        dist.barrier()
        if _stored() != content(expected[0].parent) or [path.name for path in paths] != [
            path.name for path in expected
        ]:
            wrong.append(size)
        dist.barrier()
    return {"wrong": wrong, "path": str(paths[0])}


def store_read_back() -> dict[str, Any]:
    """Change what is read back after an upload."""
    return {"failed": raised(lambda: _save(_large(), max_shard_size="20MB", read_back=True))}


class _Failing:
    """Replace a rank's write of the pieces of a round."""

    def __init__(self, *arguments: Any, instead: Any, **options: Any) -> None:
        self._save = max_weights._core.RankSave(*arguments, **options)
        self._instead = instead

    def __getattr__(self, name: str) -> Any:
        return getattr(self._save, name)

    def take(self, arrived: Any, round: int) -> int:
        taken: int = self._save.take(arrived, round)
        self._instead()
        return taken


def _dcp_save(tensors: dict[str, tuple[torch.Tensor, Any, Any]], **options: Any) -> None:
    own: dict[str, Any] = {name: placed(tensor, mesh, how) for name, (tensor, mesh, how) in tensors.items()}
    writer = _Noting(URL, remote=_remote(), **options)
    try:
        dcp.save(own, storage_writer=writer)
    except dcp.CheckpointException as error:
        if {rank: str(failed) for rank, (failed, _) in error.failures.items()} != dict.fromkeys(
            range(ranks.RANKS), str(writer.failed)
        ):
            raise
        raise error.failures[0][0] from None
    except RuntimeError:  # torch's own connection to a lost rank
        assert writer.failed is not None
        raise writer.failed from None


class _Noting(WeightsWriter):
    """It records why it could not write."""

    failed: RankError | None = None

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        try:
            return super().write_data(plan, planner)
        except RankError as error:
            self.failed = error
            raise


def store_dcp() -> dict[str, Any]:
    """The same by `dcp.save`; `dcp.load` of what it wrote."""
    wrong = []
    for size in ("700", "20MB"):
        tensors = every_placement() if size == "700" else every_placement() | _large()
        del tensors["strided_alone"]  # torch's planner makes overlapping boxes of them, which it refuses
        whole = {name: tensor for name, (tensor, _, _) in tensors.items()}
        expected = save_sharded(whole, FOLDER / f"dcp-{size}-{ranks.RANK}", max_shard_size=size, sync=False)
        _dcp_save(tensors, max_shard_size=size)
        if _stored() != content(expected[0].parent):
            wrong.append(size)
        own: dict[str, Any] = {}
        for name, (tensor, mesh, how) in tensors.items():
            own[name] = placed(torch.zeros_like(tensor), mesh, how)
        dcp.load(own, storage_reader=WeightsReader(load_weights(URL, remote=_remote())))
        for name, (tensor, mesh, how) in tensors.items():
            if not torch.equal(own[name].to_local().double(), placed(tensor, mesh, how).to_local().double()):
                wrong.append(f"{size} {name}")
        dist.barrier()
    return {"wrong": wrong, "files": len(expected)}


def _over(rank: int, instead: Any, save: Any = _save) -> dict[str, Any]:
    """A save over an older one, in which a rank runs this after it has sent something."""
    if not _stored():
        dist.barrier()
        save(_large(), max_shard_size="20MB")
    dist.barrier()
    before = _stored()
    dist.barrier()
    if rank == ranks.RANK:
        saving.RankSave = functools.partial(_Failing, instead=instead)  # type: ignore[misc, assignment]
    failed = raised(lambda: save(_large(1), max_shard_size="20MB", rank_timeout=20))
    saving.RankSave = max_weights._core.RankSave  # type: ignore[misc]
    return {"failed": failed, "same": _stored() == before, "files": len(before)}


def _again(found: dict[str, Any], save: Any = _save) -> dict[str, Any]:
    dist.barrier()
    save(_large(1), max_shard_size="20MB")
    whole = {name: tensor for name, (tensor, _, _) in _large(1).items()}
    expected = save_sharded(whole, FOLDER / f"again-{ranks.RANK}", max_shard_size="20MB", sync=False)
    return found | {"again": _stored() == content(expected[0].parent)}


def _fail() -> None:
    raise OSError(5, "Input/output error", "model.safetensors")


def store_raised() -> dict[str, Any]:
    return _again(_over(1, _fail))


def store_dcp_raised() -> dict[str, Any]:
    return _again(_over(1, _fail, _dcp_save), _dcp_save)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def store_killed_one() -> dict[str, Any]:
    return _over(2, _kill)


def store_killed_first() -> dict[str, Any]:
    return _over(0, _kill)


def store_dcp_killed_one() -> dict[str, Any]:
    return _over(1, _kill, _dcp_save)


def store_dcp_killed_first() -> dict[str, Any]:
    return _over(0, _kill, _dcp_save)


if __name__ == "__main__":
    ranks.main(sys.argv[4:], globals())
