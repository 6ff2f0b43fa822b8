"""The results of `verify_loaded` if each rank holds one layer of a checkpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from max_weights.torch import verify_loaded
from ranks_modules import numbers, raised


def stages(rank: int, written: Callable[[str, dict[str, torch.Tensor]], Path]) -> dict[str, Any]:
    """A checkpoint of which each rank holds one layer; errors of a rank that cannot verify, and extra parameters."""
    tensors = {f"{number}.weight": numbers(4, 3 + number) for number in range(dist.get_world_size())}
    path = written("stages.safetensors", tensors)

    def stage() -> torch.nn.Module:
        layer = torch.nn.Module()
        layer.register_buffer("weight", tensors[f"{rank}.weight"].clone())
        return torch.nn.ModuleDict({str(rank): layer})

    def verify(module: torch.nn.Module, **options: Any) -> Any:
        return verify_loaded(module, path, group=dist.group.WORLD, **options)

    clean = verify(stage())
    missing = stage()
    if rank == 1:
        missing = torch.nn.ReLU()
    meta = stage()
    if rank == 2:
        meta = meta.to("meta")
    head = stage()
    if rank == 3:
        head.register_buffer("head", torch.ones(2))
    excused = verify(head, ignore="head")
    return {
        "stages": [clean.ok, list(clean.unused), len(clean.verified), clean.compared],
        "unused": list(verify(missing).unused),
        "unfilled": [verify(head).ok, list(verify(head).unfilled), excused.ok],
        "raised": raised(lambda: verify(meta)),
        "no_effect": raised(lambda: verify(stage(), ignore=f"{rank}.weight")),
        "no_file": raised(lambda: verify_loaded(stage(), path / "x" if rank == 1 else path, group=dist.group.WORLD)),
    }
