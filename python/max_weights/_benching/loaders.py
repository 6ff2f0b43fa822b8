"""The loaders that are measured, ours and others', and the lower bound of this machine for the same bytes.

A loader is prepared in a separate process, which imports what it needs and returns the function that is timed. Its
result is held until the clock has stopped. To a device, a run ends when the device has everything; each package is
called as its documentation shows for one device.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

__all__ = ["LOADERS", "ON_DEVICE", "OURS", "OWN", "PACKAGES", "PACKAGES_ON_DEVICE", "Loader", "chosen", "touch"]

Run = Callable[[], object]
Prepare = Callable[[list[str], "int | None"], Run]
"""Called with the paths and the number of the device, or `None` for host memory. Ours take the paths as given, the
others the files behind them."""

PAGE = 4096
BLOCK = 1 << 20
POPULATE_READ = 22  # MADV_POPULATE_READ, Linux 5.14; Python has no name for it

OURS, OWN = "max_weights", "max_weights, copy=True"
_RIVALS = {"runai": "runai-model-streamer", "fastsafetensors": "fastsafetensors"}
PACKAGES = {"safetensors": "safetensors", "torch": "torch", "gguf": "gguf", **_RIVALS}
"""The names that `against` accepts, and the packages that have to be installed for them."""
PACKAGES_ON_DEVICE = {"safetensors": "safetensors", "torch": "torch", "instanttensor": "instanttensor", **_RIVALS}
"""The same names and packages, for a device."""


@dataclass(frozen=True)
class Loader:
    """One row: the loader, its formats, and its package: a name of `PACKAGES`; "" for ours, "limit".

    Our rows with a dtype are "conversion", and are measured only if they are named.
    """

    prepare: Prepare
    formats: frozenset[str]
    of: str = ""
    copies: bool = False  # loads into a copy, as large as the checkpoint
    dtype: str = ""  # the dtype that it converts to


class Answer(TypedDict, total=False):
    """The measurements of a worker: each kind of request fills its entries."""

    seconds: float
    peak: int
    """Bytes of memory, as `device_peak` and `host_peak`."""
    read: int
    """Bytes read from the disk."""
    device_peak: int
    host_peak: int
    wrong: str
    """The first difference from the file; "" if there is none."""
    failed: str


def proc(file: str, name: str) -> int:
    """Return a number that the system lists by its name."""
    fields = dict(line.split(":", 1) for line in Path("/proc", file).read_text(encoding="ascii").splitlines())
    return int(fields[name].split()[0])


def available_memory() -> int:
    return proc("meminfo", "MemAvailable") * 1024


def read_bytes() -> int:
    """Bytes that this process has read from the disk; 0 if it is not allowed to know."""
    with suppress(OSError):
        return proc("self/io", "read_bytes")
    return 0


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


def _ours(paths: list[str], index: int | None, **options: Any) -> Run:
    import max_weights._loading  # noqa: F401 (what a first call imports)
    from max_weights._weights import load_weights

    options = (options or {"packed": "keep"}) | ({} if index is None else {"device": f"cuda:{index}"})
    return lambda: load_weights(paths).load(**options)


def _views(paths: list[str], _index: int | None) -> Run:
    from max_weights._weights import load_weights

    return lambda: {name: node.data().data for name, node in load_weights(paths).items()}


def _load_file(paths: list[str], index: int | None) -> Run:
    import max_weights._loading  # noqa: F401
    from max_weights.torch import load_file

    device = _torch(index)
    return lambda: load_file(paths, device=device, packed="keep")


def _stream(paths: list[str], index: int | None) -> Run:
    import max_weights._streaming  # noqa: F401
    from max_weights._weights import load_weights

    return lambda: dict(load_weights(paths).stream(device=f"cuda:{index}", packed="keep"))


def _torch(index: int | None) -> str:
    """Import torch and start its allocator; return the name of the device."""
    import torch

    device = "cpu" if index is None else f"cuda:{index}"
    torch.zeros(1, device=device)
    return device


def _merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return parts[0] if len(parts) == 1 else {name: one for part in parts for name, one in part.items()}


def _safetensors(files: list[str], index: int | None) -> Run:
    from safetensors.torch import load_file

    device = _torch(index)
    return lambda: _merged([load_file(file, device=device) for file in files])


def _safetensors_numpy(files: list[str], _index: int | None) -> Run:
    import importlib.util

    from safetensors.numpy import load_file

    if importlib.util.find_spec("ml_dtypes"):
        import ml_dtypes  # noqa: F401 (with it, bfloat16 is a NumPy dtype)
    return lambda: [load_file(file) for file in files]


def _prefetch(files: list[str], index: int | None) -> Run:
    import safetensors

    safe_open: Any = safetensors.safe_open
    if not hasattr(safe_open, "prefetch"):
        raise ImportError(f"safetensors {safetensors.__version__} has no prefetch; 0.9.0rc1 has it")
    device = _torch(index)

    def run() -> object:
        opened = [safe_open(file, framework="pt", device=device) for file in files]
        return _merged([dict(loader) for loader in [file.prefetch() for file in opened]])

    return run


def _torch_load(files: list[str], index: int | None, mapped: bool = False) -> Run:
    import torch

    _torch(index)

    def run() -> object:
        parts = [torch.load(file, map_location="cpu", mmap=mapped, weights_only=True) for file in files]
        if index is None:
            return parts
        return {name: value.cuda(index) if hasattr(value, "cuda") else value for name, value in _merged(parts).items()}

    return run


def _gguf(files: list[str], _index: int | None) -> Run:
    from gguf import GGUFReader

    return lambda: [tensor.data for file in files for tensor in GGUFReader(file).tensors]


def _instanttensor(files: list[str], index: int | None) -> Run:
    import instanttensor

    _torch(index)

    def run() -> object:
        with instanttensor.safe_open(list(files), framework="pt", device=index) as opened:
            return dict(opened.tensors())

    return run


def _runai(files: list[str], index: int | None) -> Run:
    from runai_model_streamer import SafetensorsStreamer

    device = _torch(index)

    def run() -> object:
        with SafetensorsStreamer() as streamer:
            if index is None:
                streamer.stream_files(files)
                return dict(streamer.get_tensors())
            streamer.stream_files(files, device=device)
            return {name: tensor.to(device) for name, tensor in streamer.get_tensors()}

    return run


def _fastsafetensors(files: list[str], index: int | None) -> Run:
    from fastsafetensors import fastsafe_open

    device = _torch(index)
    nogds = index is None or not Path("/dev/nvidia-fs0").exists()  # GPUDirect Storage

    def run() -> object:
        with fastsafe_open(files, device=device, nogds=nogds) as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a mapping)

    return run


def _sequential(files: list[str], _index: int | None) -> Run:
    block = bytearray(BLOCK)

    def run() -> None:
        for file in files:
            with open(file, "rb", buffering=0) as opened:
                while opened.readinto(block):
                    pass

    return run


def _populate(files: list[str], _index: int | None) -> Run:
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


def _link(files: list[str], index: int | None) -> Run:
    from max_weights._benching.cuda import Driver

    return Driver(index or 0).pinned_copier(sum(os.stat(file).st_size for file in files))


def _link_by_torch(files: list[str], index: int | None) -> Run:
    import torch

    size, piece = sum(os.stat(file).st_size for file in files), 256 << 20
    source = torch.ones(piece, dtype=torch.uint8).pin_memory()
    target = torch.empty(piece, dtype=torch.uint8, device=_torch(index))

    def run() -> None:
        for start in range(0, size, piece):
            count = min(piece, size - start)
            target[:count].copy_(source[:count], non_blocking=True)

    return run


_SAFETENSORS, _PYTORCH, _GGUF = (frozenset([kind]) for kind in ("safetensors", "pytorch", "gguf"))
_CONVERTED = ("float32", "bfloat16")
_ALL = _SAFETENSORS | _PYTORCH | _GGUF
LOADERS: dict[str, Loader] = {
    OURS: Loader(_ours, _ALL),
    "max_weights, lazy views": Loader(_views, _ALL),
    OWN: Loader(partial(_ours, packed="keep", copy=True), _ALL, copies=True),
    "safetensors.torch": Loader(_safetensors, _SAFETENSORS, "safetensors"),
    "safetensors.numpy": Loader(_safetensors_numpy, _SAFETENSORS, "safetensors", copies=True),
    "torch.load(mmap=True)": Loader(partial(_torch_load, mapped=True), _PYTORCH, "torch"),
    "torch.load": Loader(_torch_load, _PYTORCH, "torch", copies=True),
    "gguf.GGUFReader": Loader(_gguf, _GGUF, "gguf"),
    "runai streamer": Loader(_runai, _SAFETENSORS, "runai", copies=True),
    "fastsafetensors": Loader(_fastsafetensors, _SAFETENSORS, "fastsafetensors", copies=True),
    "sequential read": Loader(_sequential, _ALL, "limit"),
    "populate the mapping": Loader(_populate, _ALL, "limit"),
}
ON_DEVICE: dict[str, Loader] = {
    OURS: Loader(_ours, _ALL),
    "max_weights.torch.load_file": Loader(_load_file, _ALL),
    "max_weights, stream": Loader(_stream, _ALL),
    "safetensors.torch": Loader(_safetensors, _SAFETENSORS, "safetensors"),
    "safetensors, prefetch": Loader(_prefetch, _SAFETENSORS, "safetensors"),
    "instanttensor": Loader(_instanttensor, _SAFETENSORS, "instanttensor"),
    "runai streamer": Loader(_runai, _SAFETENSORS, "runai"),
    "fastsafetensors": Loader(_fastsafetensors, _SAFETENSORS, "fastsafetensors"),
    "torch.load, .cuda()": Loader(_torch_load, _PYTORCH, "torch"),
    **{
        f"{OURS}, {to}": Loader(partial(_ours, dtype=to), _ALL, "conversion", dtype=to)
        for to in ("float32", "bfloat16")
    },
    "pinned copies": Loader(_link, _ALL, "limit"),
    "pinned copies by torch": Loader(_link_by_torch, _ALL, "limit"),
}


def chosen(form: str, names: Iterable[str], loaders: Mapping[str, Loader]) -> list[str]:
    """Return the rows for a file of this format: ours, those of the named packages, and the limits."""
    packages = {"", "limit", *names}
    return [name for name, loader in loaders.items() if form in loader.formats and loader.of in packages]
