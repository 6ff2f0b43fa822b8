"""The loaders that are measured, ours and others', and the least that the machine needs for the same bytes.

A loader is prepared in a process of its own, where it imports what it needs, and returns the function that is timed.
The result of that function is held until the clock has stopped.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

__all__ = ["LOADERS", "OURS", "OWN", "PACKAGES", "Loader", "chosen", "touch"]

Run = Callable[[], object]
Prepare = Callable[[list[str]], Run]
"""Ours take the paths as they were given, the others the files that these stand for."""

PAGE = 4096
BLOCK = 1 << 20
POPULATE_READ = 22  # MADV_POPULATE_READ, Linux 5.14; Python has no name for it

OURS, OWN = "max_weights", "max_weights, copy=True"
PACKAGES = {
    "safetensors": "safetensors",
    "torch": "torch",
    "gguf": "gguf",
    "runai": "runai-model-streamer",
    "fastsafetensors": "fastsafetensors",
}
"""The names that `against` accepts, and the packages that have to be installed for them."""


@dataclass(frozen=True)
class Loader:
    """One row: the loader, its formats, and its package (a name of `PACKAGES`; "" for ours, "limit")."""

    prepare: Prepare
    formats: frozenset[str]
    of: str = ""
    copies: bool = False  # into memory of its own, as large as the checkpoint


class Answer(TypedDict, total=False):
    """What a worker measured: each kind of request fills the entries that it is about."""

    seconds: float
    peak: int
    """Bytes of memory, as `device_peak` and `host_peak`."""
    read: int
    """Bytes read from the disk."""
    device_peak: int
    host_peak: int
    wrong: str
    """What differs from the file; "" if nothing does."""
    failed: str


class Row(Protocol):
    """A loader of the CPU or of a device, as far as it is chosen by it."""

    @property
    def formats(self) -> frozenset[str]: ...
    @property
    def of(self) -> str: ...


def touch(result: object) -> int:
    """Read one byte of every page of all arrays and tensors in the result of a loader."""
    if result is None:
        return 0
    if isinstance(result, Mapping):
        return sum(map(touch, result.values()))
    if isinstance(result, list | tuple):
        return sum(map(touch, result))
    return int(array[::PAGE].sum()) if (array := _bytes_of(result)) is not None else 0


def _bytes_of(value: Any) -> Any:
    import numpy as np

    if hasattr(value, "untyped_storage"):
        import torch

        value = value.detach().reshape(-1).view(torch.uint8).numpy()
    elif type(value).__module__.startswith("max_weights"):
        value = np.asarray((value if value.shape else value.view(value.dtype, (1,))).contiguous().view("uint8"))
    return value.reshape(-1).view(np.uint8) if isinstance(value, np.ndarray) else None


def _ours(paths: list[str]) -> Run:
    from max_weights._weights import load_weights

    return lambda: load_weights(paths).load(packed="keep")


def _views(paths: list[str]) -> Run:
    from max_weights._weights import load_weights

    def run() -> object:
        weights = load_weights(paths)
        return {name: node.data().data for name, node in weights.items()}

    return run


def _own(paths: list[str]) -> Run:
    from max_weights._weights import load_weights

    return lambda: load_weights(paths).load(packed="keep", copy=True)


def _safetensors_torch(files: list[str]) -> Run:
    from safetensors.torch import load_file

    return lambda: [load_file(file) for file in files]


def _safetensors_numpy(files: list[str]) -> Run:
    import importlib.util

    from safetensors.numpy import load_file

    if importlib.util.find_spec("ml_dtypes"):
        import ml_dtypes  # noqa: F401 (with it, bfloat16 is a NumPy dtype)
    return lambda: [load_file(file) for file in files]


def _torch(files: list[str], mapped: bool) -> Run:
    import torch

    return lambda: [torch.load(file, map_location="cpu", mmap=mapped, weights_only=True) for file in files]


def _gguf(files: list[str]) -> Run:
    from gguf import GGUFReader

    return lambda: [tensor.data for file in files for tensor in GGUFReader(file).tensors]


def _runai(files: list[str]) -> Run:
    from runai_model_streamer import SafetensorsStreamer

    def run() -> object:
        with SafetensorsStreamer() as streamer:
            streamer.stream_files(files)
            return dict(streamer.get_tensors())

    return run


def _fastsafetensors(files: list[str]) -> Run:
    from fastsafetensors import fastsafe_open

    def run() -> object:
        with fastsafe_open(files, device="cpu", nogds=True) as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a mapping)

    return run


def _sequential(files: list[str]) -> Run:
    block = bytearray(BLOCK)

    def run() -> None:
        for file in files:
            with open(file, "rb", buffering=0) as opened:
                while opened.readinto(block):
                    pass

    return run


def _populate(files: list[str]) -> Run:
    libc = ctypes.CDLL(None, use_errno=True)

    def run() -> list[mmap.mmap]:
        mappings = []
        for file in files:
            with open(file, "rb") as opened:
                mapping = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
            address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
            for start in range(0, len(mapping), BLOCK):
                size = ctypes.c_size_t(min(BLOCK, len(mapping) - start))
                if libc.madvise(ctypes.c_void_p(address + start), size, POPULATE_READ):
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), file)
            mappings.append(mapping)
        return mappings

    return run


def _of(*formats: str) -> frozenset[str]:
    return frozenset(formats)


_ALL = _of("safetensors", "gguf", "pytorch")
LOADERS: dict[str, Loader] = {
    OURS: Loader(_ours, _ALL),
    "max_weights, lazy views": Loader(_views, _ALL),
    OWN: Loader(_own, _ALL, copies=True),
    "safetensors.torch": Loader(_safetensors_torch, _of("safetensors"), "safetensors"),
    "safetensors.numpy": Loader(_safetensors_numpy, _of("safetensors"), "safetensors", copies=True),
    "torch.load(mmap=True)": Loader(lambda files: _torch(files, True), _of("pytorch"), "torch"),
    "torch.load": Loader(lambda files: _torch(files, False), _of("pytorch"), "torch", copies=True),
    "gguf.GGUFReader": Loader(_gguf, _of("gguf"), "gguf"),
    "runai streamer": Loader(_runai, _of("safetensors"), "runai", copies=True),
    "fastsafetensors": Loader(_fastsafetensors, _of("safetensors"), "fastsafetensors", copies=True),
    "sequential read": Loader(_sequential, _ALL, "limit"),
    "populate the mapping": Loader(_populate, _ALL, "limit"),
}


def chosen(form: str, names: Iterable[str], loaders: Mapping[str, Row] = LOADERS) -> list[str]:
    """Return the rows for a file of this format: ours, those of the named packages, and the limits."""
    packages = {"", "limit", *names}
    return [name for name, loader in loaders.items() if form in loader.formats and loader.of in packages]
