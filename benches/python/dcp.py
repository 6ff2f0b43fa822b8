"""List and convert checkpoints of `torch.distributed.checkpoint`: 50,000 pieces, and 2 GB in the pieces of 4 ranks.

DCP_GB is the size of the converted checkpoint. The folders are written with torch's own classes and `torch.save`, as
`dcp.save` does on 4 ranks that split every tensor by rows.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path

import harness
import written
from report import Column, Report, Target

TITLE = "Training checkpoints in pieces"
TORCH = "torch: dcp_to_torch_save, then save_file"
METADATA = "torch: the metadata alone, unpickled"
READ_WRITE = "read and write of the bytes, 1 thread"
RANKS = 4
ROWS = 4096
PIECES = 50_000
MEMORY = 256e6
ROUNDS = harness.Effort(least=3, most=5, seconds=60.0)


def make(folder: Path, tensors: int, rows: int, columns: int, *, empty: bool = False) -> Path:
    """Write bfloat16 tensors of these rows and columns in pieces of rows; or sizes alone, with files of zeros."""
    import torch
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        TensorProperties,
        TensorStorageMetadata,
    )

    if (folder / ".metadata").exists():
        return folder
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    each = rows // RANKS
    storage, names = {}, [f"model.layers.{number}.mlp.weight" for number in range(tensors)]
    for rank in range(RANKS):
        path = folder / f"__{rank}_0.distcp"
        with path.open("wb") as file:
            for name in names:
                start = file.tell()
                if empty:
                    file.seek(4096, os.SEEK_CUR)
                else:
                    torch.save(torch.randn(each, columns).bfloat16(), file)
                index = MetadataIndex(name, [rank * each, 0], rank)
                storage[index] = _StorageInfo(path.name, start, file.tell() - start)
            file.truncate()
    properties = TensorProperties(dtype=torch.bfloat16)
    chunks = [ChunkStorageMetadata(torch.Size([rank * each, 0]), torch.Size([each, columns])) for rank in range(RANKS)]
    size = torch.Size([rows, columns])
    states = {name: TensorStorageMetadata(properties, size, list(chunks)) for name in names}
    with (folder / ".metadata").open("wb") as file:
        pickle.dump(Metadata(states, storage_data=storage, version="1.0.0"), file)  # type: ignore[arg-type]
    return folder


def _to(path: Path) -> Path:
    return path.with_name("converted.safetensors")


def _list(path: Path) -> Callable[[], object]:
    import max_weights

    return lambda: max_weights.infos(max_weights.load_weights(path))


def _unpickle(path: Path) -> Callable[[], object]:
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    return lambda: FileSystemReader(path).read_metadata()


def _ours(path: Path) -> Callable[[], object]:
    import max_weights

    def run() -> None:
        with max_weights.load_weights(path) as weights:
            weights.save(_to(path), sync=False)

    return run


def _torch(path: Path) -> Callable[[], object]:
    import torch
    from safetensors.torch import save_file
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    between = path.with_name("between.pt")

    def flat(state: dict[str, object], prefix: str) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                found[prefix + name] = value
            elif isinstance(value, dict):
                found |= flat(value, f"{prefix}{name}.")
        return found

    def run() -> None:
        dcp_to_torch_save(path, between)
        save_file(flat(torch.load(between, mmap=True, weights_only=True), ""), _to(path))
        between.unlink()

    return run


def _size(path: Path) -> int:
    import max_weights

    return sum(info.bytes for info in max_weights.infos(max_weights.load_weights(path)))


def _limit(path: Path) -> Callable[[], object]:
    return written.read_and_write(sorted(path.glob("*.distcp")), _to(path), _size(path), False, 1)


def _written(load: harness.Loader, path: Path) -> Callable[[], object]:
    return written.Written(load(path), _to(path), _size(path))


LIST, CONVERT = "list 50,000 pieces", "convert to safetensors"
CASES: harness.Cases = {
    LIST: {harness.OURS: _list, METADATA: _unpickle},
    CONVERT: {
        name: partial(_written, load) for name, load in ((harness.OURS, _ours), (TORCH, _torch), (READ_WRITE, _limit))
    },
}


def measure(folder: Path, small: bool) -> Report:
    """Time both, and take the memory of the conversion."""
    bench, effort = Path(__file__), harness.QUICK if small else ROUNDS
    gigabytes = 0.01 if small else float(os.environ.get("DCP_GB", "2"))
    many = make(folder / "pieces", (PIECES if not small else 400) // RANKS, 16, 8, empty=True)
    tensors = max(1, round(gigabytes * 1e9 / (2 * ROWS * ROWS)))
    whole = make(folder / f"ranks-{gigabytes}", tensors, ROWS if not small else 64, ROWS)
    listing = harness.alternate(bench, LIST, CASES[LIST], many, effort=effort)
    converting = harness.alternate(bench, CONVERT, CASES[CONVERT], whole, effort=effort)
    memory = harness.peak_memory(bench, CONVERT, [harness.OURS, TORCH], whole, runs=1)
    written.remove(_to(whole))
    lists = {loader: timing.median for loader, timing in listing.items()}
    converts = {loader: timing.median for loader, timing in converting.items()}
    peaks = {loader: float(one.peak) for loader, one in memory.items()}
    moved = _size(whole) / 1e9
    return Report(
        "dcp",
        [
            Column(LIST, "ms", lists),
            Column(CONVERT, "ms", converts),
            Column("convert, peak memory", "MB", peaks, charted=False),
        ],
        targets=(
            Target("list 50,000 pieces", lists[harness.OURS] * 1e3, 100, "at most", "ms"),
            Target(f"convert: {READ_WRITE} ÷ ours", converts[READ_WRITE] / converts[harness.OURS], 0.8, "at least"),
            Target("convert: torch ÷ ours", converts[TORCH] / converts[harness.OURS], 5.0, "at least"),
            Target("convert: peak memory", peaks[harness.OURS] / 1e6, MEMORY / 1e6, "at most", "MB"),
        ),
        limits=frozenset({READ_WRITE}),
        notes=(
            f"{PIECES:,} pieces of 12,500 tensors; {moved:.2f} GB of bfloat16 from {RANKS} ranks, in the page cache, "
            "without fsync.",
        ),
        samples={
            name: {loader: timing.seconds for loader, timing in timings.items()}
            for name, timings in ((LIST, listing), (CONVERT, converting))
        },
    )
