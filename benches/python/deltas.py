"""Write, open and apply deltas of a bfloat16 checkpoint, in each dialect, compared with other libraries' codecs.

DELTA_GB is the size of the checkpoint; 2 % of its elements change, half of them scattered and half in runs. Rivals are
those of `delta_codecs`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import harness
from delta_codecs import CODECS
from report import Column, Report, Target

if TYPE_CHECKING:
    import numpy as np

TITLE = "Deltas"
RIVALS = {
    "xor": "NumPy XOR, zstandard, xxhash",
    "overwrite": "NumPy places and bytes, zstandard, xxhash",
    "sparse": "NumPy gaps and values",
}
OWN = {dialect: f"{harness.OURS}, {dialect}" for dialect in RIVALS}
FILE = f"{harness.OURS}, the base a file"
FILES = f"{harness.OURS}, two files"
READ = "load_weights of the base alone"
COPY = "torch: copy_ of all tensors"
ROWS = 4096
RATE = 0.02
CHAIN = 20
ROUNDS = harness.Effort(least=3, most=7, seconds=30.0)
ENCODE, OPEN, OVERLAYS, APPLY = "encode", f"open {CHAIN} deltas", f"read through {CHAIN} deltas", "apply to memory"


def make(folder: Path, gigabytes: float) -> Path:
    """Write a base, the next version, and a chain of deltas."""
    import numpy as np

    from max_weights import delta, load_weights, save_file

    if (folder / "ready").exists():
        return folder
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(0)
    count = max(1, round(gigabytes * 1e9 / (2 * ROWS * ROWS)))
    rows = min(ROWS, max(64, round(gigabytes * 1e9 / 2 / ROWS)))

    def next_version(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        for tensor in tensors.values():
            codes = tensor.reshape(-1)
            codes[random.random(codes.size, np.float32) < RATE / 2] += 1
            for start in random.integers(0, codes.size - 256, int(codes.size * RATE / 2 / 256)):
                codes[start : start + 256] += 1
        return tensors

    def save(tensors: dict[str, np.ndarray], path: Path) -> None:
        import torch

        save_file({name: torch.from_numpy(tensor).view(torch.bfloat16) for name, tensor in tensors.items()}, path)

    def draw() -> np.ndarray:
        return (random.standard_normal((rows, ROWS), np.float32).view(np.uint32) >> 16).astype(np.uint16)

    tensors = {f"model.layers.{number}.mlp.weight": draw() for number in range(count)}
    save(tensors, folder / "base.safetensors")
    chain = [folder / "base.safetensors"]
    for step in range(1, CHAIN + 1):
        new = folder / ("new.safetensors" if step == 1 else "next.safetensors")
        save(next_version(tensors), new)
        path = folder / f"delta-{step:02}.safetensors"
        delta.create(load_weights(chain), new, path, sync=False)
        chain.append(path)
    (folder / "next.safetensors").unlink(missing_ok=True)
    (folder / "ready").touch()
    return folder


def _chain(folder: Path) -> list[Path]:
    return [folder / "base.safetensors", *sorted(folder.glob("delta-*.safetensors"))]


def _arrays(path: Path) -> dict[str, np.ndarray]:
    import torch

    import max_weights

    tensors = max_weights.load_weights(path).load(framework="torch", copy=True)
    return {name: tensor.view(torch.uint8).reshape(-1).numpy() for name, tensor in tensors.items()}


def _encode(*of_files: str) -> harness.Loader:
    """Encode versions in memory, except the named ones, which are opened files."""

    def load(folder: Path) -> Callable[[], object]:
        from max_weights import delta

        base, new = (_version(folder, name, name in of_files) for name in ("base", "new"))
        return lambda: delta.create(base, new, folder / "out.safetensors", sync=False)

    return load


def _version(folder: Path, name: str, is_file: bool) -> Any:
    from max_weights import load_weights

    weights = load_weights(folder / f"{name}.safetensors")
    return weights if is_file else weights.load(framework="torch", copy=True)


def _own_path(folder: Path, dialect: str) -> Path:
    """The path of this library's delta of a dialect."""
    return folder / ("000001.safetensors" if dialect == "sparse" else f"{dialect}/weight_v000001")


def _encode_dialect(dialect: str) -> harness.Loader:
    def load(folder: Path) -> Callable[[], object]:
        from max_weights import delta

        base, new = _version(folder, "base", False), _version(folder, "new", False)
        path = _own_path(folder, dialect)

        def run() -> object:
            shutil.rmtree(path, ignore_errors=True)
            return delta.create(base, new, path, dialect=dialect, sync=False)  # type: ignore[arg-type]

        return run

    return load


def _encode_rival(dialect: str) -> harness.Loader:
    def load(folder: Path) -> Callable[[], object]:
        base, new = _arrays(folder / "base.safetensors"), _arrays(folder / "new.safetensors")
        return lambda: CODECS[dialect][0](base, new, folder)

    return load


def _open(folder: Path) -> Callable[[], object]:
    from max_weights import load_weights

    paths = _chain(folder)
    return lambda: load_weights(paths)


def _load(folder: Path) -> Callable[[], object]:
    from max_weights import load_weights

    paths = _chain(folder)
    return lambda: load_weights(paths).load(framework="torch", copy=True)


def _load_base(folder: Path) -> Callable[[], object]:
    from max_weights import load_weights

    return lambda: load_weights(folder / "base.safetensors").load(framework="torch", copy=True)


class _Apply:
    """Apply to tensors that are reset to the base before each run."""

    def __init__(self, folder: Path, apply: Callable[[dict[str, object]], object]) -> None:
        import max_weights

        self._base = max_weights.load_weights(folder / "base.safetensors").load(framework="torch")
        self._tensors = {name: tensor.clone() for name, tensor in self._base.items()}
        self._apply = apply

    def before(self) -> None:
        """Restore the base."""
        for name, tensor in self._base.items():
            self._tensors[name].copy_(tensor)

    def __call__(self) -> object:
        """Applies."""
        return self._apply(self._tensors)  # type: ignore[arg-type]


def _apply(folder: Path) -> Callable[[], object]:
    from max_weights import delta

    return _Apply(folder, lambda tensors: delta.apply_into(tensors, folder / "delta-01.safetensors"))


def _apply_copy(folder: Path) -> Callable[[], object]:
    import max_weights

    new = max_weights.load_weights(folder / "new.safetensors").load(framework="torch", copy=True)
    return _Apply(folder, lambda tensors: [tensors[name].copy_(tensor) for name, tensor in new.items()])  # type: ignore[attr-defined]


def _apply_dialect(dialect: str) -> harness.Loader:
    def load(folder: Path) -> Callable[[], object]:
        from max_weights import delta

        _encode_dialect(dialect)(folder)()
        path = _own_path(folder, dialect)
        return _Apply(folder, lambda tensors: delta.apply_into(tensors, path))

    return load


def _apply_rival(dialect: str) -> harness.Loader:
    def load(folder: Path) -> Callable[[], object]:
        import torch

        _encode, apply = CODECS[dialect]
        path = _encode(_arrays(folder / "base.safetensors"), _arrays(folder / "new.safetensors"), folder)

        def run(tensors: dict[str, torch.Tensor]) -> None:
            apply({name: tensor.view(torch.uint8).reshape(-1).numpy() for name, tensor in tensors.items()}, path)

        return _Apply(folder, run)  # type: ignore[arg-type]

    return load


def _sizes(folder: Path) -> dict[str, int]:
    """Return how many bytes each one writes."""
    sizes = {}
    for dialect, (encode, _) in CODECS.items():
        _encode_dialect(dialect)(folder)()
        path = _own_path(folder, dialect)
        files = [path] if path.is_file() else list(path.iterdir())
        sizes[OWN[dialect]] = sum(file.stat().st_size for file in files)
        theirs = encode(_arrays(folder / "base.safetensors"), _arrays(folder / "new.safetensors"), folder)
        sizes[RIVALS[dialect]] = theirs.stat().st_size
    return sizes


CASES: harness.Cases = {
    ENCODE: {
        harness.OURS: _encode(),
        FILE: _encode("base"),
        FILES: _encode("base", "new"),
        **{OWN[dialect]: _encode_dialect(dialect) for dialect in RIVALS},
        **{RIVALS[dialect]: _encode_rival(dialect) for dialect in RIVALS},
    },
    APPLY: {
        harness.OURS: _apply,
        **{OWN[dialect]: _apply_dialect(dialect) for dialect in RIVALS},
        **{RIVALS[dialect]: _apply_rival(dialect) for dialect in RIVALS},
        COPY: _apply_copy,
    },
    OPEN: {harness.OURS: _open},
    OVERLAYS: {harness.OURS: _load, READ: _load_base},
}


def measure(folder: Path, small: bool) -> Report:
    """Time all of them, and compare sizes."""
    bench, effort = Path(__file__), harness.QUICK if small else ROUNDS
    gigabytes = 0.004 if small else float(os.environ.get("DELTA_GB", "2"))
    where = make(folder / f"deltas-{gigabytes}", gigabytes)
    total = (where / "base.safetensors").stat().st_size
    columns, samples, values = [], {}, {}
    for case, loaders in CASES.items():
        timings = harness.alternate(bench, case, loaders, where, effort=effort)
        values[case] = {loader: timing.median for loader, timing in timings.items()}
        samples[case] = {loader: timing.seconds for loader, timing in timings.items()}
        columns.append(Column(case, "ms", values[case]))
    own = (where / "delta-01.safetensors").stat().st_size
    sizes = _sizes(where)
    cores = len(os.sched_getaffinity(0))
    speed = {case: total / values[case][harness.OURS] / 1e9 / cores for case in (ENCODE, APPLY)}
    targets = [
        Target("encode, of weights a core", speed[ENCODE], 6, "at least", "GB/s"),
        Target("apply, of weights a core", speed[APPLY], 6, "at least", "GB/s"),
        *(Target(f"size ÷ {name}", own / sizes[name], 1, "at most") for name in RIVALS.values()),
        Target(f"open {CHAIN} deltas", 1e3 * values[OPEN][harness.OURS], 10, "at most", "ms"),
        Target(f"{OVERLAYS} ÷ the base", values[OVERLAYS][harness.OURS] / values[OVERLAYS][READ], 3, "at most"),
        Target("apply to 2 GB", 2e9 / total * values[APPLY][harness.OURS], 0.5, "at most", "s"),
    ]
    percent = {name: f"{100 * size / total:.2f} %" for name, size in {harness.OURS: own, **sizes}.items()}
    return Report(
        "deltas",
        columns,
        targets=tuple(targets),
        notes=(
            f"{total / 1e9:.2f} GB of bfloat16, of which 2 % of the elements change by one step, half of them scattered"
            f" and half in runs of 256. Sizes: {', '.join(f'{name} {size}' for name, size in percent.items())}."
            " max_weights compares every block before and after, the rivals with frames compare checksums after, and"
            " *gaps and values* compares nothing. The rivals use one thread. Both versions are in memory, except in the"
            " rows that name files.",
        ),
        samples=samples,
    )
