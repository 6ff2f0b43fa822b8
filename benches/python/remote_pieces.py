"""Load the same tensors from a server with 20 ms latency: one safetensors file, pieces of 4 ranks, base and delta.

PIECES_GB is the total size of the tensors of 8 MB. The delta changes a thousandth of the elements in half of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import dcp
import harness
import servers
from report import Column, Report, Target

TITLE = "Checkpoints in several files on a server"
ONE = "one safetensors file"
PIECES = "the pieces of 4 ranks (DCP)"
DELTA = "base and delta"
ROWS, COLUMNS = 4096, 1024
LATENCY = "20 ms"
ROUNDS = harness.Effort(least=7, most=9, seconds=60.0)
FILES = {ONE: ["one.safetensors"], PIECES: ["pieces/.metadata"], DELTA: ["one.safetensors", "delta.safetensors"]}


def _load(kind: str, _path: Path) -> Callable[[], object]:
    import max_weights

    urls = [f"{os.environ['REMOTE_PIECES']}/{name}" for name in FILES[kind]]

    def run() -> object:
        with max_weights.load_weights(urls if len(urls) > 1 else urls[0]) as weights:
            return weights.load(copy=True)

    return run


LOADERS: dict[str, Callable[[Path], Callable[[], object]]] = {kind: partial(_load, kind) for kind in FILES}
CASES: harness.Cases = {LATENCY: LOADERS}


def make(folder: Path, tensors: int) -> None:
    """Write the served files."""
    import max_weights

    pieces = dcp.make(folder / "pieces", tensors, ROWS, COLUMNS)
    if (folder / "delta.safetensors").exists():
        return
    with max_weights.load_weights(pieces) as weights:
        weights.save(folder / "one.safetensors")
        changed = weights.load(copy=True, framework="torch")
    for name in list(changed)[::2]:
        changed[name].view(-1)[::1000] = 1
    max_weights.delta.create(folder / "one.safetensors", changed, folder / "delta.safetensors")


def measure(folder: Path, small: bool) -> Report:
    """Time each, and the single file."""
    gigabytes = 0.07 if small else float(os.environ.get("PIECES_GB", "0.5"))
    served = folder / "several"
    served.mkdir(exist_ok=True)
    make(served, max(2, round(gigabytes * 1e9 / (ROWS * COLUMNS * 2))))
    timings: dict[str, Any] = {}
    with servers.web(served, folder / "servers") as urls:
        os.environ["REMOTE_PIECES"] = urls[LATENCY]
        effort = harness.QUICK if small else ROUNDS
        timings = harness.alternate(Path(__file__), LATENCY, LOADERS, served, effort=effort)
    values = {kind: timing.median for kind, timing in timings.items()}
    column, one = Column(LATENCY, "ms", values), values[ONE]
    return Report(
        "remote_pieces",
        [column],
        targets=tuple(Target(f"{kind} ÷ {ONE}", values[kind] / one, 1.15, "at most") for kind in (PIECES, DELTA)),
        notes=(
            f"{(served / 'one.safetensors').stat().st_size / 1e9:.2f} GB of bfloat16 on loopback, from nginx behind "
            "haproxy, which adds the delay; opening included.",
        ),
        samples={LATENCY: {kind: timing.seconds for kind, timing in timings.items()}},
    )
