"""Run by test_gpu_memory.py in separate processes, on the stand-in driver: copies of tensors between GPUs, streams of
their consumers, and deallocation.
"""

import ctypes
import itertools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpu_program import (
    CALLS,
    PIECE,
    Producer,
    copied_on_a_stream,
    counters,
    driver,
    fails,
    nothing_is_left,
    random,
    same,
)
from max_weights import Buffer, DeviceError, DType, release_memory
from max_weights.driver import Device

MIB = 1 << 20


def from_one_gpu_to_another_tensors_go_directly() -> None:
    value = random(9 * PIECE + 5)
    here = value.to("cuda:0")
    assert same(here.to("cpu"), value)  # it is there
    before = counters()["bytes_to_device"]
    there = here.to("cuda:1")
    assert counters()["bytes_to_device"] == before  # as many again through host memory
    assert there.device == Device("gpu", 1)
    assert same(there.to("cpu"), value)
    assert same(there.to("cuda:0").to("cpu"), value)
    part = here.view(DType.uint8)[7:100_000]
    assert same(part.to("cuda:1").to("cpu"), value[7:100_000])
    assert Buffer.zeros([0, 3], "float32", "cuda:0").to("cuda:1").shape == (0, 3)
    assert counters()["bytes_to_device"] == before
    # Strides have gaps: such tensors are gathered in host memory.
    rows = here[: 8 * MIB].view(DType.int64, [1024, 1024])
    assert same(rows[::2, ::-3].to("cuda:1").to("cpu"), rows.to("cpu")[::2, ::-3].contiguous())
    assert counters()["bytes_to_device"] > before
    del here, there, part, rows
    assert nothing_is_left()


def a_tensor_may_go_while_it_is_copied_to_another_gpu() -> None:
    value = random(3 * PIECE)
    there = value.to("cuda:0").to("cuda:1")  # the first one is freed, and its copy has not begun
    assert same(there.to("cpu"), value)
    back = there.to("cuda:0")
    found, violations = copied_on_a_stream(back, lambda own: own)
    assert (found == value.to_numpy().tobytes(), violations) == (True, 0)
    own = value.to("cuda:0")
    lent = Buffer.from_dlpack(Producer(own))
    assert same(lent.to("cuda:1").to("cpu"), value)
    del there, back, lent, own
    assert nothing_is_left()


def what_the_driver_does_not_copy_goes_by_host_memory() -> None:
    value = random(2 * PIECE + 1)
    here = value.to("cuda:0")
    assert same(here.to("cpu"), value)  # it is there
    before = counters()["bytes_to_device"]
    assert driver().fake_cuda_fail(b"cuMemcpyPeerAsync", ctypes.c_uint64(1), 801) == 0
    assert same(here.to("cuda:1").to("cpu"), value)
    assert counters()["bytes_to_device"] == before + value.nbytes
    driver().fake_cuda_reset()
    del here
    assert nothing_is_left()


def a_call_that_fails_on_the_way_to_another_gpu_leaves_nothing() -> None:
    value, failed = random(2 * PIECE + 1), 0
    value.to("cuda:0").to("cuda:1")
    for name in [*CALLS, "cuMemcpyPeerAsync"]:
        for nth in (1, 2) if name == "cuCtxPushCurrent_v2" else (1, 2, 3):
            here = value.to("cuda:0")
            release_memory()
            fails(name, nth)
            message = ""
            try:
                assert same(here.to("cuda:1").to("cpu"), value)
            except DeviceError as error:
                message = str(error)
            failed += bool(message)
            assert not message or (name in message and "CUDA_ERROR_UNKNOWN" in message), message
            driver().fake_cuda_reset()
            del here
            assert nothing_is_left(), (name, nth, counters())
    assert failed > len(CALLS) // 2, failed


def the_lock_of_python_is_free_while_memory_is_given_back() -> None:
    stamps: list[float] = []
    done = threading.Event()

    def other() -> None:
        while not done.is_set():
            stamps.append(time.monotonic())
            time.sleep(0.002)

    def longest(work: Callable[[], None]) -> tuple[float, float]:
        """Return the duration of the work, and the longest wait of the other thread."""
        stamps.clear()
        began = time.monotonic()
        work()
        ended = time.monotonic()
        moments = [began, *(stamp for stamp in stamps if began <= stamp <= ended), ended]
        return ended - began, max(later - earlier for earlier, later in itertools.pairwise(moments))

    value = random(4 * PIECE)  # as much as fits the staging buffers, and 0.16 s at the speed that the test sets
    thread = threading.Thread(target=other)
    thread.start()
    held: list[Any] = []
    try:
        for hold in (lambda there: there, lambda there: there.__dlpack__(stream=1)):
            for _ in range(10):  # a held lock makes the other thread wait each time, a busy machine occasionally
                held.append(hold(value.to("cuda")))
                took, waited = longest(held.clear)
                assert took > 0.1, took
                if waited < took / 2:
                    break
            assert waited < took / 2, (waited, took)
    finally:
        done.set()
        thread.join()
    assert nothing_is_left()


def _pointer(capsule: object, name: bytes = b"dltensor") -> tuple[int, int, int]:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    where = get(capsule, name)
    kind, number = (ctypes.c_int32 * 2).from_address(where + 8)
    return ctypes.c_uint64.from_address(where).value, kind, number


def default_streams_wait_for_the_tensor() -> None:
    cuda, context, size = driver(), ctypes.c_void_p(), 3 * PIECE
    value = random(size)
    value.to("cuda:0")  # the context is there
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxPushCurrent_v2(context) == 0
    pinned = ctypes.c_void_p()
    assert cuda.cuMemHostAlloc(ctypes.byref(pinned), ctypes.c_size_t(size), 0) == 0
    for requested, used in ((None, 1), (None, 0), (1, 1), (2, 2)):
        there = value.to("cuda:0")
        capsule = there.__dlpack__(stream=requested)
        address, stream = _pointer(capsule)[0], ctypes.c_void_p(used)
        assert cuda.cuMemcpyDtoHAsync_v2(pinned, ctypes.c_uint64(address), ctypes.c_size_t(size), stream) == 0
        assert cuda.cuStreamSynchronize(stream) == 0
        assert ctypes.string_at(pinned.value or 0, size) == value.to_numpy().tobytes()
        assert counters()["violations"] == 0, (requested, used)
        del capsule, there
    assert cuda.cuMemFreeHost(pinned) == 0
    assert cuda.cuCtxPopCurrent_v2(ctypes.byref(context)) == 0
    assert nothing_is_left()


def what_dlpack_asks_is_answered_or_refused() -> None:
    there = random(100).to("cuda:1")
    assert there.__dlpack_device__() == (2, 1)
    for options in ({}, {"stream": None}, {"stream": 1}, {"stream": 2}, {"stream": -1}, {"dl_device": (2, 1)}):
        assert _pointer(there.__dlpack__(**options))[1:] == (2, 1), options
    for bad in (0, -2, "1", 2.5):
        with pytest.raises((BufferError, TypeError)):
            there.__dlpack__(stream=bad)  # type: ignore[arg-type]
    for version, name in (
        (None, "dltensor"), ((0, 8), "dltensor"), ((1, 0), "dltensor_versioned"), ((2, 3), "dltensor_versioned"),
    ):  # fmt: skip
        capsule = there.__dlpack__(max_version=version)
        assert f'"{name}"' in repr(capsule), version
    for device in ((2, 0), (2, 7), (1, 1), (3, 0), (13, 1)):
        with pytest.raises(BufferError, match="cannot be exported"):
            there.__dlpack__(dl_device=device)
    with pytest.raises(BufferError, match="stream must be None"):
        there.__dlpack__(dl_device=(1, 0), stream=1)
    with pytest.raises(BufferError, match="only by a copy"):
        there.__dlpack__(dl_device=(1, 0), copy=False)
    assert same(Buffer.from_dlpack(Host(there)), random(100))
    with pytest.raises(BufferError, match="shared, not copied"):
        there.__dlpack__(copy=True)
    host = random(100)
    for device in ((2, 0), (2, 1)):
        with pytest.raises(BufferError, match="cannot be exported"):
            host.__dlpack__(dl_device=device)
    with pytest.raises(BufferError, match="stream must be None"):
        host.__dlpack__(stream=1)
    del there, capsule
    assert nothing_is_left()


class Host:
    """A consumer's view, in host memory, of a tensor on a GPU."""

    def __init__(self, tensor: Buffer) -> None:
        self._tensor = tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **options: Any) -> Any:
        return self._tensor.__dlpack__(dl_device=(1, 0), **options)


def a_context_that_fails_when_memory_is_given_back_harms_nobody() -> None:
    value = random(PIECE + 1)
    kept = value.to("cuda:0")
    held = [value.to("cuda:0")]
    capsules = [value.to("cuda:0").__dlpack__(stream=-1)]
    assert driver().fake_cuda_fail(b"cuCtxPushCurrent_v2", ctypes.c_uint64(1), 999) == 0
    held.clear()
    driver().fake_cuda_reset()
    assert driver().fake_cuda_fail(b"cuCtxPushCurrent_v2", ctypes.c_uint64(1), 999) == 0
    capsules.clear()
    driver().fake_cuda_reset()
    # Memory that could not be freed is leaked; everything else still works.
    assert counters()["device_bytes"] == 3 * value.nbytes
    assert same(kept.to("cpu"), value)
    assert np.array_equal(value.to("cuda:1").to("cuda:0").to("cpu").to_numpy(), value.to_numpy())
    del kept
    release_memory()
    assert counters()["device_bytes"] == 2 * value.nbytes
    assert counters()["pinned_bytes"] == 0


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
