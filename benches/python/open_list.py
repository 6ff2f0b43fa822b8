"""Open a checkpoint and list name, dtype and shape of every tensor: the first step of every use of a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import files
import harness
from listing import LIMIT, READ, header_only, ours_read, safetensors
from report import Column, Report, Target, best, ratio

TITLE = "Open and list"
RIVALS = ("safetensors, torch", "safetensors, NumPy")


def _ours(path: Path) -> Callable[[], object]:
    import max_weights

    return lambda: max_weights.infos(max_weights.load_weights(path))


def _by_hand(path: Path) -> Callable[[], object]:
    import json

    import numpy as np

    dtypes: dict[str, np.dtype[Any]] = {"BF16": np.dtype(np.uint16), "F32": np.dtype(np.float32)}

    def run() -> object:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        data = np.memmap(path, np.uint8, "c", offset=8 + length)
        views = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            views[name] = data[begin:end].view(dtypes[entry["dtype"]]).reshape(entry["shape"])
        return views

    return run


CASES: harness.Cases = {
    "open": {
        harness.OURS: _ours,
        READ: ours_read,
        "safetensors, torch": lambda path: safetensors(path, "pt"),
        "safetensors, NumPy": lambda path: safetensors(path, "np"),
        "json + np.memmap by hand": _by_hand,
        LIMIT: header_only,
    }
}


def measure(folder: Path, small: bool) -> Report:
    """Time opening file a warm and cold, and file c warm."""
    effort = harness.QUICK if small else harness.Effort()
    a, c = files.make(folder, "a", small=small), files.make(folder, "c", small=small)
    columns, samples = [], {}
    for label, path, cold in (("a", a, False), ("c", c, False), ("a cold", a, True)):
        timings = harness.alternate(Path(__file__), "open", CASES["open"], path, effort=effort, cold=cold and not small)
        samples[label] = {loader: timing.seconds for loader, timing in timings.items()}
        columns.append(Column(label, "ms", {loader: timing.median for loader, timing in timings.items()}))
    warm_a, warm_c = columns[0].values, columns[1].values
    rival_a, rival_c = best(warm_a, RIVALS), best(warm_c, RIVALS)
    return Report(
        "open_list",
        columns,
        targets=(
            Target(f"291 tensors: {rival_a} ÷ ours", ratio(warm_a, rival_a), 2.0, "at least"),
            Target(f"50,000 tensors: {rival_c} ÷ ours", ratio(warm_c, rival_c), 3.0, "at least"),
            Target(f"291 tensors, all fields read: {rival_a} ÷ ours", warm_a[rival_a] / warm_a[READ], 2.0, "at least"),
            Target(f"50,000, all fields read: {rival_c} ÷ ours", warm_c[rival_c] / warm_c[READ], 3.0, "at least"),
        ),
        limits=frozenset({LIMIT}),
        notes=(
            "`max_weights.infos(load_weights(path))` is a sequence that creates records on access. The second row "
            "copies every field into tuples, like the safetensors rows with `get_slice(name).get_dtype()` and "
            "`.get_shape()`.",
        ),
        samples=samples,
    )
