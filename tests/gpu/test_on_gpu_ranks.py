"""Modules of several ranks, and deltas, into a device that all ranks share: each in separate processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from gpu_support import OnDevice, each

BEGIN = """
import sys, torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from max_weights import delta, load_weights, save_file
from max_weights.torch import load_into
folder, rank, ranks, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
path = folder + "/a.safetensors"
sizes = {"0.weight": (257, 96), "0.bias": (257,), "2.weight": (64, 257), "2.bias": (64,)}

def values(step=0):
    drawn = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(size, generator=drawn) for name, size in sizes.items()}
    tensors["0.weight"][step:step + 3] += step
    return tensors

def group(backend):
    torch.cuda.set_device(0)
    dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)

def sharded():
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(96, 257), nn.ReLU(), nn.Linear(257, 64))
    fully_shard(module, mesh=init_device_mesh("cuda", (ranks,)))
    return module.to_empty(device="cuda")

def equals(module):
    for name, tensor in module.named_parameters():
        own = tensor.to_local()
        rows = torch.chunk(values()[name], ranks)
        row = rows[rank] if rank < len(rows) else values()[name][:0]
        assert own.is_cuda and torch.equal(own.cpu(), row), name
"""
PROGRAMS = {
    "one rank over NCCL gets its module": (
        1,
        """
save_file(values(), path)
group("nccl")
module = sharded()
load_into(module, path, group=dist.group.WORLD)
equals(module)
dist.destroy_process_group()
""",
    ),
    "two ranks over gloo share a device": (
        2,
        """
group("gloo")
if rank == 0:
    save_file(values(), path)
dist.barrier()
module = sharded()
load_into(module, path, group=dist.group.WORLD, spread="rank")
equals(module)
dist.barrier()
dist.destroy_process_group()
""",
    ),
    "a delta is applied to tensors of a device": (
        1,
        """
save_file(values(), path)
step = folder + "/step.safetensors"
delta.create(load_weights(path), values(1), step)
tensors = {name: tensor.cuda() for name, tensor in values().items()}
for changed in (1, 0):
    applied = delta.apply_into(tensors, step)
    assert applied.changed == changed, applied
    assert all(torch.equal(tensors[name].cpu(), tensor) for name, tensor in values(1).items())
tensors["0.weight"][1] = 7
try:
    delta.apply_into(tensors, step)
except Exception as error:
    assert "0.weight" in str(error), error
else:
    raise AssertionError("another version was taken for the base")
""",
    ),
}


class Ranks(OnDevice):
    """Programs that end without an error, with what they assert."""

    needs_torch = True

    @each(PROGRAMS)
    def test_that(self, promise: str) -> None:
        ranks, program = PROGRAMS[promise]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        paths = os.pathsep.join(sys.path)
        with tempfile.TemporaryDirectory() as folder:
            processes = [
                subprocess.Popen(
                    [sys.executable, "-c", BEGIN + program, str(Path(folder)), str(rank), str(ranks), str(port)],
                    env=os.environ | {"PYTHONPATH": paths, "PYTHONFAULTHANDLER": "1"},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
                for rank in range(ranks)
            ]
            try:
                message = [process.communicate(timeout=180)[0] for process in processes]
            finally:
                for process in processes:
                    process.kill()
        self.assertEqual([process.returncode for process in processes], [0] * ranks, "\n".join(message))
