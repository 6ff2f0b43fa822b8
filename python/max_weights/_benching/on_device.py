"""One loader to a device, in a separate process: the time of a run, and whether the tensors equal the file's."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from max_weights._benching.cuda import Driver
from max_weights._benching.loaders import ON_DEVICE, available_memory, read_bytes
from max_weights._core import escape, infos

if TYPE_CHECKING:
    from max_weights._benching.loaders import Answer

__all__ = ["DeviceRun"]

SAMPLES = 8
"""How many tensors of a result are compared with the file, including the first and the last."""
SAMPLED = 1 << 20
"""The most bytes that are compared at either end of a tensor."""
POLL = 0.002


class DeviceRun:
    """One loader of `ON_DEVICE`, prepared in this process for the device of this number."""

    def __init__(self, loader: str, paths: list[str], index: int) -> None:
        self._driver, self._paths = Driver(index), paths
        self._result: object = None
        self._dtype = ON_DEVICE[loader].dtype or None
        self._run = ON_DEVICE[loader].prepare(paths, index)

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
        read = read_bytes()
        start = time.perf_counter()
        self._result = self._run()
        self._driver.synchronize()
        return {"seconds": time.perf_counter() - start, "read": read_bytes() - read}

    def _memory(self) -> Answer:
        device, host, ended = [self._driver.memory()[0]], [available_memory()], threading.Event()

        def poll() -> None:
            driver = Driver(self._driver.index)
            while not ended.wait(POLL):
                device.append(driver.memory()[0])
                host.append(available_memory())

        thread = threading.Thread(target=poll)
        thread.start()
        try:
            answer = self._timed()
        finally:
            ended.set()
            thread.join()
        device.append(self._driver.memory()[0])  # memory taken between two looks is still in use
        host.append(available_memory())
        return {**answer, "device_peak": device[0] - min(device), "host_peak": max(0, host[0] - min(host))}

    def _wrong(self) -> str:
        """Return the first of some tensors whose bytes differ from the file; "" if all are equal or none exist."""
        if not isinstance(self._result, Mapping):
            return ""
        from max_weights._weights import load_weights

        weights = load_weights(self._paths)
        names = [info.name for info in infos(weights) if info.bytes]
        if missing := [name for name in names if name not in self._result]:
            return f"'{escape(missing[0])}' and {len(missing) - 1} more did not arrive"
        step = max(1, len(names) // SAMPLES)
        for name in [*names[::step], names[-1]]:
            expected = weights.load(name, packed=None if self._dtype else "keep", dtype=self._dtype)[name]
            if _ends(expected) != _ends(self._result[name]):
                return f"'{escape(name)}' differs from the file"
        return ""


def _ends(tensor: Any) -> tuple[bytes, bytes]:
    """Return the first and last bytes of a Buffer or a torch tensor."""
    if hasattr(tensor, "untyped_storage"):
        import torch

        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        return bytes(flat[:SAMPLED].cpu().numpy()), bytes(flat[-SAMPLED:].cpu().numpy())
    flat = tensor.view("uint8", [tensor.nbytes])
    return bytes(flat[:SAMPLED].to("cpu").to_numpy()), bytes(flat[-SAMPLED:].to("cpu").to_numpy())
