"""Run by test_gpu_streaming.py in separate processes, on the stand-in driver: one function for each promise of
`stream(device=…)`. Each gets an output folder, and that of the models.
"""

import ctypes
import gc
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import pytest

from gpu_loading_program import BLOCKS, MODELS, large
from gpu_program import CALLS, PIECE, copied_on_a_stream, counters, driver, fails, nothing_is_left, refused, same
from max_weights import Buffer, DeviceError, DType, FileChangedError, load_weights, release_memory
from max_weights.driver import Device

MIB = 1 << 20


def streams_equally(path: Path, **options: Any) -> None:
    """Assert that a stream to a device gives the names, dtypes, shapes and bits of `load` on the CPU."""
    weights = load_weights(path)
    if path.suffix == ".gguf" and not options.keys() & {"dtype", "packed"}:
        options["dtype"] = "float32"  # packed blocks become floats only if a dtype is given
    expected = weights.load(copy=True, **{name: option for name, option in options.items() if name != "max_memory"})
    found: dict[str, Buffer] = dict(weights.stream(device="cuda:0", **options))
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert found[name].device == Device("gpu", 0)
        assert same(found[name].to("cpu"), tensor), (path, name, options)


def settles() -> bool:
    """Whether all memory is freed after the stream's thread, which is not joined, has ended, and the objects held by
    caught errors are collected.
    """
    gc.collect()
    end = time.monotonic() + 5
    while not (settled := nothing_is_left()) and time.monotonic() < end:
        time.sleep(0.02)
    return settled


def every_format_arrives_bit_for_bit(folder: Path, models: Path) -> None:
    for name in MODELS:
        streams_equally(models / name)
    streams_equally(models / BLOCKS, packed="keep")
    streams_equally(models / BLOCKS, dtype="bfloat16")
    with ZipFile(models / MODELS[3]) as stored, ZipFile(folder / "deflated.pth", "w", ZIP_DEFLATED) as deflated:
        for entry in stored.namelist():
            deflated.writestr(entry, stored.read(entry))
    streams_equally(folder / "deflated.pth")
    assert settles()


def every_option_gives_what_it_gives_on_the_cpu(folder: Path, models: Path) -> None:
    for options in (
        {"dtype": "float16"},
        {"dtype": "float64", "threads": 3},
        {"select": re.compile(r".*[.](2|3)[.].*weight"), "rename": str.upper},
        {"backend": "read", "drop_cache": True},
        {"backend": "direct", "dtype": "float32"},
    ):
        streams_equally(models / "minilm.safetensors", **options)
        streams_equally(models / BLOCKS, **options)
    path = large(folder, 60)
    for options in ({}, {"dtype": "float32"}, {"threads": 1}, {"max_memory": 2 * PIECE}, {"backend": "direct"}):
        streams_equally(path, **options)
    assert settles()


def memory_is_bounded_here_and_there(folder: Path, _: Path) -> None:
    weights = load_weights(large(folder, 300))
    size = 24 * MIB
    for most in (2 * PIECE, 64 * MIB, 120 * MIB):
        release_memory()
        there = pinned = 0
        with weights.stream(device="cuda", max_memory=most, threads=4) as stream:
            assert stream.max_memory == most
            for _pair in stream:
                time.sleep(0.02)  # time to read ahead
                there, pinned = max(there, counters()["device_bytes"]), max(pinned, counters()["pinned_bytes"])
        # A tensor and the previous one may be live under any budget; a larger budget allows more.
        assert most // 2 <= there <= max(most, 2 * (size + MIB)), (most, there)
        assert 0 < pinned <= most
        del _pair
        assert settles()


def others_are_under_way_while_one_is_used(folder: Path, _: Path) -> None:
    with load_weights(large(folder, 200)).stream(device="cuda", select="*weight", max_memory=120 * MIB) as stream:
        name, _tensor = next(stream)
        assert name == "layer.000.weight"
        end = time.monotonic() + 10
        while counters()["bytes_to_device"] < 4 * 24 * MIB and time.monotonic() < end:
            time.sleep(0.02)
        assert counters()["bytes_to_device"] >= 4 * 24 * MIB
    del _tensor
    assert settles()


def a_tensor_that_is_dropped_is_freed(folder: Path, _: Path) -> None:
    kept: list[Buffer] = []
    with load_weights(large(folder, 200)).stream(device="cuda", max_memory=64 * MIB) as stream:
        for name, tensor in stream:
            if name in ("layer.003.weight", "layer.005.scale"):
                kept.append(tensor)
    del tensor
    release_memory()
    assert 24 * MIB + 12 <= counters()["device_bytes"] <= 26 * MIB  # with the neighbours of the small one
    kept.clear()
    assert settles()


def a_consumers_stream_waits_for_each_tensor(folder: Path, _: Path) -> None:
    path = large(folder, 60)
    expected = load_weights(path).load(copy=True)
    for name, tensor in load_weights(path).stream(device="cuda"):
        if name.endswith("weight"):
            found, violations = copied_on_a_stream(tensor, lambda own: own)
            assert found == bytes(expected[name].contiguous().view(DType.uint8).to_numpy())
            assert violations == 0


def a_break_leaves_nothing(folder: Path, _: Path) -> None:
    weights = load_weights(large(folder, 300))
    for many in range(4):
        for number, _pair in enumerate(weights.stream(device="cuda")):
            if number == many:
                break
        del _pair
        assert settles()
    stream = weights.stream(device="cuda")
    _, tensor = next(stream)
    stream.close()
    assert list(stream) == []
    assert same(tensor.to("cpu"), weights.load(select="layer.000.scale")["layer.000.scale"])
    del tensor
    assert settles()


def ctrl_c_ends_a_stream_and_frees_what_it_had(folder: Path, _: Path) -> None:
    weights = load_weights(large(folder, 400))
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    for options in ({}, {"dtype": "float32"}, {"backend": "direct"}):
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        started = time.monotonic()
        _pair = None  # an interrupt before the first tensor leaves none
        with pytest.raises(KeyboardInterrupt):
            for _pair in weights.stream(device="cuda", **options):
                pass
        assert time.monotonic() - started - 0.1 < 0.5  # 0.1 on an idle machine
        del _pair
        assert settles()


def too_little_memory_names_the_tensor_and_the_bytes(folder: Path, _: Path) -> None:
    weights, kept = load_weights(large(folder, 100)), dict[str, Buffer]()

    def keep_all() -> None:
        for name, tensor in weights.stream(device="cuda", select="*weight"):
            kept[name] = tensor

    message = refused(keep_all)
    assert message.startswith(f"'layer.002.weight': cuMemAlloc_v2 of {24 * MIB} bytes on gpu:0 failed: CUDA_ERROR_OUT_")
    assert list(kept) == ["layer.000.weight", "layer.001.weight"]
    kept.clear()
    assert settles()
    # A consumer that releases each tensor gets all of them.
    assert sum(1 for _ in weights.stream(device="cuda", max_memory=2 * PIECE)) == 10
    assert settles()


def every_call_that_fails_is_an_error_that_names_it(folder: Path, _: Path) -> None:
    path = large(folder, 60)
    weights, failed = load_weights(path), 0
    expected = weights.load(copy=True)
    list(weights.stream(device="cuda"))
    for name in CALLS:
        # Without its context nothing can be freed, so this fails only if there is something to report.
        for nth in (1, 2) if name == "cuCtxPushCurrent_v2" else (1, 2, 5):
            release_memory()
            fails(name, nth)
            message = ""
            try:
                for one, tensor in weights.stream(device="cuda"):
                    assert same(tensor.to("cpu"), expected[one])
            except DeviceError as error:
                message = str(error)
            tensor = None
            failed += bool(message)
            assert not message or (name in message and "CUDA_ERROR_UNKNOWN, unknown error" in message), message
            driver().fake_cuda_reset()
            assert settles(), (name, nth, counters())
    assert failed > len(CALLS), failed


def a_copy_that_fails_later_is_an_error(folder: Path, _: Path) -> None:
    weights = load_weights(large(folder, 100))
    assert driver().fake_cuda_fail_later(b"cuMemcpyHtoDAsync_v2", ctypes.c_uint64(1), 700) == 0

    def read_all() -> None:
        for _, tensor in weights.stream(device="cuda", max_memory=2 * PIECE):
            tensor.to("cpu")

    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in refused(read_all)
    end = time.monotonic() + 5
    while (found := counters()) and time.monotonic() < end:
        release_memory()
        if found["device_bytes"] == found["pinned_bytes"] == found["events"] == 0:
            break
    assert found["device_bytes"] == found["pinned_bytes"] == found["events"] == 0, found


def a_file_that_is_truncated_meanwhile_is_an_error(folder: Path, _: Path) -> None:
    path = large(folder, 100)
    _pair = None  # a file that is truncated before the first tensor leaves none
    threading.Timer(0.1, lambda: os.truncate(path, MIB)).start()  # the stream takes a second
    with pytest.raises(FileChangedError, match=r"(?s)layer\.\d+\..*large100|large100.*layer\.\d+\."):
        for _pair in load_weights(path).stream(device="cuda", max_memory=2 * PIECE):
            pass
    del _pair
    assert settles()


def what_is_not_done_there_is_refused(folder: Path, models: Path) -> None:
    weights = load_weights(models / "minilm.safetensors")
    with pytest.raises(ValueError, match=f"host memory for the transfer to gpu:0: max_memory must be .*, not {PIECE}"):
        weights.stream(device="cuda", max_memory=PIECE)
    assert refused(lambda: weights.stream(device="cuda", reuse=True)).startswith("reuse=True is for host memory, not ")
    assert "framework='numpy'" in refused(lambda: weights.stream(device="cuda", framework="numpy"))
    assert refused(lambda: weights.stream(device="cuda:2")) == "no device gpu:2: there are 2, gpu:0 to gpu:1"
    assert "tpu" in refused(lambda: weights.stream(device="tpu"))
    assert all(tensor.is_host for _, tensor in weights.stream(device="cpu"))
    assert {str(tensor.device) for _, tensor in weights.stream(device="cuda:1", select="pooler.*")} == {"gpu:1"}
    assert not any(folder.iterdir())
    assert settles()


def a_forked_child_is_refused(folder: Path, _: Path) -> None:
    weights = load_weights(large(folder, 60))
    stream = weights.stream(device="cuda", max_memory=2 * PIECE)
    _, tensor = next(stream)
    child = os.fork()
    if child == 0:
        with pytest.raises(ValueError, match="in the process that opened it"):
            next(stream)
        assert "forked" in refused(lambda: weights.stream(device="cuda"))
        del stream, tensor
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert sum(1 for _ in stream) == 5
    del tensor
    assert settles()


def threads_share_a_stream(folder: Path, _: Path) -> None:
    path = large(folder, 100)
    expected, found = load_weights(path).load(copy=True), dict[str, bool]()
    stream = load_weights(path).stream(device="cuda")

    def work() -> None:
        for name, tensor in stream:
            found[name] = same(tensor.to("cpu"), expected[name])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(expected, True)
    assert settles()


def a_process_may_end_while_a_stream_reads(folder: Path, _: Path) -> None:
    stream = load_weights(large(folder, 100)).stream(device="cuda")
    globals()["kept"] = stream, next(stream)


if __name__ == "__main__":
    promise: Callable[[Path, Path], None] = globals()[sys.argv[1]]
    promise(Path(sys.argv[2]), Path(sys.argv[3]))
