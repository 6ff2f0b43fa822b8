"""Load the slices of one rank of eight, cold: rows, columns, experts; and the columns of all eight, sequentially."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import files
import harness
import limits
import rivals
from report import Column, Report, Target, best

TITLE = "What one rank of eight wants"
WORLD, RANK = 8, 0
SLICED = "safetensors, torch, get_slice"
SLICED_NEXT = f"{rivals.NEXT}, torch, get_slice"
SLICED_PREAD_NEXT = f"{rivals.NEXT}, torch, get_slice, pread"
NAMED = "safetensors, torch, get_tensor by name"
NAMED_NEXT = f"{rivals.NEXT}, torch, get_tensor by name"
EXACT = "pread of the exact ranges, in order"
ROUNDS = harness.Effort(least=5, most=5)


def _even(size: int) -> tuple[int, int]:
    each, more = divmod(size, WORLD)
    start = RANK * each + min(RANK, more)
    return start, start + each + (more > RANK)


def _strategies(axis: int) -> Any:
    from max_weights.sharding import ShardingStrategy

    rows = ShardingStrategy.rowwise(WORLD)
    return {"*": rows} if axis == 0 else {"*norm.weight": rows, "*": ShardingStrategy.columnwise(WORLD)}


def _shard(rank: int, axis: int) -> Any:
    from max_weights.sharding import Shard

    return Shard(rank, WORLD, _strategies(axis))


def _ours(path: Path, axis: int) -> Callable[[], object]:
    return rivals.touched(lambda path: rivals.ours(path, shard=_shard(RANK, axis)))(path)


def _every_rank(path: Path) -> Callable[[], object]:
    """Load the columns of all ranks, rank by rank, as the processes of one machine request them."""
    loads = [rivals.ours(path, shard=_shard(rank, 1)) for rank in range(WORLD)]
    return lambda: [rivals.touch(load()) for load in loads]


def _safetensors(path: Path, axis: int, **options: str) -> Callable[[], object]:
    import torch
    from safetensors import safe_open

    def run() -> object:
        shards = {}
        with safe_open(path, "pt", **options) as file:
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                part = file.get_slice(name)
                shape = part.get_shape()
                split = axis if len(shape) > axis else 0
                start, stop = _even(shape[split])
                shards[name] = part[start:stop] if split == 0 else part[:, start:stop].contiguous()
        rivals.touch(shards)
        return shards

    assert torch is not None  # imported before the clock runs
    return run


def _is_requested(name: str) -> bool:
    """Whether this rank has a weight of e: its own experts, and all weights outside the experts."""
    _, marked, rest = name.partition(".experts.")
    start, stop = _even(files.EXPERTS_E)
    return not marked or start <= int(rest.split(".")[0]) < stop


def _our_experts(path: Path) -> Callable[[], object]:
    from max_weights.sharding import experts

    return rivals.touched(lambda path: rivals.ours(path, select=experts(RANK, WORLD)))(path)


def _safetensors_experts(path: Path) -> Callable[[], object]:
    from safetensors import safe_open

    def run() -> object:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys() if _is_requested(name)}  # noqa: SIM118
        rivals.touch(tensors)
        return tensors

    return run


def _ranges(name: str, path: Path) -> Iterator[tuple[int, int]]:
    """Return the (offset, bytes) to read of each tensor of a (rows) or e (experts), in file order."""
    with path.open("rb") as file:
        offset = 8 + int.from_bytes(file.read(8), "little")
    for entry in (files.SMALL_FILES if "-small" in path.stem else files.FILES)[name]():
        if name == "e":
            if _is_requested(entry.name):
                yield offset, entry.size
        else:
            row = entry.size // entry.shape[0]
            start, stop = _even(entry.shape[0])
            yield offset + start * row, (stop - start) * row
        offset += entry.size


def _exact(path: Path) -> Callable[[], object]:
    ranges = list(_ranges(path.stem[0], path))
    memory = memoryview(bytearray(sum(size for _, size in ranges)))

    def run() -> None:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        done = 0
        for offset, size in ranges:
            done += os.preadv(descriptor, [memory[done : done + size]], offset)
        os.close(descriptor)

    return run


def _rivals(axis: int) -> dict[str, harness.Loader]:
    return {
        SLICED: lambda path: _safetensors(path, axis),
        SLICED_NEXT: harness.other_version(rivals.CANDIDATE, lambda path: _safetensors(path, axis)),
        SLICED_PREAD_NEXT: harness.other_version(
            rivals.CANDIDATE, lambda path: _safetensors(path, axis, backend="pread")
        ),
    }


CASES: harness.Cases = {
    "rows": {harness.OURS: lambda path: _ours(path, 0), **_rivals(0), EXACT: _exact},
    "columns": {harness.OURS: lambda path: _ours(path, 1), **_rivals(1), limits.SEQUENTIAL: limits.sequential},
    "8 ranks": {harness.OURS: _every_rank},
    "experts": {
        harness.OURS: _our_experts,
        NAMED: _safetensors_experts,
        NAMED_NEXT: harness.other_version(rivals.CANDIDATE, _safetensors_experts),
        EXACT: _exact,
    },
}


def measure(folder: Path, small: bool) -> Report:
    """Time rank 0 over rows, columns and experts, and count what it reads from the disk."""
    bench = Path(__file__)
    effort = harness.QUICK if small else ROUNDS
    a, e = files.make(folder, "a", small=small), files.make(folder, "e", small=small)
    useful = {
        "rows": sum(size for _, size in _ranges("a", a)),
        "columns": a.stat().st_size,
        "8 ranks": a.stat().st_size,
        "experts": sum(size for _, size in _ranges("e", e)),
    }
    columns, samples = [], {}
    times: dict[str, dict[str, float]] = {}
    read: dict[str, dict[str, float]] = {}
    for case, loaders in CASES.items():
        path = e if case == "experts" else a
        timings = harness.alternate(bench, case, loaders, path, effort=effort, cold=not small)
        samples[case] = {loader: timing.seconds for loader, timing in timings.items()}
        times[case] = {loader: timing.median for loader, timing in timings.items()}
        read[case] = {loader: max(timing.read) / useful[case] for loader, timing in timings.items()}
        columns.append(Column(case, "ms", times[case]))
        columns.append(Column(f"{case}: read", "x", read[case], charted=False))
    targets = []
    for case, bound, slowest in (("rows", 1.05, 0.2), ("columns", 1.01, 0.7), ("experts", 1.05, 1.0)):
        values = times[case]
        rival = best(values, [name for name in values if name not in (harness.OURS, EXACT, limits.SEQUENTIAL)])
        whole = "the file" if case == "columns" else "what is wanted"
        targets += [
            Target(f"{case}: bytes read ÷ {whole}", read[case][harness.OURS], bound, "at most"),
            Target(f"{case}: ours ÷ {rival}", values[harness.OURS] / values[rival], slowest, "at most"),
        ]
    targets.append(Target("8 ranks: bytes read ÷ the file", read["8 ranks"][harness.OURS], 1.01, "at most"))
    return Report(
        "slices_of_a_rank",
        columns,
        targets=targets,
        limits=frozenset({EXACT, limits.SEQUENTIAL}),
        notes=(
            "Rank 0 of 8 takes an eighth of the rows or columns of each tensor of a, or 8 of the 60 experts of e and "
            "the shared tensors. *Read* is what the process read from the disk (`/proc/self/io`), divided by the "
            "requested bytes; for columns by the bytes of the file, because short rows share their pages with other "
            "ranks. In the column *8 ranks*, the ranks load their columns sequentially.",
        ),
        samples=samples,
    )
