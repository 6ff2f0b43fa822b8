"""CUDA's driver through ctypes, for what the loaders do not measure: the speed of a device's link, and its memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from max_weights._devices import Accelerator
from max_weights.errors import DeviceError

__all__ = ["Driver"]

LIBRARIES = ("libcuda.so", "libcuda.so.1")
"""The libraries in the order of the extension, so that both use the same one."""
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING


class Driver:
    """One device, with the context that the extension and torch use. An instance belongs to the thread that creates it.

    Raises:
        DeviceError: there is no driver or no such device; the message gives the reason.
    """

    def __init__(self, index: int = 0) -> None:
        Accelerator(index)  # raises an error that says what is missing
        self.index = index
        self._library = _load()
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), index)
        self.call("cuCtxPushCurrent_v2", context)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the driver, with the device's context; DeviceError if it fails."""
        if code := getattr(self._library, name)(*arguments):
            raise DeviceError(f"{name} failed with error {code} of CUDA's driver")

    def synchronize(self) -> None:
        """Wait until the device has finished all its work."""
        self.call("cuCtxSynchronize")

    def memory(self) -> tuple[int, int]:
        """Return the device's free bytes and its total bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def pinned_copier(self, size: int, piece: int = 32 << 20, blocks: int = 4) -> Callable[[], None]:
        """Return a function that copies `size` bytes from pinned host memory to the device, and waits for them.

        It is as fast as the link allows. The bytes come from `blocks` blocks of `piece` bytes, in rotation, on two
        streams in turns. The blocks are allocated here, and stay until the process ends.
        """
        piece = min(piece, size)
        sources = [self._pinned(piece) for _ in range(blocks)]
        on_gpu, streams = ctypes.c_uint64(), [ctypes.c_void_p(), ctypes.c_void_p()]
        self.call("cuMemAlloc_v2", ctypes.byref(on_gpu), ctypes.c_size_t(piece * blocks))
        for stream in streams:
            self.call("cuStreamCreate", ctypes.byref(stream), NON_BLOCKING)

        def run() -> None:
            for number, begin in enumerate(range(0, size, piece)):
                block = number % blocks
                self.call(
                    "cuMemcpyHtoDAsync_v2",
                    ctypes.c_uint64(on_gpu.value + block * piece),
                    sources[block],
                    ctypes.c_size_t(min(piece, size - begin)),
                    streams[block % 2],  # always the same stream for a block, so that no two write to one place
                )
            self.synchronize()

        return run

    def _pinned(self, size: int) -> ctypes.c_void_p:
        block = ctypes.c_void_p()
        self.call("cuMemHostAlloc", ctypes.byref(block), ctypes.c_size_t(size), 0)
        ctypes.memset(block, 0x5A, size)  # files do not consist of zero pages
        return block


def _load() -> ctypes.CDLL:
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise DeviceError("no NVIDIA driver (libcuda.so.1) was found", rule="device.absent")
