"""Convert whole checkpoints: float32 shards to bfloat16, a PyTorch file and a GGUF file to safetensors.

CONVERT_GB is the size of the float32 shards; the default, 3.85 GB, is all tensors of a.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import files
import gguf_pretrained
import harness
import rivals
import torch_files
import written
from report import Column, Report, Target

TITLE = "Convert whole checkpoints"
USUAL = "the usual calls"
READ_WRITE = "read and write of the bytes, 1 thread"
READ_WRITE_ALL = "read and write of the bytes, on all cores"
LIMITS = (READ_WRITE, READ_WRITE_ALL)
SHARD = "1GB"
WHOLE_GB = 3.85
ROUNDS = harness.Effort(least=5, most=7, seconds=60.0)
MEMORY = 300e6


def make(folder: Path, small: bool) -> Path:
    """Write the tensors of a as float32, in 4 shards."""
    size = None if small else os.environ.get("CONVERT_GB")
    path = folder / ("float32-small" if small else "float32" if size is None else f"float32-{size}")
    if not path.exists():
        layers = files.LAYERS_A if size is None else max(1, round(files.LAYERS_A * float(size) / WHOLE_GB))
        entries = files.SMALL_FILES["a"]() if small else files.llama(layers=layers)
        partial_path = path.with_name(f"{path.name}.partial")
        partial_path.mkdir()
        files.write_shards(partial_path, (replace(entry, dtype="F32") for entry in entries))
        partial_path.rename(path)
    return path


def _to(path: Path) -> Path:
    return path.with_name("converted")


def _size(path: Path, dtype: str | None) -> int:
    """Return the size of a checkpoint's tensors in this two-byte dtype, or unchanged."""
    import max_weights

    infos = max_weights.infos(max_weights.load_weights(path))
    return sum(info.bytes if dtype is None else 2 * prod(info.shape) for info in infos)


def _ours(path: Path, sync: bool, **options: Any) -> Callable[[], object]:
    import max_weights

    def run() -> None:
        with max_weights.load_weights(path) as weights:
            weights.save(_to(path), sync=sync, **options)

    return run


def _shards_in_turn(path: Path, sync: bool) -> Callable[[], object]:
    import torch
    from safetensors.torch import load_file, save_file

    def run() -> None:
        _to(path).mkdir()
        for file in rivals.shards(path):
            tensors = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(file).items()}
            save_file(tensors, _to(path) / file.name, {"format": "pt"})
        if sync:
            written.flush(_to(path))

    return run


def _torch(path: Path) -> Callable[[], object]:
    import torch
    from safetensors.torch import save_file

    return lambda: save_file(torch.load(path, mmap=True, weights_only=True), _to(path), {"format": "pt"})


def _gguf_py(path: Path) -> Callable[[], object]:
    import gguf
    import torch
    from safetensors.torch import save_file

    def run() -> None:
        tensors = {}
        for tensor in gguf.GGUFReader(path).tensors:
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
            tensors[tensor.name] = torch.from_numpy(values).to(torch.bfloat16)
        save_file(tensors, _to(path), {"format": "pt"})

    return run


def _limit(path: Path, dtype: str | None, sync: bool, threads: int) -> Callable[[], object]:
    sources = rivals.shards(path) if path.is_dir() else [path]
    return written.read_and_write(sources, _to(path), _size(path, dtype), sync, threads)


def _written(load: harness.Loader, dtype: str | None, path: Path) -> Callable[[], object]:
    return written.Written(load(path), _to(path), _size(path, dtype))


def _case(ours: harness.Loader, usual: harness.Loader, dtype: str | None, sync: bool) -> dict[str, harness.Loader]:
    loaders: dict[str, harness.Loader] = {
        harness.OURS: ours,
        USUAL: usual,
        READ_WRITE: lambda path: _limit(path, dtype, sync, 1),
        READ_WRITE_ALL: lambda path: _limit(path, dtype, sync, written.CORES),
    }
    return {name: partial(_written, load, dtype) for name, load in loaders.items()}


def _of_shards(sync: bool) -> dict[str, harness.Loader]:
    return _case(
        lambda path: _ours(path, sync, dtype="bfloat16", max_shard_size=SHARD),
        lambda path: _shards_in_turn(path, sync),
        "bfloat16",
        sync,
    )


WARM, COLD = "float32 shards to bf16", "the same, cold and with fsync"
CASES: harness.Cases = {
    WARM: _of_shards(sync=False),
    COLD: _of_shards(sync=True),
    ".pt to safetensors": _case(lambda path: _ours(path, False), _torch, None, sync=False),
    "GGUF to bf16": _case(
        lambda path: _ours(path, False, dtype="bfloat16", rename="hf"), _gguf_py, "bfloat16", sync=False
    ),
}


def measure(folder: Path, small: bool) -> Report:
    """Time conversions, and take the memory of ours and of the usual way."""
    real = Path(os.environ.get("MAX_WEIGHTS_MODELS", ".models")) / gguf_pretrained.FILE
    if not real.exists():
        raise harness.BenchError(f"{real} is missing: fetch it with `python tools/get_models.py {real.parent}`")
    packed = folder / real.name
    if not packed.exists():
        packed.symlink_to(real.resolve())
    bench, effort = Path(__file__), harness.QUICK if small else ROUNDS
    shards, torch_file = make(folder, small), torch_files.make(folder, small)
    columns, samples, targets, memory = [], {}, [], {}
    for (case, loaders), path in zip(CASES.items(), (shards, shards, torch_file, packed), strict=True):
        timings = harness.alternate(bench, case, loaders, path, effort=effort, cold=case == COLD and not small)
        samples[case] = {loader: timing.seconds for loader, timing in timings.items()}
        values = {loader: timing.median for loader, timing in timings.items()}
        columns.append(Column(case, "ms", values))
        targets.append(
            Target(f"{case}: ours ÷ {READ_WRITE}", values[harness.OURS] / values[READ_WRITE], 1.2, "at most")
        )
        if case != COLD:
            found = harness.peak_memory(bench, case, [harness.OURS, USUAL], path, runs=1)
            memory[case] = {loader: float(one.peak) for loader, one in found.items()}
        written.remove(_to(path))
    for case, values in memory.items():
        columns.append(Column(f"{case}, peak memory", "MB", values, charted=False))
        targets.append(Target(f"{case}: peak memory", values[harness.OURS] / 1e6, MEMORY / 1e6, "at most", "MB"))
    moved = sum(file.stat().st_size for file in rivals.shards(shards)) / 1e9
    return Report(
        "converting",
        columns,
        targets=tuple(targets),
        limits=frozenset(LIMITS),
        notes=(
            f"`weights.save`, with `sync=True` in the fsync column. The shards have {moved:.2f} GB, the PyTorch file "
            "has the tensors of a, and the GGUF file is SmolLM2: 98 MB, whose tensors take 269 MB as bf16. *The "
            "usual calls* are `load_file`, `.to(bfloat16)` and `save_file` for each shard; `torch.load(mmap=True)` "
            "and `save_file`; `gguf.dequantize` for each tensor and `save_file`. Memory is what the call adds after "
            "the imports, with reclaimable pages of mapped files.",
        ),
        samples=samples,
    )
