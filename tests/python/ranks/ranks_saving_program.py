"""Saves and `dcp.load` by several processes over gloo, for test_ranks_saving.py; see ranks_program.py for the
arguments.
"""

import contextlib
import functools
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import max_weights
import ranks_program as ranks
from max_weights import save_sharded
from max_weights._ranks import boxes, saving
from max_weights.integrations import WeightsReader, WeightsWriter
from ranks_program import FOLDER, every_placement, line, model, numbers, placed, raised

SIZES = ("700", "5GB")


def content(folder: Path) -> dict[str, bytes]:
    """The files of a folder, hidden ones as well."""
    found = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        with contextlib.suppress(FileNotFoundError):  # it was an unfinished one
            found[path.name] = path.read_bytes()
    return found


def alone(name: str, tensors: dict[str, torch.Tensor], size: str) -> dict[str, bytes]:
    """The files of a save by one process."""
    folder = FOLDER / f"{name}-{ranks.RANK}"
    save_sharded(tensors, folder, max_shard_size=size, sync=False)
    return content(folder)


def placements() -> dict[str, Any]:
    """Every placement, into one file and into many, from memory that is contiguous or not."""
    saving.ROUND = 1000
    every = every_placement()
    every["large"] = (numbers(1024, 700), line(), [Replicate()])
    every["large_half"] = (numbers(1200, 512), ranks.grid(), [Shard(1), Replicate()])
    whole = {name: tensor for name, (tensor, _, _) in every.items()} | {"plain": numbers(3, 5)}
    wrong, files = [], 0
    for size in SIZES:
        expected = alone("placements", whole, size)
        for strided in (False, True):
            own: dict[str, torch.Tensor] = {"plain": numbers(3, 5)}
            for name, (tensor, mesh, how) in every.items():
                own[name] = placed(tensor, mesh, how)
                local = own[name].to_local()  # type: ignore[attr-defined]
                if strided and local.ndim == 2 and local.numel():
                    local, stride = local.t().contiguous().t(), tensor.stride()
                    own[name] = DTensor.from_local(local, mesh, how, run_check=False, shape=tensor.shape, stride=stride)
            folder = FOLDER / f"together-{size}-{strided}"
            paths = save_sharded(
                own, folder, max_shard_size=size, group=dist.group.WORLD, sync=strided, read_back=strided
            )
            found = content(folder)
            files = max(files, len(found))
            if found != expected or sorted(path.name for path in paths) != sorted(expected):
                wrong.append(f"{size} {strided}: {[name for name in expected if found.get(name) != expected[name]]}")
            dist.barrier()
    return {"wrong": wrong, "files": files}


def modules() -> dict[str, Any]:
    """Modules, over the files of an older save."""
    whole = model()
    wrong = []
    folder = FOLDER / "modules"
    for distribute in (ranks.fsdp2, ranks.tensor_parallel, ranks.tensor_parallel_and_fsdp, ranks.hsdp, ranks.plain):
        for size in SIZES:
            expected = alone("modules", whole.state_dict(), size)
            save_sharded(distribute(model()), folder, max_shard_size=size, group=dist.group.WORLD)
            if content(folder) != expected:
                wrong.append(f"{distribute.__name__} {size}")
            dist.barrier()
    own = ranks.fsdp2(model()).state_dict()
    save_sharded(own, folder)  # the default for distributed tensors is all ranks
    if content(folder) != alone("modules", whole.state_dict(), "5GB"):
        wrong.append("by default")
    return {"wrong": wrong}


def _half() -> list[WriteItem]:
    """The plan of a planner that omits half of a tensor."""
    chunk = ChunkStorageMetadata(torch.Size([0, 0]), torch.Size([2, 4]))
    data = TensorWriteData(chunk, TensorProperties(), torch.Size([4, 4]))
    return [WriteItem(MetadataIndex("a"), WriteItemType.SHARD, tensor_data=data)]


def refused() -> dict[str, Any]:
    """Tensors that are not saved, or differ between ranks."""
    odd = ranks.RANK == 2
    folder = FOLDER / "refused"
    partial = DTensor.from_local(torch.zeros(4, 4), line(), [Partial()], run_check=False)

    def save(tensors: dict[str, torch.Tensor], to: Any = folder, **options: Any) -> dict[str, Any]:
        return raised(lambda: save_sharded(tensors, to, group=dist.group.WORLD, **options))

    good = {"a": numbers(4, 4)}
    found = {
        "partial": save({"a": partial}),
        "url": save(good, "https://example.org/model"),
        "writer_part": raised(lambda: WeightsWriter(folder).prepare_global_plan([SavePlan(_half())])),
        "tied": save(good, tied="alias"),
        "if_exists": save(good, if_exists="fail"),
        "names": save({"b" if odd else "a": numbers(4, 4)}),
        "shapes": save({"a": numbers(4, 5 if odd else 4)}),
        "placements": save({"a": placed(numbers(4, 4), line(), [Shard(int(odd))])}),
        "folder": save(good, FOLDER / "other" if odd else folder),
        "size": save(good, max_shard_size="1GB" if odd else "2GB"),
        "is_file": save(good, Path(__file__)),
        **_differing(save),
        "alone": raised(lambda: max_weights.save_file({"a": placed(numbers(4, 4), line(), [Shard(0)])}, folder)),
    }
    dist.barrier()
    return found | {"left": sorted(content(folder))}


def _differing(save: Callable[[dict[str, torch.Tensor]], dict[str, Any]]) -> dict[str, Any]:
    """Replicas that differ between ranks, each of which would write a different range."""
    grid, last = ranks.grid(), ranks.RANK == 3

    def off(tensor: torch.Tensor, wrong: bool) -> torch.Tensor:
        own = tensor.clone()
        own[-1, -1] += wrong
        return own

    def dtensor(mesh: Any, *how: Any, wrong: bool) -> DTensor:
        whole = placed(numbers(8, 6), mesh, how)
        local = off(whole.to_local(), wrong)
        return DTensor.from_local(local, mesh, how, run_check=False, shape=whole.shape, stride=whole.stride())

    plain = {"a": numbers(4, 4), "c": numbers(3, 5)}
    return {
        "plain_differs": save({**plain, "b": off(numbers(4, 4), ranks.RANK == 2)}),
        "strided_differs": save({**plain, "b": off(numbers(4, 4), ranks.RANK in (1, 3)).t()}),
        "replica_differs": save({**plain, "b": dtensor(line(), Replicate(), wrong=last)}),
        "hsdp_differs": save({**plain, "b": dtensor(grid, Replicate(), Shard(0), wrong=last)}),
        "shards_of_replicas_differ": save({**plain, "b": dtensor(grid, Shard(1), Replicate(), wrong=last)}),
    }


def reader() -> dict[str, Any]:
    """`dcp.load` of every placement: exactly one rank reads each byte."""
    every = every_placement()
    path = ranks.written("reader.safetensors", {name: tensor for name, (tensor, _, _) in every.items()})
    read = []

    class Counted:
        def __init__(self, *arguments: Any, **options: Any) -> None:
            self._plan = max_weights._core.RankPlan(*arguments, unit_bytes=1200, round_bytes=2400, **options)
            read.append(self._plan.costs()[0])

        def __getattr__(self, name: str) -> Any:
            return getattr(self._plan, name)

    boxes.RankPlan = Counted  # type: ignore[misc, assignment]
    wrong = []
    for dtype in (None, torch.float64):
        alike: list[dict[str, Any]] = [{}, {}]
        for state in alike:
            for name, (tensor, mesh, how) in every.items():
                own = placed(tensor, mesh, how)
                empty = torch.zeros(own.to_local().shape).to(dtype or tensor.dtype)
                stride = tensor.contiguous().stride()
                state[name] = DTensor.from_local(empty, mesh, how, run_check=False, shape=tensor.shape, stride=stride)
        together, by_itself = alike
        dcp.load(together, storage_reader=WeightsReader(path, group=dist.group.WORLD))
        dcp.load(by_itself, storage_reader=WeightsReader(path))
        for name in every:
            found, expected = together[name].to_local(), by_itself[name].to_local()
            if not torch.equal(found.double(), expected.double()):
                wrong.append(f"{name} {dtype}")
    whole = sum(tensor.numel() * tensor.element_size() for tensor, _, _ in every.values())
    other = ranks.written("other_reader.safetensors", {"rows": numbers(14, 5)})
    differs = raised(
        lambda: WeightsReader(other if ranks.RANK == 2 else path, group=dist.group.WORLD)._read_together(
            [], dist.group.WORLD
        )
    )
    return {"wrong": wrong, "read": [sum(one) for one in read], "whole": whole, "differs": differs}


def writer() -> dict[str, Any]:
    """`dcp.save` of every placement, nested and with plain tensors; `dcp.load` of what it wrote."""
    saving.ROUND = 1000
    every = every_placement()
    del every["strided_alone"]  # torch's planner makes overlapping boxes of them, which it refuses
    whole = {f"model.{name}": tensor for name, (tensor, _, _) in every.items()} | {"plain": numbers(3, 5)}
    state: dict[str, Any] = {
        "model": {name: placed(tensor, mesh, how) for name, (tensor, mesh, how) in every.items()},
        "plain": numbers(3, 5),
    }
    wrong = []
    for size in SIZES:
        folder = FOLDER / f"writer-{size}"
        dcp.save(state, storage_writer=WeightsWriter(folder, max_shard_size=size, sync=size == "5GB"))
        expected, found = alone("writer", whole, size), content(folder)
        if found != expected:
            wrong.append(f"{size}: {[name for name in expected if found.get(name) != expected[name]]} {sorted(found)}")
        empty = {name: placed(torch.zeros_like(tensor), mesh, how) for name, (tensor, mesh, how) in every.items()}
        again: dict[str, Any] = {"model": empty, "plain": torch.zeros(3, 5)}
        dcp.load(again, storage_reader=WeightsReader(folder))
        for name, tensor in state["model"].items():
            if not torch.equal(tensor.to_local().double(), again["model"][name].to_local().double()):
                wrong.append(f"{size} {name}")
        if not torch.equal(again["plain"], state["plain"]):
            wrong.append(f"{size} plain")
        dist.barrier()
    read = dict(safetensors.torch.load_file(FOLDER / "writer-5GB" / "model.safetensors"))
    wrong += [name for name in whole if not torch.equal(read[name].double(), whole[name].double())]
    older = content(FOLDER / "writer-5GB")
    dist.barrier()
    failed = {
        "step": _dcp_error({"step": 3} | state),
        "full": _dcp_error(state, _full),
    }
    same = content(FOLDER / "writer-5GB") == older
    dist.barrier()
    one = WeightsWriter(FOLDER / "unused")
    dcp.save({"a": numbers(4, 4)}, storage_writer=one, checkpoint_id=FOLDER / "writer-id")
    names = sorted(content(FOLDER / "writer-id"))
    return {
        "wrong": wrong,
        "failed": failed,
        "same": same,
        "names": names,
        "files": len(content(FOLDER / "writer-700")),
    }


def _stage(rank: int) -> dict[str, torch.Tensor]:
    """Tensors that only one rank of a pipeline has."""
    return {f"layers.{rank}.weight": numbers(400, 30) + rank, f"layers.{rank}.bias": numbers(30) - rank}


def writer_groups() -> dict[str, Any]:
    """`dcp.save` by a part of the ranks, and of tensors that other ranks do not have."""
    wrong = []
    both = dist.new_group([1, 3])
    for name, group, members in (("pipeline", None, range(ranks.RANKS)), ("part", both, (1, 3))):
        if ranks.RANK in members:
            writer = WeightsWriter(FOLDER / name, max_shard_size="20KB")
            dcp.save(_stage(ranks.RANK) | {"shared": numbers(7)}, storage_writer=writer, process_group=group)
            whole = {key: tensor for rank in members for key, tensor in _stage(rank).items()}
            if content(FOLDER / name) != alone(name, whole | {"shared": numbers(7)}, "20KB"):
                wrong.append(name)
    dist.barrier()
    if ranks.RANK == 2:
        dcp.save(_stage(2), storage_writer=WeightsWriter(FOLDER / "one"), no_dist=True)
        if content(FOLDER / "one") != alone("one", _stage(2), "5GB"):
            wrong.append("one")
    dist.barrier()
    folder = FOLDER / ("elsewhere" if ranks.RANK == 2 else "here")
    differs = _dcp_error({"a": numbers(4, 4)}, folder=folder)
    return {"wrong": wrong, "differs": differs, "left": sorted(content(folder))}


def _dcp_error(state: dict[str, Any], instead: Any = None, folder: Path | None = None) -> list[str]:
    """The error of `dcp.save` on each rank; rank 1 runs `instead` in place of writing."""
    if instead is not None and ranks.RANK == 1:
        saving.RankSave = functools.partial(Failing, instead=instead)  # type: ignore[misc, assignment]
    try:
        dcp.save(state, storage_writer=WeightsWriter(folder or FOLDER / "writer-5GB"))
    except dcp.CheckpointException as error:
        return [str(failed[0]) for _, failed in sorted(error.failures.items())]
    finally:
        saving.RankSave = max_weights._core.RankSave  # type: ignore[misc]
        dist.barrier()
    return []


class Failing:
    """Replace a rank's write."""

    def __init__(self, *arguments: Any, instead: Any, **options: Any) -> None:
        self._save = max_weights._core.RankSave(*arguments, **options)
        self._instead = instead

    def __getattr__(self, name: str) -> Any:
        return getattr(self._save, name)

    def write(self, most: int) -> int:
        written = self._save.write(most)
        self._instead()
        return written


class Spoiling(Failing):
    """Change what a rank reads back after writing."""

    def write(self, most: int) -> int:
        written: int = self._save.write(most)
        return written

    def flush(self) -> None:
        self._save.flush()
        self._instead()


def read_back() -> dict[str, Any]:
    """A byte that one rank wrote changes before it is read back, over the files of an older save."""
    folder = FOLDER / "read_back"
    older = {"rows": torch.arange(4096.0).reshape(64, 64), "columns": numbers(64, 64), "plain": numbers(5)}
    how = {"rows": [Shard(0)], "columns": [Shard(1)], "plain": [Replicate()]}
    first = 16 * line().get_local_rank()

    def save(more: float) -> None:
        own = {name: placed(tensor + more, line(), how[name]) for name, tensor in older.items()}
        save_sharded(own, folder, group=dist.group.WORLD, read_back=True)

    def spoil() -> None:
        for path in folder.glob(".*unfinished"):
            start = path.read_bytes().index((older["rows"] + 1)[first].numpy().tobytes())
            with path.open("r+b") as file:  # in its place, where others write meanwhile
                file.seek(start + 1)
                file.write(b"\xa5")

    save(0)
    dist.barrier()
    before = content(folder)
    dist.barrier()
    if ranks.RANK == 1:
        saving.RankSave = functools.partial(Spoiling, instead=spoil)  # type: ignore[misc, assignment]
    failed = raised(lambda: save(1))
    saving.RankSave = max_weights._core.RankSave  # type: ignore[misc]
    dist.barrier()  # until the rank that created the file has removed it
    return {"failed": failed, "same": content(folder) == before, "files": len(before)}


def _full() -> None:
    raise OSError(28, "No space left on device", "model.safetensors")


def _killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _with(rank: int, instead: Any) -> dict[str, Any]:
    """An older save, and one over it in which a rank runs this in place of writing."""
    folder = FOLDER / "older"
    older = {f"t{number}": numbers(64, 64) for number in range(4)}
    if ranks.RANK == 1:
        save_sharded(older, folder, max_shard_size="20KB")
    dist.barrier()
    before = content(folder)
    saving.ROUND = 2000
    if rank == ranks.RANK:
        saving.RankSave = functools.partial(Failing, instead=instead)  # type: ignore[misc, assignment]
    newer = {name: placed(tensor + 1, line(), [Shard(0)]) for name, tensor in older.items()}

    def save() -> None:
        save_sharded(newer, folder, max_shard_size="20KB", rank_timeout=20)

    failed = raised(save)
    # The rank that created the files removes them; if it is killed, the others do.
    deadline = time.monotonic() + 5
    while content(folder) != before and time.monotonic() < deadline:
        time.sleep(0.01)
    same = content(folder) == before
    return {"failed": failed, "save": save, "same": same, "files": len(before), "folder": folder}


def full_disk() -> dict[str, Any]:
    """One rank cannot write; afterwards all can."""
    found = _with(1, _full)
    dist.barrier()
    saving.RankSave = max_weights._core.RankSave  # type: ignore[misc]
    save, folder = found.pop("save"), found.pop("folder")
    save()
    whole = {f"t{number}": numbers(64, 64) + 1 for number in range(4)}
    return found | {"again": content(folder) == alone("full", whole, "20KB")}


def killed_one() -> dict[str, Any]:
    found = _with(2, _killed)
    return {name: found[name] for name in ("failed", "same", "files")}


def killed_first() -> dict[str, Any]:
    found = _with(0, _killed)
    return {name: found[name] for name in ("failed", "same", "files")}


if __name__ == "__main__":
    ranks.main(sys.argv[4:], globals())
