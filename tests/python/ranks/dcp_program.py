"""Writes real checkpoints of `torch.distributed.checkpoint`, on gloo: one of several processes that a test starts.

`python dcp_program.py FOLDER RANK RANKS RENDEZVOUS KIND...` writes a folder of each kind into FOLDER. A kind is a
function that returns a rank's state dict, and the way to write it.
"""

import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Process(NamedTuple):
    """The rank of this process, and the number of ranks."""

    rank: int
    ranks: int


Kind = Callable[[Process], dict[str, Any]]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 44)
        self.down = nn.Linear(44, 16, bias=False)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.norm(x + self.down(torch.relu(self.up(x))))
        return out


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block())


def trained(module: nn.Module, process: Process) -> dict[str, Any]:
    """The state dicts of a module and its optimizer after a step."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    torch.manual_seed(100 + process.rank)
    module(torch.randn(4, 16)).square().mean().backward()
    optimizer.step()
    weights, states = get_state_dict(module, optimizer)
    return {"model": weights, "optimizer": states, "step": 17, "note": "two words", "nested": {"list": [1, 2.5, "x"]}}


def one_process(process: Process) -> dict[str, Any]:
    return trained(model(), process)


def fsdp2(process: Process) -> dict[str, Any]:
    module = model()
    for block in module:
        fully_shard(block)
    return trained(fully_shard(module), process)


def hsdp(process: Process) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (2, process.ranks // 2), mesh_dim_names=("replicate", "shard"))
    return trained(fully_shard(model(), mesh=mesh), process)


def tensor_parallel_and_fsdp(process: Process) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (2, process.ranks // 2), mesh_dim_names=("data", "tensor"))
    module = model()
    for block in module:
        parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["data"])
    return trained(module, process)


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    count = torch.Size(shape).numel()
    if dtype is torch.bool:
        return (torch.arange(count) % 3 == 0).reshape(shape)
    return (torch.arange(count, dtype=torch.float64) % 251 - 100).to(dtype).reshape(shape)


def cut(tensor: torch.Tensor, mesh: Any, placements: list[Any]) -> DTensor:
    """This rank's part of a tensor that every rank has: gloo does not send all dtypes."""
    return distribute_tensor(tensor, mesh, placements, src_data_rank=None)


DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
]


def placements(process: Process) -> dict[str, Any]:
    """Every placement of DTensor, shapes that do not divide, ranks without elements, and all dtypes."""
    line = init_device_mesh("cpu", (process.ranks,))
    grid = init_device_mesh("cpu", (2, process.ranks // 2))
    cuts = {
        "rows": (numbers(13, 5), line, [Shard(0)]),
        "columns": (numbers(6, 13), line, [Shard(1)]),
        "last": (numbers(3, 4, 9), line, [Shard(2)]),
        "whole": (numbers(7, 3), line, [Replicate()]),
        "few": (numbers(2, 3), line, [Shard(0)]),
        "both": (numbers(9, 11), grid, [Shard(0), Shard(1)]),
        "turned": (numbers(9, 11), grid, [Shard(1), Shard(0)]),
        "twice": (numbers(9, 11), grid, [Shard(0), Shard(0)]),
        "half": (numbers(8, 6), grid, [Replicate(), Shard(1)]),
        "empty": (numbers(0, 3), line, [Shard(0)]),
        "scalar": (torch.tensor(3.5), line, [Replicate()]),
        "transposed": (numbers(6, 8).T, line, [Shard(0)]),
    }
    state: dict[str, Any] = {name: cut(tensor, mesh, at) for name, (tensor, mesh, at) in cuts.items()}
    sharded = {str(dtype)[6:]: numbers(10, 3, dtype=dtype) for dtype in DTYPES}
    state["dtypes"] = {name: cut(tensor, line, [Shard(0)]) for name, tensor in sharded.items()}
    state["plain"] = {name: tensor + 0 if tensor.dtype.itemsize > 1 else tensor for name, tensor in sharded.items()}
    state["strided"] = numbers(8, 6).T
    state["part"] = numbers(100, 3)[10:20]
    state["counters"] = {"step": 3, "text": "a\nb", "none": None, "flag": True}
    return state


def pipeline(process: Process) -> dict[str, Any]:
    """Each rank has different layers."""
    rank = process.rank
    return {f"layers.{rank}.weight": numbers(5, 4) + rank, f"layers.{rank}.bias": numbers(5) - rank}


def expert_parallel(process: Process) -> dict[str, Any]:
    """The first axis, the experts, is split over all ranks, and the columns are not split."""
    return {"experts": cut(numbers(8, 6, 10), init_device_mesh("cpu", (process.ranks,)), [Shard(0)])}


def large(process: Process) -> dict[str, Any]:
    """Pieces of a mebibyte, by rows and by columns."""
    line = init_device_mesh("cpu", (process.ranks,))
    tensor = torch.arange(1 << 20, dtype=torch.float32).reshape(2048, 512)
    return {"rows": cut(tensor, line, [Shard(0)]), "columns": cut(tensor, line, [Shard(1)])}


def hugging_face(process: Process) -> dict[str, Any]:
    state = placements(process)
    dtypes = {f"dtypes.{name}": tensor for name, tensor in state["dtypes"].items() if name in HUGGING_FACE}
    names = ["rows", "columns", "last", "whole", "both", "turned", "half", "scalar", "few"]
    return {name: state[name] for name in names} | dtypes


HUGGING_FACE = ["float16", "float32", "float64", "bfloat16", "int8", "int16", "int32", "int64", "uint8"]
KINDS: dict[str, Kind] = {
    "one_process": one_process,
    "fsdp2": fsdp2,
    "hsdp": hsdp,
    "tensor_parallel_and_fsdp": tensor_parallel_and_fsdp,
    "placements": placements,
    "pipeline": pipeline,
    "expert_parallel": expert_parallel,
    "many_files": placements,
    "threads": placements,
}
"""Those that torch's usual reader opens."""
OTHERS: dict[str, Kind] = {"large": large, "hugging_face": hugging_face}


def writer(kind: str, folder: str) -> Any:
    if kind == "hugging_face":
        return dcp.HuggingFaceStorageWriter(folder, save_distributed=True)
    if kind == "many_files":
        return dcp.FileSystemWriter(folder, single_file_per_rank=False)
    if kind == "threads":
        return dcp.FileSystemWriter(folder, thread_count=3)
    return dcp.FileSystemWriter(folder)


def main(folder: str, rank: str, ranks: str, rendezvous: str, *kinds: str) -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=int(rank), world_size=int(ranks))
    for kind in kinds:
        state = (KINDS | OTHERS)[kind](Process(int(rank), int(ranks)))
        dcp.save(state, storage_writer=writer(kind, f"{folder}/{kind}"))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
