"""PyTorch files: open and list, all tensors to torch lazily, touched, eagerly and cold, compared with torch.load."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import files
import harness
from report import Column, Report, Target, ratio
from rivals import touched

TITLE = "PyTorch files"
RIVAL = "torch.load(mmap=True)"
EAGER_RIVAL = "torch.load"
NUMPY = "max_weights, to NumPy"
EAGER = "max_weights, reading (the default)"
READ = "read into one reused block"
FRESH = "read into fresh memory, storage by storage"
PAGES = "np.memmap, pages touched in file order"
CREPE = "crepe-full.pth"
_BLOCK = 1 << 20


def _ours_listed(path: Path) -> Callable[[], object]:
    import max_weights

    return lambda: [(info.name, info.dtype, info.shape) for info in max_weights.infos(max_weights.load_weights(path))]


def _torch_listed(path: Path) -> Callable[[], object]:
    import torch

    def run() -> object:
        loaded = torch.load(path, mmap=True, weights_only=True)
        return [(name, tensor.dtype, tensor.shape) for name, tensor in loaded.items()]

    return run


def _ours(path: Path, mmap: bool = True) -> Callable[[], Any]:
    import torch  # noqa: F401 (imported before the clock runs, for each loader alike)

    import max_weights.torch

    return lambda: max_weights.torch.load(path, mmap=mmap)


def _ours_numpy(path: Path) -> Callable[[], Any]:
    import ml_dtypes  # noqa: F401
    import numpy as np  # noqa: F401

    import max_weights.numpy

    return lambda: max_weights.numpy.load_file(path)


def _torch(path: Path, mmap: bool = True) -> Callable[[], Any]:
    import torch

    return lambda: torch.load(path, mmap=mmap, weights_only=True)


def _read(path: Path) -> Callable[[], object]:
    block = bytearray(_BLOCK)

    def run() -> object:
        with path.open("rb", buffering=0) as file:
            while file.readinto(block):
                pass
        return None

    return run


def _read_fresh(path: Path) -> Callable[[], object]:
    import numpy as np

    import max_weights

    places = [(info.offset, info.bytes) for info in max_weights.infos(max_weights.load_weights(path))]

    def run() -> object:
        blocks = []
        with path.open("rb", buffering=0) as file:
            for offset, size in places:
                block = np.empty(size, np.uint8)
                file.seek(offset)
                file.readinto(block)  # type: ignore[arg-type]
                blocks.append(block)
        return blocks

    return run


def _pages(path: Path) -> Callable[[], object]:
    import numpy as np

    return lambda: int(np.memmap(path, np.uint8, "r")[::4096].sum())


CASES: harness.Cases = {
    "open": {harness.OURS: _ours_listed, RIVAL: _torch_listed},
    "lazy": {harness.OURS: _ours, NUMPY: _ours_numpy, RIVAL: _torch},
    "touch": {harness.OURS: touched(_ours), RIVAL: touched(_torch), PAGES: _pages},
    "eager": {
        EAGER: lambda path: _ours(path, mmap=False),
        EAGER_RIVAL: lambda path: _torch(path, mmap=False),
        FRESH: _read_fresh,
    },
    "cold": {
        harness.OURS: touched(_ours),
        EAGER: lambda path: _ours(path, mmap=False),
        RIVAL: touched(_torch),
        EAGER_RIVAL: lambda path: _torch(path, mmap=False),
        READ: _read,
    },
}


def make(folder: Path, small: bool) -> Path:
    """Write the tensors of file a (291 of them, 2 GB) with torch.save."""
    import torch

    path = folder / ("a-small.pt" if small else "a.pt")
    if not path.exists():
        entries = files.llama(layers=1, hidden=64, kv=32, feed_forward=96) if small else files.llama()
        tensors = {entry.name: torch.rand(entry.shape).to(torch.bfloat16) for entry in entries}
        torch.save(tensors, path)
    return path


def measure(folder: Path, small: bool) -> Report:
    """Time a real file of 44 tensors, and one of 291 made here."""
    crepe = Path(os.environ.get("MAX_WEIGHTS_MODELS", ".models")) / CREPE
    if not crepe.exists():
        raise harness.BenchError(f"{crepe} is missing: fetch it with `python tools/get_models.py {crepe.parent}`")
    effort = harness.QUICK if small else harness.Effort()
    made = make(folder, small)
    columns, samples = [], {}
    for label, case, path in (
        ("crepe-full, open + list", "open", crepe),
        ("291 tensors, open + list", "open", made),
        ("lazy", "lazy", made),
        ("touched", "touch", made),
        ("eager", "eager", made),
        ("cold", "cold", made),
    ):
        cold = case == "cold" and not small
        timings = harness.alternate(Path(__file__), case, CASES[case], path, effort=effort, cold=cold)
        samples[label] = {loader: timing.seconds for loader, timing in timings.items()}
        columns.append(Column(label, "ms", {loader: timing.median for loader, timing in timings.items()}))
    crepe_open, made_open, lazy, _, eager, cold_read = (column.values for column in columns)
    return Report(
        "torch_files",
        columns,
        targets=(
            Target(f"crepe-full, open + list: {RIVAL} ÷ ours", ratio(crepe_open, RIVAL), 5.0, "at least"),
            Target(f"291 tensors, open + list: {RIVAL} ÷ ours", ratio(made_open, RIVAL), 5.0, "at least"),
            Target(f"to torch, lazily: {RIVAL} ÷ ours", ratio(lazy, RIVAL), 1.0, "at least"),
            Target(f"to NumPy, lazily: {RIVAL} ÷ ours", lazy[RIVAL] / lazy[NUMPY], 1.0, "at least"),
            Target("eager: ours ÷ a read into fresh memory", eager[EAGER] / eager[FRESH], 1.1, "at most"),
            Target(
                "cold, touched: ours ÷ a sequential read", cold_read[harness.OURS] / cold_read[READ], 1.15, "at most"
            ),
            Target("cold, eager: ours ÷ a sequential read", cold_read[EAGER] / cold_read[READ], 1.15, "at most"),
        ),
        limits=frozenset({READ, FRESH, PAGES}),
        notes=(
            "Both files were written by torch.save; torch.load runs with `weights_only=True`. A read into fresh memory "
            "pays for its pages, as an eager load does.",
        ),
        samples=samples,
    )
