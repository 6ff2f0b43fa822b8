"""Loads by several processes over gloo.

`python ranks_program.py FOLDER RANKS RENDEZVOUS CASE...` forks RANKS processes, because torch takes seconds to import.
Each runs the cases, functions of this file, sequentially, and writes a line of JSON for each to its result file.
Stopped processes are killed when all others have ended.
"""

import functools
import json
import os
import signal
import sys
import threading
import time
import traceback
import urllib.request
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

import max_weights
from max_weights import delta
from max_weights._ranks import exchange
from max_weights._ranks.topology import machine as topology_machine
from max_weights.torch import _distributed, load_into, verify_loaded
from ranks_modules import (
    RANKS,
    another_part,
    changed,
    copies,
    fsdp2,
    grid,
    hsdp,
    line,
    model,
    numbers,
    plain,
    raised,
    tensor_parallel,
    tensor_parallel_and_fsdp,
)
from ranks_stages import stages

Spread = Literal["rank", "world"]
FOLDER = Path(sys.argv[1])
RANK = -1  # until the processes are forked
# Small units and rounds, so that small files have many.
_distributed.RankPlan = functools.partial(max_weights._core.RankPlan, unit_bytes=1200, round_bytes=2400)  # type: ignore[misc, assignment]


def written(name: str, tensors: dict[str, torch.Tensor]) -> Path:
    """A file that rank 0 writes for all."""
    path = FOLDER / name
    if RANK == 0:
        safetensors.torch.save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    dist.barrier()
    return path


class Tensors(nn.Module):
    """Any tensors as parameters."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))


def placed(tensor: torch.Tensor, mesh: Any, placements: list[Any]) -> DTensor:
    return distribute_tensor(tensor, mesh, placements, src_data_rank=None)


def every_placement() -> dict[str, tuple[torch.Tensor, Any, list[Any]]]:
    strided = _StridedShard(0, split_factor=2)
    return {
        "rows": (numbers(13, 5), line(), [Shard(0)]),
        "columns": (numbers(6, 13), line(), [Shard(1)]),
        "last": (numbers(3, 4, 9), line(), [Shard(2)]),
        "middle": (numbers(3, 6, 7), line(), [Shard(1)]),
        "whole": (numbers(70, 30), line(), [Replicate()]),
        "few": (numbers(2, 3), line(), [Shard(0)]),
        "one": (numbers(1), line(), [Shard(0)]),
        "both": (numbers(9, 11), grid(), [Shard(0), Shard(1)]),
        "turned": (numbers(9, 11), grid(), [Shard(1), Shard(0)]),
        "twice": (numbers(9, 11), grid(), [Shard(0), Shard(0)]),
        "halves": (numbers(8, 6), grid(), [Replicate(), Shard(1)]),
        "other_half": (numbers(8, 6), grid(), [Shard(0), Replicate()]),
        "strided": (numbers(12, 5), grid(), [strided, Shard(0)]),
        "strided_uneven": (numbers(11, 5), grid(), [strided, Shard(0)]),
        "strided_columns": (numbers(4, 12), grid(), [_StridedShard(1, split_factor=2), Shard(1)]),
        "strided_alone": (numbers(10, 3), grid(), [strided, Replicate()]),
        "part_of_mesh": (numbers(8, 12), grid()["tensor"], [Shard(0)]),
        "part_of_mesh_columns": (numbers(8, 12), grid()["tensor"], [Shard(1)]),
        "empty": (numbers(0, 3), line(), [Shard(0)]),
        "scalar": (torch.tensor(3.5), line(), [Replicate()]),
        "half_precision": (numbers(16, 8, dtype=torch.bfloat16), line(), [Shard(0)]),
        "integers": (numbers(16, 8, dtype=torch.int64), line(), [Shard(1)]),
        "truths": (numbers(16, 8) > 0, line(), [Shard(1)]),
        "eighths": (numbers(16, 8).to(torch.float8_e4m3fn), grid(), [Shard(1), Shard(0)]),
    }


def placements() -> dict[str, Any]:
    """Every placement, into memory and on meta, converted and into memory that is not contiguous."""
    every = every_placement()
    path = written("placements.safetensors", {name: tensor for name, (tensor, _, _) in every.items()})
    wrong: list[str] = []
    for spread in ("rank", "world"):
        for way in ("memory", "meta", "strided", *(["converted"] if spread == "world" else [])):
            targets, expected = {}, {}
            for name, (tensor, mesh, how) in every.items():
                own = placed(tensor, mesh, how)
                dtype = torch.float64 if way == "converted" and tensor.is_floating_point() else tensor.dtype
                local = own.to_local().to(dtype)
                expected[name] = local
                if way == "meta":
                    empty = torch.empty_like(local, device="meta")
                else:
                    # Memory for which float8 has no zeros is overwritten as well.
                    empty = torch.zeros(local.shape).to(dtype)
                    if way == "strided" and local.ndim == 2 and local.numel():
                        empty = empty.t().contiguous().t()
                stride = tensor.contiguous().stride()
                targets[name] = DTensor.from_local(empty, mesh, how, run_check=False, shape=tensor.shape, stride=stride)
            module = Tensors(targets)  # type: ignore[arg-type]
            load_into(module, path, spread=spread)
            for name, parameter in module.named_parameters():
                local = parameter.detach().to_local()  # type: ignore[attr-defined]
                same = torch.equal(local.double(), expected[name].double()) and local.dtype == expected[name].dtype
                if not same:
                    wrong.append(f"{spread} {way} {name}")
    return {"wrong": wrong, "compared": len(every)}


def modules() -> dict[str, Any]:
    """Modules as torch distributes them; afterwards they give the results of the whole module."""
    whole = model()
    path = written("model.safetensors", whole.state_dict())
    torch.manual_seed(5)
    x = torch.randn(4, 16)
    expected = whole(x)
    wrong: list[str] = []
    for distribute in (fsdp2, tensor_parallel, tensor_parallel_and_fsdp, hsdp, plain):
        for spread in ("rank", "world"):
            for meta in (False, True) if spread == "world" else (True,):
                with torch.device("meta" if meta else "cpu"):
                    module = model(RANK + 1)
                module = distribute(module)  # type: ignore[assignment]
                report = load_into(module, path, spread=spread, group=dist.group.WORLD)
                assert len(report.loaded) == 10, report
                if not torch.allclose(module(x), expected, atol=1e-5):
                    wrong.append(f"{distribute.__name__} {spread} {meta}")
    return {"wrong": wrong}


def packed() -> dict[str, Any]:
    """Packed blocks, whose parts are decoded on the receiving rank."""
    path = FOLDER / "packed.gguf"
    tensor = torch.randn(64, 128, generator=torch.Generator().manual_seed(1))
    if RANK == 0:
        max_weights.save_gguf({"a": tensor, "b": tensor}, path, quantize={"*": "q8_0"})
    dist.barrier()
    whole = max_weights.load_weights(path).load(dtype="float32", framework="torch")
    wrong = []
    for spread in ("rank", "world"):
        for how in ([Shard(0)], [Shard(1)]):
            targets = {name: placed(torch.zeros(64, 128), line(), how) for name in ("a", "b")}
            module = Tensors(targets)  # type: ignore[arg-type]
            load_into(module, path, spread=spread)
            for name, parameter in module.named_parameters():
                if not torch.equal(parameter.full_tensor(), whole[name]):  # type: ignore[attr-defined]
                    wrong.append(f"{spread} {how} {name}")
    within = Tensors({"a": placed(torch.zeros(64, 128), line(), [Shard(1)])})  # type: ignore[dict-item]
    del within.a
    uneven = {"a": placed(torch.zeros(64, 96), line(), [Shard(1)])}
    narrow = FOLDER / "narrow.gguf"
    if RANK == 0:
        max_weights.save_gguf({"a": tensor[:, :96].contiguous()}, narrow, quantize={"*": "q8_0"})
    dist.barrier()
    failed = raised(lambda: load_into(Tensors(uneven), narrow, spread="world"))  # type: ignore[arg-type]
    return {"wrong": wrong, "between": failed}


def one_process_groups() -> dict[str, Any]:
    """A group of one, for each rank."""
    groups = [dist.new_group([rank]) for rank in range(RANKS)]
    whole = model()
    path = written("alone.safetensors", whole.state_dict())
    module = model(RANK + 1)
    load_into(module, path, group=groups[RANK], spread="world")
    same = all(torch.equal(own, one) for own, one in zip(module.parameters(), whole.parameters(), strict=True))
    return {"same": same}


def some_ranks_between_all() -> dict[str, Any]:
    """Loads of all ranks, interleaved with loads of two ranks, more of them on one pair than on the other."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    whole = model()
    path = written("between.safetensors", whole.state_dict())
    same = []
    for turn in range(3):
        for group in [dist.group.WORLD] + [pairs[RANK // 2]] * (turn + 2 * (RANK // 2)):
            module = model(RANK + 1)
            load_into(module, path, group=group, spread="world")
            same += [torch.equal(own, one) for own, one in zip(module.parameters(), whole.parameters(), strict=True)]
    return {"same": all(same), "loads": len(same)}


def verified() -> dict[str, Any]:
    """Each rank verifies its local shards; an error on one rank is reported by all."""
    whole = model()
    path = written("verified.safetensors", whole.state_dict())
    weights = max_weights.load_weights(path)
    clean, named = [], []
    for distribute in (fsdp2, tensor_parallel, tensor_parallel_and_fsdp, hsdp, plain):
        module = distribute(model(RANK + 1))
        load_into(module, path, group=dist.group.WORLD, spread="world")
        report = verify_loaded(module, weights, group=dist.group.WORLD)
        if not report.ok or not report.verified:
            clean.append(f"{distribute.__name__}: {report}")
        name, parameter = next(iter(module.named_parameters()))
        if RANK == 2:
            with torch.no_grad():
                local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
                local[-1] *= 3
        report = verify_loaded(module, weights, group=dist.group.WORLD)
        if [(one.name, one.rank) for one in report.findings] != [(name, 2)]:
            named.append(f"{distribute.__name__}: {report}")
    return {"clean": clean, "named": named, **stages(RANK, written)}


def refused() -> dict[str, Any]:
    """Arguments that all ranks refuse before any read."""
    path = written("refused.safetensors", {"a": numbers(4, 4)})
    partial = DTensor.from_local(torch.zeros(4, 4), line(), [Partial()], run_check=False)
    sharded = placed(torch.zeros(4, 5), line(), [Shard(0)])
    good = {"a": placed(torch.zeros(4, 4), line(), [Shard(0)])}
    return {
        "partial": raised(lambda: load_into(Tensors({"a": partial}), path)),  # type: ignore[dict-item]
        "shape": raised(lambda: load_into(Tensors({"a": sharded}), path)),  # type: ignore[dict-item]
        "name": raised(lambda: load_into(Tensors({"b": good["a"]}), path)),  # type: ignore[dict-item]
        "spread": raised(lambda: load_into(Tensors(good), path, spread="all")),  # type: ignore[arg-type]
        "timeout": raised(lambda: load_into(Tensors(good), path, rank_timeout=0)),  # type: ignore[arg-type]
    }


def differences() -> dict[str, Any]:
    """One rank has a different view than the others."""
    path = written("common.safetensors", {"a": numbers(8, 8), "b": numbers(4)})
    other = written("other.safetensors", {"a": numbers(8, 8), "b": numbers(5)})
    later = written("later.safetensors", {"a": numbers(8, 8), "b": numbers(4)})
    if RANK == 0:
        os.utime(later, (1, 1))
    dist.barrier()
    odd = RANK == 2

    def target(shape: tuple[int, ...] = (4,)) -> nn.Module:
        return Tensors({"a": torch.zeros(8, 8), "b": torch.zeros(shape)})

    def load(module: nn.Module, file: Path, spread: Spread = "world") -> dict[str, Any]:
        return raised(lambda: load_into(module, file, group=dist.group.WORLD, spread=spread))

    how = [Shard(1)] if odd else [Shard(0)]
    tensors = {"a": placed(torch.zeros(8, 8), line(), how), "b": torch.zeros(4)}

    def another_torch() -> dict[str, Any]:
        """It splits differently, as two releases of torch may."""
        version = torch.__version__
        torch.__version__ = "1.0" if odd else version
        try:
            return load(Tensors(tensors), path)  # type: ignore[arg-type]
        finally:
            torch.__version__ = version

    return {
        "part": another_part(path, odd),
        "torch": another_torch(),
        "file": load(target((5,) if odd else (4,)), other if odd else path),
        "time": load(target(), later if odd else path),
        "absent": load(target(), FOLDER / "nothing.safetensors" if odd else path),
        "placements": load(Tensors(tensors), path),  # type: ignore[arg-type]
        "spread": load(target(), path, "rank" if odd else "world"),
    }


def failure_while_reading() -> dict[str, Any]:
    """A rank's file is truncated concurrently: all ranks raise its error, and the group works afterwards."""
    tensors = {f"t{number}": numbers(16, 16) for number in range(12)}
    path = written("whole.safetensors", tensors)
    own = FOLDER / f"copy{RANK}.safetensors"
    own.write_bytes(path.read_bytes())
    os.utime(own, (1, 1))
    dist.barrier()
    run = _distributed.CollectiveFill.run

    def truncating(self: Any, *arguments: Any) -> None:
        if RANK == 1:
            os.truncate(own, own.stat().st_size - 9000)
        run(self, *arguments)

    _distributed.CollectiveFill.run = truncating  # type: ignore[method-assign]
    module = Tensors({name: torch.full((16, 16), 7.0) for name in tensors})
    try:
        failed = raised(lambda: load_into(module, own, group=dist.group.WORLD, spread="world"))
    finally:
        _distributed.CollectiveFill.run = run  # type: ignore[method-assign]
    kept = all(bool((one == 7).all()) for one in module.parameters())
    again = load_into(module, path, group=dist.group.WORLD, spread="world")
    same = all(torch.equal(module.get_parameter(name), tensor) for name, tensor in tensors.items())
    return {"failed": failed, "again": len(again.loaded), "same": same, "kept": kept}


def slowly(rank: int, do: Callable[[], object]) -> Callable[..., Any]:
    """Read; one rank runs another function in its second round."""
    read = exchange._Runner.read
    count = [0]

    def reading(self: Any, number: int) -> Any:
        count[0] += 1
        if rank == RANK and number == 1:
            do()
        return read(self, number)

    exchange._Runner.read = reading  # type: ignore[method-assign]
    return read


def interrupt() -> dict[str, Any]:
    """Ctrl-C on one rank, while another is slow."""
    tensors = {f"t{number}": numbers(16, 16) for number in range(12)}
    path = written("interrupt.safetensors", tensors)
    read = slowly(2, lambda: time.sleep(2.5))
    module = Tensors({name: torch.zeros(16, 16) for name in tensors})
    if RANK == 1:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        failed = raised(lambda: load_into(module, path, group=dist.group.WORLD, spread="world"))
    finally:
        exchange._Runner.read = read  # type: ignore[method-assign]
    time.sleep(max(0.0, 3.0 - failed["seconds"]))  # what may still arrive
    failed["kept"] = not any(bool(one.any()) for one in module.parameters())
    dist.barrier()
    return failed


def absent_rank() -> dict[str, Any]:
    """One rank calls too late."""
    path = written("absent.safetensors", {"a": numbers(4)})
    if RANK == 3:
        time.sleep(2.5)
    module = Tensors({"a": torch.zeros(4)})
    found = raised(lambda: load_into(module, path, group=dist.group.WORLD, rank_timeout=1.0))
    dist.barrier()
    return found


def slow_rank() -> dict[str, Any]:
    """One rank is slower than the others' timeout."""
    tensors = {f"t{number}": numbers(16, 16) for number in range(12)}
    path = written("slow.safetensors", tensors)
    read = slowly(2, lambda: time.sleep(5))
    module = Tensors({name: torch.zeros(16, 16) for name in tensors})
    try:
        failed = raised(lambda: load_into(module, path, group=dist.group.WORLD, spread="world", rank_timeout=1.5))
    finally:
        exchange._Runner.read = read  # type: ignore[method-assign]
    dist.barrier()
    return failed


def stopped_and_killed() -> dict[str, Any]:
    """Rank 3 is stopped, and then, in a group of the others, rank 2 is killed; the remaining two continue."""
    groups = [dist.new_group(list(range(count))) for count in (RANKS, RANKS - 1, RANKS - 2)]
    tensors = {f"t{number}": numbers(16, 16) for number in range(12)}
    path = written("gone.safetensors", tensors)
    module = Tensors({name: torch.zeros(16, 16) for name in tensors})
    found = {}
    for name, rank, how, group in (
        ("stopped", 3, signal.SIGSTOP, groups[0]),
        ("killed", 2, signal.SIGKILL, groups[1]),
    ):
        at: list[float] = []

        def end(how: int = how) -> None:
            (FOLDER / f"time{how}").write_text(str(time.time()))
            os.kill(os.getpid(), how)

        read = slowly(rank, end)
        found[name] = raised(lambda group=group: load_into(module, path, group=group, spread="world", rank_timeout=2.0))  # type: ignore[misc]
        exchange._Runner.read = read  # type: ignore[method-assign]
        at.append(time.time())
        found[name]["after"] = at[0] - float((FOLDER / f"time{int(how)}").read_text())
    report = load_into(module, path, group=groups[2], spread="world")
    found["left"] = {"loaded": len(report.loaded)}
    # Finally, the rank that hosts the store is killed.
    read = slowly(0, lambda: os.kill(os.getpid(), signal.SIGKILL))
    found["first"] = raised(lambda: load_into(module, path, group=groups[2], spread="world", rank_timeout=5.0))
    return found


def machines() -> dict[str, Any]:
    """Two simulated machines: each reads for its own ranks, and errors are collective."""
    from max_weights._ranks import session

    every = every_placement()
    path = written("machines.safetensors", {name: tensor for name, (tensor, _, _) in every.items()})
    session.machine = lambda: f"machine {RANK % 2}"  # type: ignore[assignment]
    wrong = []
    seen = []
    exchanged = _distributed.exchange

    def counting(plan: Any, *arguments: Any) -> None:
        seen.append(sum(plan.costs()[0]))
        exchanged(plan, *arguments)

    _distributed.exchange = counting
    for spread in ("node", "world"):
        targets, expected = {}, {}
        for name, (tensor, mesh, how) in every.items():
            own = placed(tensor, mesh, how)
            expected[name] = own.to_local().clone()
            targets[name] = placed(torch.zeros(tensor.shape).to(tensor.dtype), mesh, how)
        module = Tensors(targets)  # type: ignore[arg-type]
        load_into(module, path, spread=spread)  # type: ignore[arg-type]
        for name, parameter in module.named_parameters():
            if not torch.equal(parameter.detach().to_local().double(), expected[name].double()):  # type: ignore[attr-defined]
                wrong.append(f"{spread} {name}")
    read = slowly(1, lambda: 1 / 0)
    failed = raised(lambda: load_into(module, path, spread="node"))
    exchange._Runner.read, _distributed.exchange = read, exchanged  # type: ignore[method-assign]
    session.machine = topology_machine  # type: ignore[assignment]
    return {"wrong": wrong, "read": seen[:2], "size": path.stat().st_size, "failed": failed}


def shards() -> dict[str, Any]:
    """`load(shard=, group=)`: two ranks in two replicas, and whole tensors on each; the same as each rank alone."""
    from max_weights.sharding import Shard as Part
    from max_weights.sharding import ShardingStrategy

    path = written("shards.safetensors", {"a": numbers(64, 48), "b": numbers(48, 64), "c": numbers(7)})
    weights = max_weights.load_weights(path)
    table = {"a": ShardingStrategy.rowwise(2), "b": ShardingStrategy.columnwise(2)}
    wrong = []
    for shard in (Part(RANK % 2, 2, table), None):
        for dtype in (None, "bfloat16"):
            alone = weights.load(shard=shard, dtype=dtype, framework="torch")
            all_at_once = weights.load(shard=shard, dtype=dtype, framework="torch", group=dist.group.WORLD)
            if list(alone) != list(all_at_once):
                wrong.append(f"{shard} {dtype}: names")
            wrong += [f"{shard} {dtype} {name}" for name in alone if not torch.equal(alone[name], all_at_once[name])]
    packed = max_weights.load_weights(FOLDER / "packed.gguf")
    columns = Part(RANK % 2, 2, {"a": ShardingStrategy.columnwise(2), "b": None})
    for how in ({"packed": "keep"}, {"dtype": "float32"}):
        one = packed.load(shard=columns, framework="torch", **how)  # type: ignore[call-overload]
        other = packed.load(shard=columns, framework="torch", group=dist.group.WORLD, **how)  # type: ignore[call-overload]
        wrong += [f"{how} {name}" for name in one if not torch.equal(one[name], other[name])]
    other_table = table | {"c": ShardingStrategy.replicate(2)} if RANK != 2 else {"a": table["b"]}
    return {
        "wrong": wrong,
        "strategies": raised(lambda: weights.load(shard=Part(RANK % 2, 2, other_table), group=dist.group.WORLD)),
        "out": raised(lambda: weights.load(group=dist.group.WORLD, copy=True)),
        "some": raised(lambda: weights.load(shard=None if RANK else Part(0, 2, table), group=dist.group.WORLD)),
    }


def traffic() -> dict[str, Any]:
    """Bytes read from a server: by each rank alone, and once for all."""
    url = os.environ["RANKS_URL"]
    names = [f"t{number}" for number in range(8)]

    def tensors(how: list[Any]) -> nn.Module:
        return Tensors({name: placed(torch.zeros(256, 512), line(), how) for name in names})  # type: ignore[misc]

    other = os.environ["RANKS_OTHER"] if RANK == 2 else url
    differs = raised(lambda: load_into(tensors([Shard(1)]), other))
    dist.barrier()
    if RANK == 0:
        urllib.request.urlopen(urllib.request.Request(os.environ["RANKS_COUNTS"], method="DELETE")).close()
    dist.barrier()
    _distributed.RankPlan = max_weights._core.RankPlan
    module = tensors([Shard(1)])
    load_into(module, url)
    expected = numbers(256, 512)
    same = all(torch.equal(one.full_tensor(), expected) for one in module.parameters())  # type: ignore[attr-defined]
    return {"same": same, "differs": differs}


def deltas() -> dict[str, Any]:
    """Deltas applied to every placement, to a model of FSDP2 over tensor parallelism, and refused deltas."""
    every = every_placement()
    old = {name: tensor for name, (tensor, _, _) in every.items()}
    new = {name: changed(tensor) for name, tensor in old.items()}
    base, paths = written("delta_base.safetensors", old), {}
    for dialect, file in (("max-weights", "own.safetensors"), ("xor", "weight_v000001"), ("sparse", "1.safetensors")):
        paths[dialect] = FOLDER / file
        if RANK == 0:
            delta.create(base, new, paths[dialect], dialect=dialect, sync=False)  # type: ignore[arg-type]
    dist.barrier()
    wrong, counts = [], []

    def targets(of: dict[str, torch.Tensor]) -> dict[str, DTensor]:
        return {name: placed(of[name], mesh, how) for name, (_, mesh, how) in every.items()}

    for dialect, path in paths.items():
        tensors = targets(old)
        for _ in range(1 if dialect == "sparse" else 2):
            counts.append(delta.apply_into(tensors, path).changed)
        for name, expected in targets(new).items():
            if not torch.equal(tensors[name].to_local().double(), expected.to_local().double()):
                wrong.append(f"{dialect} {name}")
    other = model(0).state_dict()
    after = {name: changed(tensor) for name, tensor in other.items()}
    start, step = written("model_base.safetensors", other), FOLDER / "model_delta.safetensors"
    if RANK == 0:
        delta.create(start, after, step, sync=False)
    dist.barrier()
    for distribute in (fsdp2, tensor_parallel, tensor_parallel_and_fsdp, hsdp, plain):
        module = distribute(model(0))
        delta.apply_into(module, step, group=dist.group.WORLD)
        state = module.state_dict()
        for name, tensor in after.items():
            own = state[name]
            whole = own.full_tensor() if isinstance(own, DTensor) else own
            if not torch.equal(whole, tensor):
                wrong.append(f"{distribute.__name__} {name}")
    odd = targets(old)
    if RANK == 2:
        local = odd["rows"].to_local()
        local.view(-1)[0] += 1
    short = {name: tensor for name, tensor in targets(old).items() if RANK != 1 or name != "rows"}
    half = dist.new_group([0, 1])
    partial = {**targets(old), "rows": DTensor.from_local(torch.zeros(13, 5), line(), [Partial()], run_check=False)}
    return {
        "wrong": wrong,
        "changed": [count > 0 for count in counts],
        "other": raised(lambda: delta.apply_into(odd, paths["max-weights"])),
        "finished": delta.apply_into(targets(old), paths["max-weights"]).changed > 0,
        "short": raised(lambda: delta.apply_into(short, paths["max-weights"])),
        "half": raised(lambda: delta.apply_into(targets(old), paths["max-weights"], group=half)) if RANK < 2 else None,
        "partial": raised(lambda: delta.apply_into(partial, paths["max-weights"])),
        "deltas": raised(lambda: delta.apply_into(targets(old), paths["sparse" if RANK == 3 else "max-weights"])),
        "absent": raised(
            lambda: delta.apply_into(targets(old), FOLDER / "no.safetensors" if RANK == 3 else paths["max-weights"])
        ),
        "own": raised(lambda: delta.apply_into(copies(old, RANK == 1), paths["max-weights"], group=dist.group.WORLD)),
    }


def run(cases: list[str], functions: dict[str, Any]) -> None:
    """Run one of the processes."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=sys.argv[3], rank=RANK, world_size=RANKS)
    with (FOLDER / f"found{RANK}").open("w") as file:
        for name in cases:
            began = time.monotonic()
            try:
                found = functions[name]()
            except BaseException:
                found = {"error": traceback.format_exc()}
            print(json.dumps({"case": name, "took": time.monotonic() - began} | found), file=file, flush=True)
            if "error" in found:
                os._exit(1)


def main(cases: list[str], functions: dict[str, Any]) -> None:
    """Fork the processes, each of which runs these cases."""
    global RANK
    children = []
    for rank in range(RANKS):
        if child := os.fork():
            children.append(child)
            continue
        RANK = rank
        try:
            run(cases, functions)
        finally:
            os._exit(0)  # torch would wait for ended processes
    left = [1] if "stopped_and_killed" in cases else range(RANKS)
    for rank in left:
        os.waitpid(children[rank], 0)
    for rank in set(range(RANKS)) - set(left):
        os.kill(children[rank], signal.SIGKILL)
        print(rank, os.waitpid(children[rank], 0)[1])


if __name__ == "__main__":
    main(sys.argv[4:], globals())
