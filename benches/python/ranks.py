"""Load and save by several ranks over gloo: local shards from a file, whole tensors from S3, and saves.

RANKS_GB is the size of the checkpoint. A server of this bench counts the bytes read. The planner used for loading
computes the cost of plans for up to 1,024 ranks.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import files
import harness
import ranks_planned
import servers
import written
from ranks_work import ALONE, BROADCAST, DCP, FAST, GATHER, LOCAL, READER, REMOTE, RUNAI, SAVES, Ranks, forks, saved
from report import Column, Report, Target, ratio

TITLE = "Several ranks together"
ROUNDS = harness.Effort(least=3, most=7, seconds=30.0)
BUCKET = "ranks"
LAYER = 54e6  # bytes of a layer of `files.llama`
LOAD = "tensor parallelism, 2 ranks, local"
EVERYTHING = {2: "all on 2 ranks, S3", 4: "all on 4 ranks, S3"}
RATE = 300e6  # bytes per second of a store that is the bottleneck, as over a network
SLOW = {2: "all on 2 ranks, a store of 300 MB/s", 4: "all on 4 ranks, a store of 300 MB/s"}
ROWS, COLUMNS = "save rows, 2 ranks", "save tensor parallelism, 2 ranks"


def _together(way: str, world: int, path: Path) -> Callable[[], object]:
    return Ranks(way, path, world)


def _saving(way: str, path: Path) -> Callable[[], object]:
    return written.Written(Ranks(way, path, 2), saved(path), path.stat().st_size)


CASES: harness.Cases = {
    LOAD: {name: partial(_together, f"load {name}", 2) for name in LOCAL},
    **{case: {name: partial(_together, f"all {name}", world) for name in REMOTE} for world, case in EVERYTHING.items()},
    **{
        case: {name: partial(_together, f"all {name}", world) for name in (harness.OURS, ALONE)}
        for world, case in SLOW.items()
    },
    ROWS: {name: partial(_saving, f"rows {name}") for name in SAVES},
    COLUMNS: {name: partial(_saving, f"columns {name}") for name in SAVES},
}


def _counted(folder: Path, path: Path) -> dict[str, float]:
    """Return the bytes that 2 and 4 ranks fetch from a server, as multiples of the file's size."""
    found = {}
    with servers.counting(folder) as (url, counts):
        os.environ["RANKS_URL"] = url
        for world in EVERYTHING:
            for name in (harness.OURS, ALONE):
                ranks = Ranks(f"all {name}", path, world)
                counts.clear()
                ranks()
                ranks.close()
                found[f"{name}, {world} ranks"] = sum(counts) / path.stat().st_size
    return found


def measure(folder: Path, small: bool) -> Report:
    """Time all ways, count the bytes read, and plan for many ranks."""
    with forks(folder):
        return _measured(folder, small)


def _measured(folder: Path, small: bool) -> Report:
    effort = harness.QUICK if small else ROUNDS
    gigabytes = 0.05 if small else float(os.environ.get("RANKS_GB", "0.5"))
    whole = folder / "ranks"
    whole.mkdir(exist_ok=True)
    path = whole / "model.safetensors"
    if not path.exists():
        layers, vocabulary = max(1, round(gigabytes * 1e9 / LAYER)), 4000 if small else 32_000
        files.write_safetensors(path, files.llama(layers, vocabulary=vocabulary))
    bench, columns, samples = Path(__file__), list[Column](), dict[str, dict[str, list[float]]]()

    def time(case: str) -> None:
        timings = harness.alternate(bench, case, CASES[case], path, effort=effort)
        samples[case] = {loader: timing.seconds for loader, timing in timings.items()}
        columns.append(Column(case, "ms", {loader: timing.median for loader, timing in timings.items()}))

    time(LOAD)
    with servers.s3(folder / "seaweed") as endpoint:
        servers.upload(endpoint, BUCKET, path)
        os.environ["RANKS_URL"] = f"s3://{BUCKET}"
        for case in EVERYTHING.values():
            time(case)
    shutil.rmtree(folder / "seaweed", ignore_errors=True)
    with servers.counting(whole, RATE) as (url, _):
        os.environ["RANKS_URL"] = url
        for case in SLOW.values():
            time(case)
    for case in (ROWS, COLUMNS):
        time(case)
    shutil.rmtree(saved(path), ignore_errors=True)
    read = _counted(whole, path)
    rows, most = ranks_planned.simulate(folder, small)
    values = {column.label: column.values for column in columns}
    imbalance = max(row.imbalance for of_model in rows.values() for row in of_model)
    targets = [
        Target(f"{LOAD}: ours ÷ {READER}", 1 / ratio(values[LOAD], READER), 1.0, "at most"),
        Target(f"{LOAD}: ours ÷ {BROADCAST}", 1 / ratio(values[LOAD], BROADCAST), 0.5, "at most"),
        Target(f"{LOAD}: {FAST} ÷ ours", ratio(values[LOAD], FAST), 4.0, "at least"),
    ]
    for world, case in EVERYTHING.items():
        own = f"{harness.OURS}, {world} ranks"
        targets += [
            Target(f"{case}: ours ÷ each rank reads all", 1 / ratio(values[case], ALONE), 0.6, "at most"),
            Target(f"{case}: {RUNAI} ÷ ours", ratio(values[case], RUNAI), 4.0, "at least"),
            Target(f"all on {world} ranks: bytes from the server ÷ the file", read[own], 1.05, "at most"),
        ]
    for case in SLOW.values():
        targets.append(Target(f"{case}: ours ÷ each rank reads all", 1 / ratio(values[case], ALONE), 0.6, "at most"))
    for case in (ROWS, COLUMNS):
        targets.append(Target(f"{case}: ours ÷ gather and save", 1 / ratio(values[case], GATHER), 0.7, "at most"))
    targets += [
        Target(
            f"{COLUMNS}: dcp.save ÷ gather and save", values[COLUMNS][DCP] / values[COLUMNS][GATHER], 0.7, "at most"
        ),
        Target("plans: imbalance", imbalance, 1.05, "at most"),
        Target(
            f"plan of {ranks_planned.PLAN_TENSORS:,} tensors, 1,024 ranks", most.seconds * 1e3, 500, "at most", "ms"
        ),
    ]
    alone = ", ".join(f"{read[f'{ALONE}, {world} ranks']:.2f}" for world in EVERYTHING)
    return Report(
        "ranks",
        columns,
        targets=tuple(targets),
        notes=(
            f"{path.stat().st_size / 1e9:.2f} GB of bfloat16 in the shapes of a llama; all ranks on one machine, over "
            "gloo. Local files are in the page cache, S3 is SeaweedFS, saves are without fsync. Tensor parallelism "
            f"splits the columns of two weights of a layer and the rows of the others. The server sends {alone} times "
            "the file where each of 2 and 4 ranks reads all.",
            "What plans cost, by the planner that loads; C is one checkpoint, and a machine has 8 ranks:",
            ranks_planned.table(rows),
        ),
        samples=samples,
    )
