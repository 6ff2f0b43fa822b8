"""Load whole checkpoints from a warm page cache: as views whose pages are fetched, copied, and converted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import files
import harness
import limits
import rivals
import torch_files
from report import Column, Report, Target, best

TITLE = "Load a whole checkpoint, warm"
ALONE = f"{harness.OURS}, not touched"
SAME_BYTES = "max_weights, the same number of bytes"
SAME_BYTES_COPIED = "readinto, the same number of bytes"
CONVERTED = "safetensors, torch, .float()"
OWN_NUMPY = f"{rivals.OWN}, to NumPy"
STREAM = "max_weights, stream"
LAYERS = "model.layers.1"  # 1 and 10 to 19, which lie together in a; of the small file, 1
BUDGET = 256 << 20
SMALL_BUDGET = 1 << 20
ROUNDS = harness.Effort(least=5, most=9, seconds=8.0)


def _as_float32(path: Path) -> Callable[[], object]:
    return rivals.ours(path, select=f"{LAYERS}*", dtype="float32", copy=True)


def _twice(path: Path) -> Callable[[], object]:
    """Copy the same layers two times: the total size equals that of the layers in float32."""
    load = rivals.ours(path, select=f"{LAYERS}*", copy=True)
    return lambda: (load(), load())


def _layers(path: Path) -> tuple[int, int]:
    import max_weights

    infos = [info for info in max_weights.infos(max_weights.load_weights(path)) if info.name.startswith(LAYERS)]
    return infos[0].offset, sum(info.bytes for info in infos)


def _read_twice(path: Path) -> Callable[[], object]:
    offset, size = _layers(path)
    memory = memoryview(bytearray(2 * size))
    step = 4 << 20

    def run() -> None:
        with path.open("rb", buffering=0) as file:
            for begin in (0, size):
                file.seek(offset)
                for start in range(begin, begin + size, step):
                    file.readinto(memory[start : min(start + step, begin + size)])

    return run


def _safetensors_float32(path: Path) -> Callable[[], object]:
    from safetensors import safe_open

    def run() -> object:
        with safe_open(path, "pt") as file:
            names = [name for name in file.keys() if name.startswith(LAYERS)]  # noqa: SIM118 (not a mapping)
            return {name: file.get_tensor(name).float() for name in names}

    return run


def _stream(path: Path) -> Callable[[], object]:
    import torch  # noqa: F401

    import max_weights

    budget = SMALL_BUDGET if path.stem.endswith("-small") else BUDGET

    def run() -> int:
        weights: Any = max_weights.load_weights(path)
        total = 0
        for name, tensor in weights.stream(framework="torch", max_memory=budget):
            total += rivals.touch({name: tensor})
            del tensor
        return total

    return run


def _own_numpy(path: Path) -> Callable[[], object]:
    return rivals.ours(path, framework="numpy", copy=True)


_LOADS: dict[str, harness.Loader] = {harness.OURS: rivals.touched(rivals.ours), rivals.OWN: rivals.own}
_RIVALS = {**rivals.RESIDENT, **rivals.COPIES}

CASES: harness.Cases = {
    "a": {**_LOADS, ALONE: rivals.ours, **_RIVALS, **rivals.TORCH_FILES, **limits.MEMORY},
    "b": {**_LOADS, **_RIVALS, **limits.MEMORY},
    "c": {**_LOADS, OWN_NUMPY: _own_numpy, **_RIVALS, rivals.NUMPY: rivals.safetensors_numpy},
    "float32": {
        harness.OURS: _as_float32,
        CONVERTED: _safetensors_float32,
        SAME_BYTES: _twice,
        SAME_BYTES_COPIED: _read_twice,
    },
    "memory": {**_LOADS, **_RIVALS, **rivals.TORCH_FILES},
    "numpy": {
        harness.OURS: lambda path: rivals.ours(path, framework="numpy"),
        OWN_NUMPY: _own_numpy,
        rivals.NUMPY: rivals.safetensors_numpy,
    },
    "stream": {STREAM: _stream},
}


def measure(folder: Path, small: bool) -> Report:
    """Time a, b and c, and 11 layers of a as float32; take the memory of all of a, to NumPy and streamed."""
    bench = Path(__file__)
    effort = harness.QUICK if small else ROUNDS
    a = files.make(folder, "a", small=small)
    b, c = files.make(folder, "b", small=small), files.make(folder, "c", small=small)
    torch_files.make(folder, small)
    columns, samples = [], {}
    for case, path in (("a", a), ("b", b), ("c", c), ("float32", a)):
        label = "11 layers as float32" if case == "float32" else case
        timings = harness.alternate(bench, case, CASES[case], path, effort=effort)
        samples[label] = {loader: timing.seconds for loader, timing in timings.items()}
        columns.append(Column(label, "ms", {loader: timing.median for loader, timing in timings.items()}))
    in_a, in_b, in_c, in_float32 = (column.values for column in columns)
    memory = {}
    for case, label in (("memory", "a"), ("numpy", "a to NumPy"), ("stream", "a streamed")):
        found = harness.peak_memory(bench, case, CASES[case], a, runs=1)
        memory[case] = {loader: float(one.peak) for loader, one in found.items()}
        columns.append(Column(f"{label}, peak memory", "MB", memory[case], charted=False))
    targets = []
    for label, values in (("a", in_a), ("b", in_b)):
        fastest = best(values, [name for name in values if name in rivals.COPIES or name == rivals.TORCH])
        copied = values[rivals.OWN] / values[limits.COPY]
        targets += [
            Target(f"{label}, resident: ours ÷ {fastest}", values[harness.OURS] / values[fastest], 0.15, "at most"),
            Target(f"{label}, own memory: ours ÷ {limits.COPY}", copied, 1.05, "at most"),
        ]
    populated = best(in_a, [limits.PLAIN, limits.POPULATE_8])
    fastest = best(in_c, list(_RIVALS))
    budget = SMALL_BUDGET if small else BUDGET
    half = memory["numpy"][OWN_NUMPY] / memory["numpy"][rivals.NUMPY]
    plain = in_float32[harness.OURS] / in_float32[SAME_BYTES]
    streamed = memory["stream"][STREAM] - budget
    return Report(
        "loading",
        columns,
        targets=(
            *targets,
            Target(f"a, not touched: ours ÷ {populated}", in_a[ALONE] / in_a[populated], 1.2, "at most"),
            Target(f"c, own memory: ours ÷ {fastest}", in_c[rivals.OWN] / in_c[fastest], 0.5, "at most"),
            Target("c, own memory, to NumPy: ours ÷ safetensors", in_c[OWN_NUMPY] / in_c[rivals.NUMPY], 0.5, "at most"),
            Target("as float32: ours ÷ a plain load of as many bytes", plain, 1.1, "at most"),
            Target("bf16 to NumPy, peak memory: ours ÷ safetensors.numpy", half, 0.5, "at most"),
            Target(f"stream: peak memory over the budget of {budget >> 20} MiB", streamed / 1e6, 64.0, "at most", "MB"),
        ),
        limits=frozenset({*limits.MEMORY, SAME_BYTES_COPIED, SAME_BYTES}),
        notes=(
            f"**{harness.OURS}** is `weights.load()`: views of the mapping whose pages are read ahead. One byte of "
            "every mapped 4 KiB page is read, for all loaders; copies are complete when a load ends. torch.load "
            "reads the same tensors from a PyTorch file. Peak memory counts the pages of mapped files.",
        ),
        samples=samples,
    )
