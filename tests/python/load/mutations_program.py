"""Modules of small real architectures, separate and fused, on several ranks over gloo: each is mutated in nine ways on
one rank, and `verify_loaded` has to report it on all ranks.

`python mutations_program.py FOLDER RANKS[,RANKS...] [ARCHITECTURE...]` forks the largest number of processes once. Each
writes a file with a line of JSON for each architecture, layout, number of ranks and mutation. It prints the figures of
docs/verify_loaded.md.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from max_weights import load_weights, renamed
from max_weights.torch import verify_loaded

Local = dict[str, torch.Tensor]
LAYOUTS = ("hf", "vllm")
"""Separate and fused."""


class Case(NamedTuple):
    """The effect of a mutation on one rank."""

    name: str
    """The parameter."""
    says: str
    """The required part of its message, if it follows from the shard of one rank."""


class Part(NamedTuple):
    """The module of one rank."""

    tensors: Local
    whole: Local
    rank: int
    ranks: int

    def first(self, fits: Callable[[str, torch.Tensor], bool]) -> str:
        return next(name for name, tensor in self.tensors.items() if fits(name, tensor))


def rows(name: str, tensor: torch.Tensor) -> bool:
    """Whether this is a matrix split by rows, with at least two on this rank."""
    return tensor.ndim == 2 and len(tensor) > 1 and placement(name, tensor) == Shard(0)


def one_bit(part: Part) -> Case:
    name = part.first(lambda _, tensor: tensor.ndim == 1)
    part.tensors[name].view(torch.int16)[3] ^= 1
    return Case(name, "1 of 1 rows differ")


def one_row(part: Part) -> Case:
    name = part.first(rows)
    part.tensors[name][1] *= 1.5
    return Case(name, "rows differ from the weight")


def swapped(part: Part) -> Case:
    def of_next_layer(name: str) -> str:
        return name.replace("layers.0.", "layers.1.")

    def fits(name: str, tensor: torch.Tensor) -> bool:
        other = part.tensors.get(of_next_layer(name))
        return rows(name, tensor) and other is not None and other is not tensor and other.shape == tensor.shape

    name = part.first(fits)
    other = of_next_layer(name)
    before = part.tensors[name].clone()
    part.tensors[name].copy_(part.tensors[other])
    part.tensors[other].copy_(before)
    return Case(name, f"of '{other}'" if part.ranks > 1 else f"it holds '{other}'")


def stale(part: Part) -> Case:
    name = part.first(rows)
    part.tensors[name].copy_(torch.randn(part.tensors[name].shape, generator=torch.Generator().manual_seed(7)))
    count = len(part.tensors[name])
    return Case(name, f"{count} of {count} rows differ from the weight")


def missing_shard(part: Part) -> Case:
    name = part.first(rows)
    part.tensors[name].zero_()
    return Case(name, "are zeros")


def transposed(part: Part) -> Case:
    name = next(name for name, t in part.whole.items() if t.ndim == 2 and t.shape[0] == t.shape[1])
    wrong = part.whole[name].t().contiguous()
    part.tensors[name].copy_(cut(name, wrong, part.rank, part.ranks))
    return Case(name, "transposed" if part.ranks == 1 else "differ from the weight")


def nan(part: Part) -> Case:
    name = part.first(rows)
    part.tensors[name][1, 2] = torch.nan
    return Case(name, "1 of its values are NaN")


def next_shard(part: Part) -> Case:
    """The rows of the previous rank; with one rank, the rows shifted by one."""
    name = part.first(rows)
    wrong = part.whole[name].roll(1, 0) if part.ranks == 1 else part.whole[name].roll(len(part.tensors[name]), 0)
    part.tensors[name].copy_(cut(name, wrong, part.rank, part.ranks))
    return Case(name, f"of '{name}'")


def wrong_expert(part: Part) -> Case:
    name = part.first(lambda name, tensor: tensor.ndim == 3 and placement(name, tensor) == Shard(1))
    part.tensors[name][0] = part.tensors[name][1].clone()
    return Case(name, f"of '{name}'")


MUTATIONS = (one_bit, one_row, swapped, stale, missing_shard, transposed, nan, next_shard, wrong_expert)


def placement(name: str, tensor: torch.Tensor) -> Any:
    """Tensor-parallel split: columns of output projections, rows of other matrices; norms are replicated."""
    if tensor.ndim < 2:
        return Replicate()
    into_hidden = any(word in name for word in ("o_proj", "down_proj", "w2", ".router.", "mlp.gate.weight"))
    return Shard(tensor.ndim - 1 if into_hidden else tensor.ndim - 2)


def cut(name: str, tensor: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    where = placement(name, tensor)
    if isinstance(where, Replicate):
        return tensor
    parts = tensor.chunk(ranks, where.dim)
    return parts[rank] if rank < len(parts) else tensor.narrow(where.dim, 0, 0)


def module_of(tensors: Local) -> nn.Module:
    root = nn.Module()
    for name, tensor in tensors.items():
        *path, last = name.split(".")
        owner = root
        for step in path:
            if step not in owner._modules:
                owner.add_module(step, nn.Module())
            owner = owner.get_submodule(step)
        owner.register_parameter(last, nn.Parameter(tensor, requires_grad=False))
    return root


def run(folder: Path, architecture: str, layout: str, mesh: DeviceMesh, ranks: int) -> list[dict[str, Any]]:
    """The reports of all mutations, on every rank."""
    group, rank = mesh.get_group(), mesh.get_local_rank()
    weights = load_weights(folder)
    whole: Local = renamed(weights, layout).load(framework="torch", copy=True)
    spread: Local = {name: tensor.clone() for name, tensor in whole.items()}
    if ranks > 1:
        spread = {
            name: distribute_tensor(tensor.clone(), mesh, [placement(name, tensor)], src_data_rank=None)
            for name, tensor in whole.items()
        }
    module = module_of(spread)
    own = {
        name: one.to_local() if isinstance(one, DTensor) else one.detach() for name, one in module.named_parameters()
    }
    part, wrong, lines = Part(own, whole, rank, ranks), ranks - 1, []
    common = {"architecture": architecture, "layout": layout, "ranks": ranks}
    clean = verify_loaded(module, weights, rename=layout, group=group)
    lines.append({**common, "mutation": "none", "findings": len(clean.findings), "compared": len(clean.verified)})
    for mutate in MUTATIONS:
        before = {name: tensor.clone() for name, tensor in own.items()}
        case: list[Case | None] = [None]
        if rank == wrong:
            try:
                case = [mutate(part)]
            except StopIteration:  # an architecture without experts, or a part of one row
                case = [None]
        dist.broadcast_object_list(case, src=wrong, group=group)
        if case[0] is None:
            continue
        report = verify_loaded(module, weights, rename=layout, group=group)
        named = [str(found) for found in report.findings if found.name == case[0].name and found.rank == wrong]
        lines.append(
            {
                **common,
                "mutation": mutate.__name__,
                "found": not report.ok,
                "named": bool(named),
                "said": any(case[0].says in text for text in named),
                "elsewhere": len(report.findings) - (2 if mutate is swapped else 1),
                "text": str(report),
            }
        )
        for name, tensor in before.items():
            own[name].copy_(tensor)
    return lines


def main(folder: Path, sizes: list[int], kinds: list[str]) -> None:
    from test_conversion import _CONFIGS, _model

    kinds, ranks = kinds or list(_CONFIGS), max(sizes)
    for kind in kinds:
        _model(kind, _CONFIGS[kind]).save_pretrained(folder / kind)
    children = []
    for rank in range(ranks):
        if child := os.fork():
            children.append(child)
            continue
        try:
            torch.set_num_threads(1)
            dist.init_process_group("gloo", f"file://{folder}/rendezvous", rank=rank, world_size=ranks)
            meshes = [DeviceMesh("cpu", list(range(size))) for size in sizes]
            lines = []
            for size, mesh in zip(sizes, meshes, strict=True):
                for kind in kinds if rank < size else ():
                    for layout in LAYOUTS:
                        lines += run(folder / kind, kind, layout, mesh, size)
            (folder / f"found{rank}").write_text("\n".join(map(json.dumps, lines)))
            dist.barrier()
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)


def table(lines: list[dict[str, Any]]) -> str:
    """How many of each mutation were found, named, and classified correctly."""
    rows = ["| mutation | cases | found | named with its rank | said what it is |", "|---|---:|---:|---:|---:|"]
    for mutate in MUTATIONS:
        of_it = [line for line in lines if line["mutation"] == mutate.__name__]
        counts = [sum(line[key] for line in of_it) for key in ("found", "named", "said")]
        rows.append(f"| {mutate.__name__.replace('_', ' ')} | {len(of_it)} | {' | '.join(map(str, counts))} |")
    clean = [line for line in lines if line["mutation"] == "none"]
    rows.append(f"| none | {len(clean)} | {sum(line['findings'] > 0 for line in clean)} | | |")
    return "\n".join(rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(size) for size in sys.argv[2].split(",")], sys.argv[3:])
    print(table([json.loads(line) for line in (Path(sys.argv[1]) / "found0").read_text().splitlines()]))
