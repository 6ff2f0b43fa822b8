"""Run by test_gpu.py in separate processes, with the stand-in driver as libcuda: one function for each promise."""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import max_weights
from max_weights import Buffer, DeviceError, DType, FileChangedError, release_memory
from max_weights.driver import (
    Accelerator,
    Device,
    DeviceSpec,
    accelerator_api,
    accelerator_count,
    devices_exist,
    load_devices,
    scan_available_devices,
)
from max_weights.graph import DeviceRef

PIECE = 4 << 20  # the bytes of a staging buffer
HIDDEN_LIMIT = 4 * PIECE  # the pinned memory that a device keeps

# Every driver call of the core, except those for error texts.
CALLS = [
    "cuCtxPushCurrent_v2",
    "cuStreamWaitEvent",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuMemAlloc_v2",
    "cuMemHostAlloc",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
]


def driver() -> ctypes.CDLL:
    """The stand-in, which the core has loaded under this name, too."""
    return ctypes.CDLL("libcuda.so")


def counters() -> dict[str, int]:
    """The live objects of the stand-in."""
    names = "device_bytes pinned_bytes ranges streams events contexts bytes_to_device copy_nanoseconds violations"
    values = (ctypes.c_uint64 * len(names.split()))()
    assert driver().fake_cuda_counters(values) == 0
    found = dict(zip(names.split(), values, strict=True))
    found["pinned_bytes"] += more_counters()["registered_bytes"]  # staging buffers are huge pages that are registered
    return found


def more_counters() -> dict[str, int]:
    """The other counters of the stand-in."""
    names = (
        "most_device_bytes most_pinned_bytes registered_bytes bytes_to_host copies_to_device kernels modules unfinished"
    )
    values = (ctypes.c_uint64 * len(names.split()))()
    assert driver().fake_cuda_more_counters(values) == 0
    return dict(zip(names.split(), values, strict=True))


def fails(name: str, nth: int, code: int = 999) -> None:
    """Make the `nth` next call of this function fail."""
    if name == "cuMemHostAlloc":  # it is called if our memory cannot be pinned
        fails("cuMemHostRegister_v2", nth)
        nth = 1
    assert driver().fake_cuda_fail(name.encode(), ctypes.c_uint64(nth), code) == 0


def nothing_is_left() -> bool:
    """Whether all memory was freed; contexts and streams live as long as the process."""
    release_memory()
    found = counters()
    assert not found["violations"], found
    return not (found["device_bytes"] or found["pinned_bytes"] or found["events"])


def refused(call: Callable[[], Any]) -> str:
    """The message of the DeviceError that a call ends with."""
    with pytest.raises(DeviceError) as caught:
        call()
    return str(caught.value)


def random(size: int) -> Buffer:
    """`size` reproducible random bytes."""
    return Buffer.from_numpy(np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8))


def same(one: Buffer, other: Buffer) -> bool:
    """Whether two tensors of host memory have the same dtype, shape and bytes."""
    kind = (one.dtype, one.shape) == (other.dtype, other.shape)
    bits = [tensor.contiguous().view(DType.uint8, [tensor.nbytes]).to_numpy() for tensor in (one, other)]
    return kind and bool(np.array_equal(*bits))


def every_dtype_and_size_goes_there_and_back_bit_for_bit() -> None:
    for size in (0, 1, 5, PIECE, PIECE + 1, 9 * PIECE + 3):
        value = random(size)
        there = value.to("cuda")
        assert (there.device, there.is_host, there.shape) == (Device("gpu", 0), False, (size,))
        assert there.to("cuda:0") is there
        assert same(there.to("cpu"), value)
    for dtype in DType:
        if dtype.name == "_unknown":
            continue
        value = random(480 * 13).view(dtype, [13, 480 * 8 // dtype.size_in_bits])
        assert same(value.to("cuda:1").to("cpu"), value), dtype
    del there
    assert nothing_is_left()


def views_arrive_as_contiguous_tensors_and_views_of_them_come_back() -> None:
    whole = random(3000 * 1001 * 8).view(DType.int64, [3000, 1001])
    for view in (whole[::2, ::-3], whole[7:, 5], whole[3], whole[::-1]):
        there = view.to(Accelerator(1))
        assert there.is_contiguous
        assert same(there.to("cpu"), view)
    there = whole.to("cuda")
    for index in ((slice(5, 100, 3), slice(7, None)), (2999,), (slice(None), -1), (slice(None, None, -1000),)):
        assert same(there[index].to("cpu"), whole[index].contiguous())
        for copied in (there[index].contiguous(), there[index].copy(), whole[index].copy(there.device)):
            assert (copied.device, copied.is_contiguous) == (there.device, True)
            assert copied._data_ptr() != there[index]._data_ptr()
            assert same(copied.to("cpu"), whole[index].contiguous())
    assert same(there.view(DType.uint8).to("cpu"), whole.view(DType.uint8))


def one_device_has_many_names() -> None:
    assert (accelerator_count(), accelerator_api()) == (2, "cuda")
    assert scan_available_devices() == [DeviceSpec.accelerator(0), DeviceSpec.accelerator(1)]
    assert load_devices(scan_available_devices()) == [Device("gpu", 0), Device("gpu", 1)]
    assert devices_exist([DeviceSpec.accelerator(1)])
    assert not devices_exist([DeviceSpec.accelerator(2)])
    value = random(10)
    names: list[Any] = ["cuda:1", "gpu:1", Accelerator(1), DeviceRef.GPU(1), Device("gpu", 1)]
    assert {repr(value.to(name).device) for name in names} == {"gpu:1"}
    assert {repr(value.to(name).device) for name in ("cuda", "gpu", Accelerator(), DeviceRef.GPU())} == {"gpu:0"}
    assert same(value.to("cuda:0").to("cuda:1").to("cpu"), value)
    assert repr(Buffer.zeros([3], "float32", Accelerator(1)).device) == "gpu:1"
    assert Buffer.scalar(3, "int64", DeviceRef.GPU()).to("cpu").item() == 3


def a_device_that_is_not_there_is_named_with_those_that_are() -> None:
    for name in ("cuda:2", "gpu:2", Device("gpu", 2)):
        assert refused(lambda name=name: random(1).to(name)) == "no device gpu:2: there are 2, gpu:0 to gpu:1"
    assert refused(lambda: Accelerator(2)) == "no accelerator gpu:2: there are 2, gpu:0 to gpu:1"
    assert "no accelerator" in refused(lambda: Accelerator(10**30))
    assert counters()["contexts"] == 0


def a_driver_without_devices_says_so() -> None:
    assert (accelerator_count(), accelerator_api()) == (0, "cpu")
    assert "finds no device" in refused(lambda: random(1).to("cuda"))


def what_reads_a_tensor_of_a_device_says_how_to_move_it() -> None:
    there = random(8).view(DType.float32).to("cuda")
    one = there[:1]
    reads: list[Callable[[], Any]] = [
        there.to_numpy, one.item, lambda: float(one), lambda: memoryview(there), lambda: np.array(there),
        lambda: 1.0 in there, lambda: there.__reduce__(), lambda: there.astype("int16", out=random(4).view("int16")),
        lambda: there.__setitem__(0, 1.0), lambda: there.inplace_copy_from(random(8).view(DType.float32)),
        lambda: random(8).view(DType.float32).astype("float32", out=there),
    ]  # fmt: skip
    for read in reads:
        assert '.to("cpu")' in refused(read)
    assert str(there) == "Buffer(dtype=DType.float32, shape=(2,), device=gpu:0)"


def a_view_of_a_file_arrives(path: str) -> None:
    value = random(3 * PIECE + 8).view(DType.int64)
    Path(path).write_bytes(bytes(value.view(DType.uint8).to_numpy()))
    mapped = Buffer.mmap(path, DType.int64, value.shape)
    assert same(mapped.to("cuda").to("cpu"), value)
    assert same(mapped[1000:-1:7].to("cuda").to("cpu"), value[1000:-1:7])


def a_file_that_is_truncated_during_the_copy_is_an_error(path: str) -> None:
    size = 16 * PIECE  # more than half a second at the speed that the test sets
    with Path(path).open("wb") as file:
        file.truncate(size)
    mapped = Buffer.mmap(path, DType.uint8, size)
    threading.Timer(0.1, lambda: os.truncate(path, PIECE)).start()
    with pytest.raises(FileChangedError, match="truncated"):
        mapped.to("cuda")
    assert nothing_is_left()


def too_little_memory_is_an_error_that_names_the_bytes() -> None:
    kept = random(PIECE).to("cuda")
    message = refused(lambda: random(2 * PIECE + 1).to("cuda"))
    assert message.startswith(f"cuMemAlloc_v2 of {2 * PIECE + 1} bytes on gpu:0 failed: CUDA_ERROR_OUT_OF_MEMORY")
    assert same(kept.to("cpu"), random(PIECE))
    del kept
    assert nothing_is_left()


def every_call_that_fails_is_an_error_that_names_it_and_nothing_is_left() -> None:
    value, failed = random(6 * PIECE + 1), 0
    value.to("cuda")
    for name in CALLS:
        # Without its context nothing can be freed, so this fails only if there is something to report.
        for nth in (1, 2) if name == "cuCtxPushCurrent_v2" else (1, 2, 5):
            release_memory()
            fails(name, nth)
            message = ""
            try:
                assert same(value.to("cuda").to("cpu"), value)
            except DeviceError as error:
                message = str(error)
            failed += bool(message)
            assert not message or (name in message and "CUDA_ERROR_UNKNOWN, unknown error" in message), message
            driver().fake_cuda_reset()
            assert nothing_is_left(), (name, nth, counters())
    assert failed > len(CALLS), failed


def a_copy_that_fails_later_is_an_error_where_it_is_waited_for() -> None:
    assert accelerator_count() == 2
    assert driver().fake_cuda_fail_later(b"cuMemcpyHtoDAsync_v2", ctypes.c_uint64(1), 700) == 0
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in refused(lambda: random(100).to("cuda").to("cpu"))
    assert same(random(100).to("cuda:1").to("cpu"), random(100))  # another device still works


def a_forked_child_is_refused_and_its_parent_goes_on() -> None:
    value = random(2 * PIECE)
    held = [value.to("cuda")]
    child = os.fork()
    if child == 0:
        uses = [lambda: value.to("cuda"), lambda: held[0].to("cpu"), lambda: Accelerator(0)]
        messages = [refused(use) for use in uses]
        held.clear()
        release_memory()
        os._exit(0 if all("forked" in message and "spawn" in message for message in messages) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert same(held[0].to("cpu"), value)
    held.clear()
    assert nothing_is_left()


def a_child_may_use_what_its_parent_did_not() -> None:
    random(10)
    child = os.fork()
    if child == 0:
        os._exit(0 if same(random(10).to("cuda").to("cpu"), random(10)) else 1)
    assert os.waitpid(child, 0)[1] == 0


def ctrl_c_ends_a_copy_and_frees_what_it_had() -> None:
    value = random(30 * PIECE)  # more than a second at the speed that the test sets
    there = value.to("cuda")
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    for tensor, place in ((value, "cuda"), (there, "cpu")):
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            tensor.to(place)
        assert time.monotonic() - started < 1
    del there, tensor
    assert nothing_is_left()


def reading_one_tensor_leaves_the_buffers_of_another_that_is_on_its_way() -> None:
    first, second = random(4 * PIECE), random(4 * PIECE + 1)
    one, other = first.to("cuda"), second.to("cuda")
    assert same(one.to("cpu"), first)
    assert same(other.to("cpu"), second)


def threads_share_the_staging_buffers() -> None:
    def work(number: int) -> None:
        for round in range(5):
            value = random(PIECE * (number % 3) + number + round)
            same(value.to(f"cuda:{number % 2}").to("cpu"), value) or wrong.append(number)

    wrong: list[int] = []
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert counters()["pinned_bytes"] <= 2 * HIDDEN_LIMIT
    assert nothing_is_left()


def pinned_memory_is_bounded_however_large_the_tensor() -> None:
    there = random(20 * PIECE).to("cuda")
    assert same(there.to("cpu"), random(20 * PIECE))
    assert counters()["pinned_bytes"] <= HIDDEN_LIMIT
    assert release_memory() > 0
    assert counters()["pinned_bytes"] == 0


def _pointer(capsule: object, name: bytes) -> tuple[int, int, int]:
    """Address, type and number of the device, of a legacy capsule."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    where = get(capsule, name)
    address = ctypes.c_uint64.from_address(where).value
    kind, number = (ctypes.c_int32 * 2).from_address(where + 8)
    return address, kind, number


def copied_on_a_stream(there: Buffer, stream: Callable[[int], int | None]) -> tuple[bytes, int]:
    """The bytes that a consumer's stream sees if `stream` was passed to `__dlpack__`; and the ordering violations."""
    cuda, context, size = driver(), ctypes.c_void_p(), there.nbytes
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxPushCurrent_v2(context) == 0
    own, pinned, before = ctypes.c_void_p(), ctypes.c_void_p(), counters()["violations"]
    assert cuda.cuStreamCreate(ctypes.byref(own), 1) == 0
    assert cuda.cuMemHostAlloc(ctypes.byref(pinned), ctypes.c_size_t(size), 0) == 0
    capsule = there.__dlpack__(stream=stream(own.value or 0))
    address, *device = _pointer(capsule, b"dltensor")
    assert device == [2, 0] == list(there.__dlpack_device__())
    assert cuda.cuMemcpyDtoHAsync_v2(pinned, ctypes.c_uint64(address), ctypes.c_size_t(size), own) == 0
    assert cuda.cuStreamSynchronize(own) == 0
    found = ctypes.string_at(pinned.value or 0, size)
    assert cuda.cuMemFreeHost(pinned) == cuda.cuStreamDestroy_v2(own) == cuda.cuCtxPopCurrent_v2(ctypes.byref(own)) == 0
    return found, counters()["violations"] - before


def a_consumers_stream_waits_for_the_tensor_and_nobody_else_does() -> None:
    value = random(PIECE)
    found, violations = copied_on_a_stream(value.to("cuda"), lambda own: own)
    assert found == bytes(value.to_numpy())
    assert violations == 0


def a_consumer_that_asks_for_no_order_gets_none() -> None:
    assert copied_on_a_stream(random(PIECE).to("cuda"), lambda _: -1)[1] > 0


def a_capsule_keeps_the_memory_and_says_where_it_is() -> None:
    there = random(100).to("cuda:1")
    assert there.__dlpack_device__() == (2, 1)
    for stream in (None, 1, -1):  # the stand-in has no default stream for each thread, which is 2
        capsule = there.__dlpack__(stream=stream)
        assert _pointer(capsule, b"dltensor")[1:] == (2, 1)
    for bad in (0, -2):
        with pytest.raises(BufferError, match="stream"):
            there.__dlpack__(stream=bad)
    versioned = there.__dlpack__(max_version=(1, 0), stream=1)
    del there, capsule
    assert counters()["device_bytes"] == 100
    del versioned
    assert nothing_is_left()


def a_consumer_of_host_memory_gets_a_copy() -> None:
    value = random(100)
    there = value.to("cuda")
    assert np.array_equal(np.from_dlpack(there, device="cpu"), value.to_numpy())
    for arguments in ({"dl_device": (1, 0), "copy": False}, {"dl_device": (2, 1)}, {"copy": True}):
        with pytest.raises(BufferError):
            there.__dlpack__(**arguments)  # type: ignore[arg-type]


class Producer:
    """A library with a tensor on a GPU."""

    def __init__(self, tensor: Buffer, device: tuple[int, int] | None = None) -> None:
        self.tensor, self.device, self.streams = tensor, device or tensor.__dlpack_device__(), list[Any]()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: Any = None, max_version: tuple[int, int] | None = None) -> Any:
        self.streams.append(stream)
        return self.tensor.__dlpack__(stream=stream, max_version=max_version)


def a_tensor_of_another_library_is_shared_and_read() -> None:
    value = random(2 * PIECE + 8).view(DType.int64, [PIECE // 4 + 1])
    producer = Producer(value.to("cuda:1"))
    taken = Buffer.from_dlpack(producer)
    assert (taken.device, taken._data_ptr()) == (Device("gpu", 1), producer.tensor._data_ptr())
    assert producer.streams[0] > 2  # one of ours, which waits for it
    del producer
    part = taken[10:-10:3]
    assert same(part.to("cpu"), value[10:-10:3].contiguous())
    assert same(Buffer.from_dlpack(Producer(part)).to("cuda:0").to("cpu"), value[10:-10:3].contiguous())
    assert same(taken.to("cpu"), value)
    del taken, part
    assert nothing_is_left()


def a_library_that_lies_about_the_device_is_refused() -> None:
    there = random(100).to("cuda:1")
    for device in ((1, 0), (2, 0), (2, 2), (2, -1), (13, 0)):
        with pytest.raises(BufferError):
            Buffer.from_dlpack(Producer(there, device))
    with pytest.raises(BufferError, match="only host memory"):
        random(100).astype("int8", out=Producer(there))
    del there
    assert nothing_is_left()


def a_process_may_end_while_copies_go_on() -> None:
    globals()["kept"] = random(3 * PIECE).to("cuda")


def importing_and_using_the_host_loads_no_driver() -> None:
    value = Buffer.from_numpy(np.arange(5.0)).to("cpu").copy()
    assert value.__dlpack_device__() == (1, 0)
    assert max_weights.__version__
    assert "libcuda" not in Path("/proc/self/maps").read_text()
    assert accelerator_count() == 2
    assert "libcuda" in Path("/proc/self/maps").read_text()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
