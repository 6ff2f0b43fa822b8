"""Open and list a sharded checkpoint through its index."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import files
import harness
from report import Column, Report, Target, ratio

TITLE = "Open and list 4 shards"
RIVAL = "safetensors, NumPy, the four files"
LIMIT = "read + json.loads of index and headers"


def _ours(path: Path) -> Callable[[], object]:
    import max_weights

    return lambda: [(info.name, info.dtype, info.shape) for info in max_weights.infos(max_weights.load_weights(path))]


def _safetensors(path: Path) -> Callable[[], object]:
    from safetensors import safe_open

    def run() -> object:
        listing = []
        for shard in sorted(path.glob("*.safetensors")):
            with safe_open(shard, "np") as file:
                for name in file.keys():  # noqa: SIM118 (not a mapping)
                    part = file.get_slice(name)
                    listing.append((name, part.get_dtype(), part.get_shape()))
        return listing

    return run


def _headers(path: Path) -> Callable[[], object]:
    def run() -> object:
        found = [json.loads((path / "model.safetensors.index.json").read_bytes())]
        for shard in sorted(path.glob("*.safetensors")):
            with shard.open("rb") as file:
                found.append(json.loads(file.read(int.from_bytes(file.read(8), "little"))))
        return found

    return run


CASES: harness.Cases = {"open": {harness.OURS: _ours, RIVAL: _safetensors, LIMIT: _headers}}


def measure(folder: Path, small: bool) -> Report:
    """Time opening and listing b, warm and cold."""
    effort = harness.QUICK if small else harness.Effort()
    b = files.make(folder, "b", small=small)
    columns, samples = [], {}
    for label, cold in (("b", False), ("b cold", True)):
        timings = harness.alternate(Path(__file__), "open", CASES["open"], b, effort=effort, cold=cold and not small)
        samples[label] = {loader: timing.seconds for loader, timing in timings.items()}
        columns.append(Column(label, "ms", {loader: timing.median for loader, timing in timings.items()}))
    warm, cold_values = columns[0].values, columns[1].values
    return Report(
        "shards",
        columns,
        targets=(
            Target(f"warm: {RIVAL} ÷ ours", ratio(warm, RIVAL), 2.5, "at least"),
            Target(f"cold: {RIVAL} ÷ ours", ratio(cold_values, RIVAL), 5.0, "at least"),
        ),
        limits=frozenset({LIMIT}),
        notes=("max_weights reads the index and compares it with the shards; safetensors only opens the four files.",),
        samples=samples,
    )
