"""The values, meshes and modules of the programs of several ranks; their second argument is the number of ranks."""

import functools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import max_weights
from dcp_program import Block
from max_weights._core import RankPlan
from max_weights._ranks.agreement import agreed_plan, record_of
from max_weights._ranks.session import Session
from max_weights.errors import ArgumentError, FormatError, RankError

RANKS = int(sys.argv[2])


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return (torch.arange(count, dtype=torch.float64) % 251 - 100).to(dtype).reshape(shape)


@functools.cache
def line() -> Any:
    return init_device_mesh("cpu", (RANKS,))


@functools.cache
def grid() -> Any:
    return init_device_mesh("cpu", (2, RANKS // 2), mesh_dim_names=("data", "tensor"))


def raised(do: Callable[[], object]) -> dict[str, Any]:
    """The text of an error, and the time until it was raised."""
    began = time.monotonic()
    try:
        do()
    except (RankError, ArgumentError, FormatError, KeyboardInterrupt) as error:
        facts = {name: getattr(error, name, None) for name in ("rank", "host", "tensor", "path")}
        return {"kind": type(error).__name__, "text": str(error), "seconds": time.monotonic() - began} | facts
    return {"kind": "nothing", "seconds": time.monotonic() - began}


def model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(Block(), Block())


def fsdp2(module: nn.Sequential) -> nn.Module:
    for block in module:
        fully_shard(block)
    return fully_shard(module)


def tensor_parallel(module: nn.Sequential) -> nn.Module:
    for block in module:
        parallelize_module(block, grid()["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return module


def tensor_parallel_and_fsdp(module: nn.Sequential) -> nn.Module:
    tensor_parallel(module)
    for block in module:
        fully_shard(block, mesh=grid()["data"])
    return module


def hsdp(module: nn.Sequential) -> nn.Module:
    return fully_shard(module, mesh=grid())


def plain(module: nn.Sequential) -> nn.Module:
    return module


def changed(tensor: torch.Tensor) -> torch.Tensor:
    """Change some of its elements."""
    new = tensor.clone()
    codes = new.view(-1).view(torch.uint8)
    codes[:: max(1, tensor.element_size() * 7)] ^= 1
    return new


def copies(tensors: dict[str, torch.Tensor], is_odd: bool) -> dict[str, torch.Tensor]:
    """All of each tensor, one of them changed."""
    cloned = {name: tensor.clone() for name, tensor in tensors.items()}
    if is_odd:
        cloned["rows"].view(-1)[0] += 1
    return cloned


def another_part(path: Path, odd: bool) -> dict[str, Any]:
    """Both a whole tensor and an empty part lack ranges, but they are different."""
    weights = max_weights.load_weights(path)

    def plan() -> RankPlan:
        own = [(0, [])] if odd else None
        return RankPlan(weights, ["a"], [[own, None]], meshes=[], part_of=[0, 1, 1, 1], nodes=[0] * RANKS)

    def agree() -> None:
        with Session(dist.group.WORLD, 60, "load") as session:
            records = session.agreed(lambda: record_of(weights, max_weights.infos(weights)))
            agreed_plan(session, records, plan)

    return raised(agree)
