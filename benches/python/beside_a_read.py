"""Read a small tensor while another thread reads a large one of the same checkpoint: neither waits for the other."""

from __future__ import annotations

import json
import os
import statistics
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import harness
from report import Column, Report, Target

TITLE = "A tensor during another read"
ALONE = f"{harness.OURS}, no concurrent read"
CASES: harness.Cases = {}


def _file(folder: Path, large: int) -> Path:
    """Write a sparse file of a large tensor of zeros and a small tensor."""
    header = {
        "large": {"dtype": "U8", "shape": [large], "data_offsets": [0, large]},
        "small": {"dtype": "F32", "shape": [1024], "data_offsets": [large, large + 4096]},
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = folder / "beside.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.seek(large, os.SEEK_CUR)
        file.write(bytes(4096))
    return path


def _seconds(call: Callable[[], object], cancel: Callable[[int], bool]) -> list[float]:
    found: list[float] = []
    while cancel(len(found)):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
        time.sleep(1e-4)
    return found


def measure(folder: Path, small: bool) -> Report:
    """Time the small tensor alone, and while a thread reads the large one in a loop."""
    import max_weights

    weights = max_weights.load_weights(_file(folder, (16 << 20) if small else (1 << 30)), backend="read")
    take = weights.small.data
    alone: list[float] = []
    companions: list[float] = []
    for _ in range(1 if small else 5):
        alone += _seconds(take, lambda taken: taken < 200)
        reader = threading.Thread(target=weights.large.data)
        reader.start()
        companions += _seconds(take, lambda _, reader=reader: reader.is_alive())  # type: ignore[misc]
        reader.join()
    companions = companions or alone  # with a small file, the reader may be done at once
    values = {harness.OURS: statistics.median(companions), ALONE: statistics.median(alone)}
    return Report(
        "beside_a_read",
        [Column("4 KB while 1 GB is read", "ms", values, charted=False)],
        targets=(Target("during a read ÷ alone", values[harness.OURS] / values[ALONE], 2.0, "at most"),),
        limits=frozenset({ALONE}),
        notes=(f'`backend="read"`; {len(companions)} reads during the large one.',),
        samples={"beside": {harness.OURS: companions, ALONE: alone}},
    )
