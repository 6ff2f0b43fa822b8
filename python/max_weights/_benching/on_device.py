"""The loaders to a device: ours, others', and the least that its link needs for the same bytes.

A run ends when the device has everything. The rows depend on the format and on the installed packages; each package is
called as its documentation shows for one device.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from max_weights._benching.cuda import Driver
from max_weights._benching.loaders import Run
from max_weights._core import infos, shown

if TYPE_CHECKING:
    from types import ModuleType

    from torch import Tensor

    from max_weights._benching.loaders import Answer

__all__ = ["LOADERS", "OURS", "PACKAGES", "DeviceLoader", "DeviceRun"]

Prepare = Callable[[list[str], int], Run]
"""Called with the files and the number of the device."""

OURS, LINK = "max_weights", "pinned copies"
PACKAGES = {
    "safetensors": "safetensors",
    "torch": "torch",
    "instanttensor": "instanttensor",
    "runai": "runai-model-streamer",
    "fastsafetensors": "fastsafetensors",
}
"""The names that `against` accepts, and the packages that have to be installed for them."""
SAMPLES = 8
"""How many tensors of a result are compared with the file, including the first and the last."""
SAMPLED = 1 << 20
"""The most bytes that are compared at either end of a tensor."""
POLL = 0.002


@dataclass(frozen=True)
class DeviceLoader:
    """One row: the loader, its formats, and its package: a name of `PACKAGES`; "" for ours, "limit".

    Ours with a dtype are "conversion", and are measured if they are asked for by name.
    """

    prepare: Prepare
    formats: frozenset[str]
    of: str = ""
    dtype: str = ""  # the dtype that it converts to


def _ours(paths: list[str], index: int, **options: Any) -> Run:
    import max_weights._loading  # noqa: F401 (what a first call imports)
    from max_weights._weights import load_weights

    options = options or {"packed": "keep"}
    return lambda: load_weights(paths).load(device=f"cuda:{index}", **options)


def _load_file(paths: list[str], index: int) -> Run:
    import max_weights._loading  # noqa: F401
    from max_weights.torch import load_file

    _torch(index)
    return lambda: load_file(paths, device=index, packed="keep")


def _stream(paths: list[str], index: int) -> Run:
    import max_weights._streaming  # noqa: F401
    from max_weights._weights import load_weights

    def run() -> object:
        weights = load_weights(paths)
        return dict(weights.stream(device=f"cuda:{index}", packed="keep"))

    return run


def _torch(index: int) -> ModuleType:
    import torch

    torch.zeros(1, device=f"cuda:{index}")  # starts its allocator
    return torch


def _safetensors(files: list[str], index: int) -> Run:
    from safetensors.torch import load_file

    _torch(index)
    return lambda: {name: one for file in files for name, one in load_file(file, device=f"cuda:{index}").items()}


def _prefetch(files: list[str], index: int) -> Run:
    import safetensors

    safe_open: Any = safetensors.safe_open
    if not hasattr(safe_open, "prefetch"):
        raise ImportError(f"safetensors {safetensors.__version__} has no prefetch; 0.9.0rc1 has it")
    _torch(index)

    def run() -> object:
        tensors: dict[str, Tensor] = {}
        opened = [safe_open(file, framework="pt", device=f"cuda:{index}") for file in files]
        loaders = [file.prefetch() for file in opened]
        for loader in loaders:
            tensors.update(loader)
        return tensors

    return run


def _instanttensor(files: list[str], index: int) -> Run:
    import instanttensor

    _torch(index)

    def run() -> object:
        with instanttensor.safe_open(list(files), framework="pt", device=index) as opened:
            return dict(opened.tensors())

    return run


def _runai(files: list[str], index: int) -> Run:
    from runai_model_streamer import SafetensorsStreamer

    _torch(index)

    def run() -> object:
        with SafetensorsStreamer() as streamer:
            streamer.stream_files(files, device=f"cuda:{index}")
            return {name: tensor.to(f"cuda:{index}") for name, tensor in streamer.get_tensors()}

    return run


def _fastsafetensors(files: list[str], index: int) -> Run:
    from fastsafetensors import fastsafe_open

    _torch(index)
    nogds = not Path("/dev/nvidia-fs0").exists()  # GPUDirect Storage

    def run() -> object:
        with fastsafe_open(files, device=f"cuda:{index}", nogds=nogds) as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a mapping)

    return run


def _torch_load(files: list[str], index: int) -> Run:
    torch = _torch(index)

    def run() -> object:
        tensors: dict[str, Tensor] = {}
        for file in files:
            tensors.update(torch.load(file, map_location="cpu", weights_only=True))
        return {name: value.cuda(index) if hasattr(value, "cuda") else value for name, value in tensors.items()}

    return run


def _link(files: list[str], index: int) -> Run:
    return Driver(index).pinned_copier(sum(os.stat(file).st_size for file in files))


def _link_by_torch(files: list[str], index: int) -> Run:
    torch = _torch(index)
    size, piece = sum(os.stat(file).st_size for file in files), 256 << 20
    source = torch.ones(piece, dtype=torch.uint8).pin_memory()
    target = torch.empty(piece, dtype=torch.uint8, device=f"cuda:{index}")

    def run() -> None:
        for start in range(0, size, piece):
            count = min(piece, size - start)
            target[:count].copy_(source[:count], non_blocking=True)

    return run


def _of(*formats: str) -> frozenset[str]:
    return frozenset(formats)


_ALL = _of("safetensors", "gguf", "pytorch")


def _converting(dtype: str) -> DeviceLoader:
    return DeviceLoader(lambda files, index: _ours(files, index, dtype=dtype), _ALL, "conversion", dtype)


LOADERS: dict[str, DeviceLoader] = {
    OURS: DeviceLoader(_ours, _ALL),
    "max_weights.torch.load_file": DeviceLoader(_load_file, _ALL),
    "max_weights, stream": DeviceLoader(_stream, _ALL),
    "safetensors.torch": DeviceLoader(_safetensors, _of("safetensors"), "safetensors"),
    "safetensors, prefetch": DeviceLoader(_prefetch, _of("safetensors"), "safetensors"),
    "instanttensor": DeviceLoader(_instanttensor, _of("safetensors"), "instanttensor"),
    "runai streamer": DeviceLoader(_runai, _of("safetensors"), "runai"),
    "fastsafetensors": DeviceLoader(_fastsafetensors, _of("safetensors"), "fastsafetensors"),
    "torch.load, .cuda()": DeviceLoader(_torch_load, _of("pytorch"), "torch"),
    **{f"{OURS}, {dtype}": _converting(dtype) for dtype in ("float32", "bfloat16")},
    LINK: DeviceLoader(_link, _ALL, "limit"),
    "pinned copies by torch": DeviceLoader(_link_by_torch, _ALL, "limit"),
}


class DeviceRun:
    """One loader, prepared in this process.

    Args:
        loader: A name of `LOADERS`.
        paths: The checkpoint: paths as given for ours, the files for the others.
        index: The number of the device.
    """

    def __init__(self, loader: str, paths: list[str], index: int) -> None:
        self._driver, self._paths = Driver(index), paths
        self._result: object = None
        self._dtype = LOADERS[loader].dtype or None
        self._run = LOADERS[loader].prepare(paths, index)

    def answer(self, request: str) -> Answer:
        """Answer a request, and return what was measured: the seconds of one run, and the bytes read from the disk.

        "checked" compares the tensors on the device with the file, after the clock has stopped. "memory" reports how
        much memory the device and the host used meanwhile; measuring that takes some of the time.
        """
        gc.collect()
        self._driver.synchronize()
        try:
            answer = self._memory() if request == "memory" else self._timed()
            if request == "checked":
                answer["wrong"] = self._wrong()
            return answer
        finally:
            self._result = None

    def _timed(self) -> Answer:
        read = _read_bytes()
        start = time.perf_counter()
        self._result = self._run()
        self._driver.synchronize()
        return {"seconds": time.perf_counter() - start, "read": _read_bytes() - read}

    def _memory(self) -> Answer:
        device, host, ended = [self._driver.memory()[0]], [_available()], threading.Event()

        def poll() -> None:
            driver = Driver(self._driver.index)
            while not ended.wait(POLL):
                device.append(driver.memory()[0])
                host.append(_available())

        thread = threading.Thread(target=poll)
        thread.start()
        try:
            answer = self._timed()
        finally:
            ended.set()
            thread.join()
        device.append(self._driver.memory()[0])  # memory taken between two looks is still in use
        host.append(_available())
        return {**answer, "device_peak": device[0] - min(device), "host_peak": max(0, host[0] - min(host))}

    def _wrong(self) -> str:
        """Return the first of some tensors whose bytes differ from the file; "" if all are equal or none exist."""
        if not isinstance(self._result, Mapping):
            return ""
        from max_weights._weights import load_weights

        weights = load_weights(self._paths)
        names = [info.name for info in infos(weights) if info.bytes]
        if missing := [name for name in names if name not in self._result]:
            return f"'{shown(missing[0])}' and {len(missing) - 1} more did not arrive"
        step = max(1, len(names) // SAMPLES)
        for name in [*names[::step], names[-1]]:
            expected = weights.load(name, packed=self._dtype is None, dtype=self._dtype)[name]
            if _ends(expected) != _ends(self._result[name]):
                return f"'{shown(name)}' is not what the file has"
        return ""


def _ends(tensor: Any) -> tuple[bytes, bytes]:
    """Return the first and last bytes of a Buffer or a torch tensor."""
    if hasattr(tensor, "untyped_storage"):
        import torch

        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        return bytes(flat[:SAMPLED].cpu().numpy()), bytes(flat[-SAMPLED:].cpu().numpy())
    flat = tensor.view("uint8", [tensor.nbytes])
    return bytes(flat[:SAMPLED].to("cpu").to_numpy()), bytes(flat[-SAMPLED:].to("cpu").to_numpy())


def _available() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) * 1024
    return 0


def _read_bytes() -> int:
    with suppress(OSError):
        for line in Path("/proc/self/io").read_text().splitlines():
            if line.startswith("read_bytes"):
                return int(line.split()[1])
    return 0
