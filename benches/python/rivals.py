"""The compared loaders of whole checkpoints: ours, and those of other packages, until every page is read.

Each takes a safetensors file or a folder of them, and returns a mapping of tensors; its imports are not timed.
`touched` is for loaders that return before any byte is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from harness import Loader, other_version

CANDIDATE: Final = "safetensors-0.9.0rc1"
"""The release candidate, in addition to the installed release; the Makefile, which installs it, names it too."""
NEXT: Final = CANDIDATE.replace("-", " ")

OWN: Final = "max_weights, copy=True"
MAPPED: Final = "safetensors, torch"
MAPPED_NEXT: Final = f"{NEXT}, torch"
PREAD: Final = "safetensors, torch, pread"
PREAD_NEXT: Final = f"{NEXT}, torch, pread"
NUMPY: Final = "safetensors, NumPy"
RUNAI: Final = "runai streamer"
FAST: Final = "fastsafetensors"
TORCH: Final = "torch.load"
TORCH_MAPPED: Final = "torch.load(mmap=True)"


def shards(path: Path) -> list[Path]:
    """The safetensors files of a checkpoint."""
    return [path] if path.is_file() else sorted(path.glob("*.safetensors"))


def touch(tensors: Mapping[str, Any]) -> int:
    """Read one byte of every 4 KiB page of torch tensors: what their first use costs beyond the load.

    Tensors smaller than a page are skipped: iterating over 50,000 of them would dominate the time.
    """
    import torch

    total = 0
    for tensor in tensors.values():
        if tensor.nbytes >= 4096:
            total += int(tensor.reshape(-1).view(torch.uint8).numpy()[::4096].sum())
    return total


def touched(load: Callable[[Path], Callable[[], Any]]) -> Loader:
    """A loader of torch tensors, with their pages touched."""

    def prepare(path: Path) -> Callable[[], object]:
        run = load(path)

        def both() -> object:
            tensors = run()
            touch(tensors)
            return tensors

        return both

    return prepare


def ours(path: Path, **options: Any) -> Callable[[], Any]:
    """`weights.load`: views with prefetched pages, unless the options say otherwise."""
    if options.setdefault("framework", "torch") == "torch":
        import torch  # noqa: F401 (imported before the clock runs, for each loader alike)

    import max_weights

    return lambda: max_weights.load_weights(path).load(**options)


def own(path: Path) -> Callable[[], object]:
    """`weights.load(copy=True)`: copies."""
    return touched(lambda path: ours(path, copy=True))(path)


def safetensors_torch(path: Path, backend: str = "mmap") -> Callable[[], Any]:
    """Load each file by `safetensors.torch.load_file`."""
    from safetensors.torch import load_file

    return lambda: {name: tensor for file in shards(path) for name, tensor in load_file(file, backend=backend).items()}


def safetensors_numpy(path: Path) -> Callable[[], Any]:
    """Load each file by `safetensors.numpy.load_file`."""
    import ml_dtypes  # noqa: F401 (without it, bfloat16 is no NumPy dtype)
    from safetensors.numpy import load_file

    return lambda: {name: array for file in shards(path) for name, array in load_file(file).items()}


def runai(path: Path) -> Callable[[], Any]:
    """Load all files by runai-model-streamer, with its defaults; the caller owns the yielded tensors."""
    from runai_model_streamer import SafetensorsStreamer

    def run() -> dict[str, Any]:
        with SafetensorsStreamer() as streamer:
            streamer.stream_files([str(file) for file in shards(path)])
            return dict(streamer.get_tensors())

    return run


def fastsafetensors(path: Path) -> Callable[[], Any]:
    """Load all files by fastsafetensors to the CPU, without GPUDirect Storage."""
    from fastsafetensors import fastsafe_open

    def run() -> dict[str, Any]:
        with fastsafe_open([str(file) for file in shards(path)], device="cpu", nogds=True) as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a mapping)

    return run


def torch_file(path: Path) -> Path:
    """Return the path of the same tensors as written by `torch.save`, next to a safetensors file."""
    return path.with_suffix(".pt")


def torch_load(path: Path, mmap: bool = False) -> Callable[[], Any]:
    """Load `torch_file(path)` by torch itself."""
    import torch

    file = torch_file(path)
    return lambda: torch.load(file, mmap=mmap, weights_only=True)


def _pread(path: Path) -> Callable[[], Any]:
    return safetensors_torch(path, "pread")


RESIDENT: Final[dict[str, Loader]] = {
    MAPPED: touched(safetensors_torch),
    MAPPED_NEXT: other_version(CANDIDATE, touched(safetensors_torch)),
}
"""Loaders that map the file, which is read on first touch."""

COPIES: Final[dict[str, Loader]] = {
    PREAD: touched(_pread),
    PREAD_NEXT: other_version(CANDIDATE, touched(_pread)),
    RUNAI: touched(runai),
    FAST: touched(fastsafetensors),
}
"""Loaders that read it into allocated memory."""

TORCH_FILES: Final[dict[str, Loader]] = {
    TORCH_MAPPED: touched(lambda path: torch_load(path, mmap=True)),
    TORCH: touched(torch_load),
}
"""torch itself, over the same tensors in its own format."""
