"""Read one rank's shards from a file: the time, and how much of the file is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import files
import harness
from report import Column, Report, Target, ratio

TITLE = "One rank's shards of a mapped file"
RIVAL = "safetensors, torch, get_slice"
LAZY = "max_weights, without prefetch"
RANKS, RANK = 4, 1
PAGE = 4096


def _ours(path: Path, axis: int, prefetch: bool) -> Callable[[], object]:
    import numpy as np

    import max_weights
    from max_weights.graph import ShardingStrategy, Weight

    strategies = [ShardingStrategy.rowwise(RANKS), ShardingStrategy.columnwise(RANKS)]

    def run() -> object:
        weights, shards = max_weights.load_weights(path), []
        for name, node in weights.items():
            data: Any = node.data()
            strategy = strategies[axis if len(data.shape) > axis else 0]
            weight = Weight(name, data.dtype, data.shape, "cpu", sharding_strategy=strategy)
            shard = weight.shard(["cpu"] * RANKS)[RANK].data_of(data).data
            shards.append(shard.prefetch() if prefetch else shard)
        return [int(np.asarray(shard.view("uint8")).reshape(-1)[::PAGE].sum()) for shard in shards]

    return run


def _safetensors(path: Path, axis: int) -> Callable[[], object]:
    import torch
    from safetensors import safe_open

    def run() -> object:
        shards = []
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                part = file.get_slice(name)
                shape = part.get_shape()
                split = axis if len(shape) > axis else 0
                start, stop = _range(shape[split])
                shards.append(part[start:stop] if split == 0 else part[:, start:stop])
        return [int(shard.contiguous().view(-1).view(torch.uint8)[::PAGE].sum()) for shard in shards]

    return run


def _range(size: int) -> tuple[int, int]:
    each, more = divmod(size, RANKS)
    start = RANK * each + min(RANK, more)
    return start, start + each + (more > RANK)


def _loaders(axis: int) -> dict[str, harness.Loader]:
    return {
        harness.OURS: lambda path: _ours(path, axis, True),
        LAZY: lambda path: _ours(path, axis, False),
        RIVAL: lambda path: _safetensors(path, axis),
    }


CASES: harness.Cases = {"rows": _loaders(0), "columns": _loaders(1)}


def _read(case: str, path: Path, small: bool) -> dict[str, float]:
    """Return how much of the file is in the page cache after a cold run, as a multiple of the rank's share."""
    axis = list(CASES).index(case)
    share = 0
    for entry in (files.SMALL_FILES if small else files.FILES)["a"]():
        split = axis if len(entry.shape) > axis else 0
        start, stop = _range(entry.shape[split])
        share += entry.size // entry.shape[split] * (stop - start)
    found = {}
    for loader in CASES[case]:
        with harness.Worker(Path(__file__), case, loader, path) as worker:
            if not small:
                harness.evict(path)
            worker.time(1)
            found[loader] = harness.cached_fraction(path) * path.stat().st_size / share
    return found


def measure(folder: Path, small: bool) -> Report:
    """Time rank 1 of 4 over rows and over columns of a, warm and cold, and count what it reads."""
    effort = harness.QUICK if small else harness.Effort(least=3, most=9)
    a = files.make(folder, "a", small=small)
    columns, samples = [], {}
    for case, loaders in CASES.items():
        for label, cold in ((case, False), (f"{case} cold", True)):
            timings = harness.alternate(Path(__file__), case, loaders, a, effort=effort, cold=cold and not small)
            samples[label] = {loader: timing.seconds for loader, timing in timings.items()}
            columns.append(Column(label, "ms", {loader: timing.median for loader, timing in timings.items()}))
        columns.append(Column(f"{case}: read, shares", "x", _read(case, a, small), charted=False))
    cold_rows, read_rows = columns[1].values, columns[2].values
    return Report(
        "shards_of_a_file",
        columns,
        targets=(
            Target("rows: bytes read ÷ bytes of the shards", read_rows[harness.OURS], 1.02, "at most"),
            Target(f"rows cold: {RIVAL} ÷ ours", ratio(cold_rows, RIVAL), 1.0, "at least"),
        ),
        notes=(
            "One rank of four takes a quarter of each tensor of a, and one byte of every 4 KiB is read. *Read, "
            "shares* is how much of the file the page cache holds afterwards, divided by the bytes of the rank's "
            "shards. Columns of short rows share their pages with other ranks, so the whole file is read. Without "
            "`prefetch`, the system reads around each first touch, as far as the disk's read-ahead (here "
            f"{_read_ahead(a)}).",
        ),
        samples=samples,
    )


def _read_ahead(path: Path) -> str:
    device = path.stat().st_dev
    for queue in Path("/sys/dev/block").glob(f"{os.major(device)}:{os.minor(device)}/queue/read_ahead_kb"):
        return f"{queue.read_text().strip()} KiB"
    return "not known"
