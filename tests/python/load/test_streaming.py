"""Streaming weights: the results of `load`, within a memory budget, and without leaks."""

import gc
import hashlib
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import max_weights
from max_weights import DType
from max_weights._streaming import WeightStream
from max_weights.graph.weights import GGUFWeights
from refusals import refuses
from test_loading import FILES, raw

Make = Callable[..., Path]
MIB = 1 << 20


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No stream thread and no descriptor outlives its test."""
    before = set(os.listdir("/proc/self/fd"))
    yield
    gc.collect()
    assert not reading_after(0.1)
    assert len(os.listdir("/proc/self/fd")) <= len(before)


def reading() -> int:
    """The number of stream threads."""
    names = []
    for thread in os.listdir("/proc/self/task"):
        try:
            names.append(Path(f"/proc/self/task/{thread}/comm").read_text().strip())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return sum(name == "max_weights-str" for name in names)  # which the system truncates there


def reading_after(seconds: float) -> int:
    until = time.monotonic() + seconds
    # Return this count without another poll: a new thread has no name at first, so it would be missed, then seen.
    while (count := reading()) and time.monotonic() < until:
        time.sleep(0.001)
    return count


def large(folder: Path, count: int, size: int, name: str = "large.safetensors") -> Path:
    """A sparse file of `count` tensors of uint8: zeros, and the number of each at its start."""
    header = {
        f"w{i}": {"dtype": "U8", "shape": [size], "data_offsets": [i * size, (i + 1) * size]} for i in range(count)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / name, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        start = file.tell()
        file.truncate(start + count * size)
        for i in range(count):
            file.seek(start + i * size)
            file.write(bytes([i % 256]))
    return folder / name


def contents(tensors: Iterable[tuple[str, max_weights.Buffer]]) -> list[tuple[str, DType, Any, str]]:
    """Name, dtype, shape and a digest of the bytes of each: two of these are compared in the memory of one model."""
    return [(name, tensor.dtype, tensor.shape, hashlib.sha256(raw(tensor)).hexdigest()) for name, tensor in tensors]


@pytest.mark.parametrize(
    "options",
    [{}, {"dtype": "float16"}, {"packed": "keep"}, {"backend": "direct", "threads": 3}, {"drop_cache": True}],
    ids=str,
)
@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_a_stream_gives_what_load_gives_in_the_order_of_the_files(
    models: Path, name: str, reuse: bool, options: dict[str, Any]
) -> None:
    weights = max_weights.load_weights(models / name)
    if isinstance(weights, GGUFWeights) and not options.keys() & {"dtype", "packed"}:
        options = options | {"dtype": "float32"}
    loaded = contents(weights.load(copy=True, packed=options.get("packed"), dtype=options.get("dtype")).items())
    streamed = []
    for path, tensor in weights.stream(reuse=reuse, **options):
        streamed += contents([(path, tensor)])
        assert tensor.aligned
        assert not tensor.is_mapped
    assert streamed == loaded


def test_all_tensors_of_a_stream_may_be_kept(models: Path) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    kept = dict(weights.stream(max_memory=60 * MIB))
    for name, expected in weights.load(copy=True).items():
        assert raw(kept[name]) == raw(expected)


def test_names_are_selected_renamed_and_made_tensors_of_a_framework(models: Path) -> None:
    import jax
    import torch

    weights = max_weights.load_weights(models / "minilm.safetensors")
    for framework, kind in (("numpy", np.ndarray), ("torch", torch.Tensor), ("jax", jax.Array)):
        found = list(weights.stream("pooler", rename={"pooler.": "head."}, framework=framework))
        assert [name for name, _ in found] == ["head.dense.bias", "head.dense.weight"]
        assert all(isinstance(tensor, kind) for _, tensor in found)
    gguf = max_weights.load_weights(models / "smollm2-135m.Q4_1.gguf")
    name = "model.layers.0.self_attn.q_proj.weight"
    for reuse in (False, True):
        ((found_name, tensor),) = gguf.stream(name, rename="hf", dtype="float32", reuse=reuse)
        assert found_name == name
        assert raw(tensor) == raw(gguf.load(name, rename="hf", dtype="float32")[name])


@pytest.mark.parametrize(
    "options",
    [
        {"framework": "tf"},
        {"max_memory": 0},
        {"max_memory": "much"},
        {"rename": lambda _: "x"},
        {"backend": "fast"},
        {"select": "poolr"},
    ],
)
def test_a_bad_option_is_refused_before_anything_is_read(models: Path, options: Any) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    with refuses((ValueError, KeyError)):
        weights.stream(**options)
    with refuses(TypeError):
        weights.stream(out={})


@pytest.mark.parametrize("reuse", [False, True])
def test_a_tensor_that_is_too_large_for_the_budget_is_named_with_the_least_that_will_do(
    tmp_path: Path, reuse: bool
) -> None:
    weights = max_weights.load_weights(large(tmp_path, 3, 6 * MIB))
    needed = (6 if reuse else 12) * MIB
    with refuses(ValueError):
        weights.stream(max_memory=5 * MIB, reuse=reuse)
    assert len(list(weights.stream(max_memory=needed, reuse=reuse))) == 3
    assert weights.stream().max_memory >= needed


def test_one_line_says_how_a_stream_reads_and_why(models: Path, caplog: pytest.LogCaptureFixture) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    for options, message in (
        ({"backend": "direct", "threads": 3}, "stream: direct, 3 threads, in the page cache: it was asked for"),
        ({"backend": "mmap", "threads": 1}, "stream: read, 1 threads, in the page cache: it was asked for"),
        ({"threads": 2}, "stream: read, 2 threads, in the page cache: the bytes are in the page cache"),
    ):
        list(weights.stream("pooler"))  # reads pages that may have been evicted
        caplog.clear()
        with caplog.at_level("INFO", "max_weights"):
            list(weights.stream("pooler", **options))
        assert [record.message for record in caplog.records] == [message]


def test_memory_of_many_threads_counts(tmp_path: Path) -> None:
    path = large(tmp_path, 6, 16 * MIB)
    path.read_bytes()  # from the page cache a thread reads 256 KiB at a time
    weights = max_weights.load_weights(path)
    few, many = (least(weights, dtype={"*": "float16"}, threads=threads) for threads in (2, 48))
    assert few == 2 * 32 * MIB + 2 * 256 * 1024
    assert many == 2 * 32 * MIB + 48 * 256 * 1024
    assert least(weights, threads=48) == 2 * 16 * MIB, "direct reads need no staging buffer"
    assert len(list(weights.stream(dtype={"*": "float16"}, threads=48, max_memory=many))) == 6


def least(weights: Any, **options: Any) -> int:
    with refuses(ValueError) as caught:
        weights.stream(max_memory=1, **options)
    return int(str(caught.value).split("at least ")[1].split(",")[0])


def test_reused_memory_is_at_addresses_that_repeat(tmp_path: Path) -> None:
    weights = max_weights.load_weights(large(tmp_path, 40, 2 * MIB))
    first = []
    addresses = set()
    for i, (_, tensor) in enumerate(weights.stream(max_memory=16 * MIB, reuse=True)):
        addresses.add(tensor._data_ptr())
        first.append(tensor)  # which does not keep its content
        assert tensor[0].item() == i
    assert len(addresses) <= 8
    kept = [tensor for _, tensor in weights.stream(max_memory=16 * MIB)]
    assert len({tensor._data_ptr() for tensor in kept}) == 40
    assert [tensor[0].item() for tensor in kept] == list(range(40))


MEASURE = """
import sys, max_weights, numpy as np
weights = max_weights.load_weights(sys.argv[1])
options = eval(sys.argv[2])
def anonymous():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status["RssAnon"].split()[0]) << 10
if options.pop("pool", False):
    # Blocks that were released, of sizes that do not fit.
    kept = [max_weights.driver.Buffer.zeros(((30 << 20) + i,), "uint8").copy() for i in range(6)]
    del kept
next(iter(weights.stream(max_memory=options["max_memory"])))
max_weights.release_memory() if not options.get("keep") else None
before = anonymous()
peak, slow = 0, options.pop("slow", 0)
import time
for number, (name, tensor) in enumerate(weights.stream(**options)):
    peak = max(peak, anonymous())
    if number % 5 == 0 and slow:
        time.sleep(slow)
        peak = max(peak, anonymous())
    hwm = tensor
print(peak - before)
"""


@pytest.mark.parametrize(
    "options",
    [
        {"max_memory": 64 * MIB},
        {"max_memory": 64 * MIB, "reuse": True},
        {"max_memory": 64 * MIB, "slow": 0.05},
        {"max_memory": 64 * MIB, "slow": 0.05, "reuse": True},
        {"max_memory": 64 * MIB, "slow": 0.05, "dtype": {"*": "float16"}},
        {"max_memory": 96 * MIB, "slow": 0.05, "pool": True},
    ],
    ids=str,
)
def test_the_peak_of_memory_is_the_budget_and_64_mib_at_most(tmp_path: Path, options: dict[str, Any]) -> None:
    header, start = {}, 0
    for i in range(120):
        size = [3 * MIB, 5 * MIB + 4096, 1000, 9 * MIB, 300_000, 2 * MIB - 64][i % 6]
        header[f"w{i}"] = {"dtype": "U8", "shape": [size], "data_offsets": [start, start + size]}
        start += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = tmp_path / "mixed.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + start)
    command = [sys.executable, "-c", MEASURE, path, repr(options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= options["max_memory"] + 64 * MIB, f"{int(done.stdout) / MIB:.1f} MiB"


@pytest.mark.parametrize("reuse", [False, True])
def test_a_break_ends_the_reading_and_leaves_nothing(tmp_path: Path, reuse: bool) -> None:
    weights = max_weights.load_weights(large(tmp_path, 64, 4 * MIB))
    max_weights.release_memory()
    for name, _ in weights.stream(max_memory=64 * MIB, reuse=reuse):
        if name == "w3":
            assert reading() >= 1  # threads have the name of their creator until they set their own
            break
    assert not reading_after(0.1)
    del _
    assert max_weights.release_memory() <= 8 * MIB, "the tensor that was in use"


@pytest.mark.parametrize("end", ["close", "with", "del", "cycle"])
def test_every_way_to_end_a_stream_ends_its_thread(tmp_path: Path, end: str) -> None:
    weights = max_weights.load_weights(large(tmp_path, 64, 4 * MIB))
    stream = weights.stream(max_memory=32 * MIB)
    assert isinstance(stream, WeightStream)
    name, tensor = next(stream)
    started = time.monotonic()
    if end == "close":
        stream.close()
        stream.close()
        assert list(stream) == []
    elif end == "with":
        with stream as same:
            assert same is stream
            next(stream)
    elif end == "cycle":
        stream.__dict__["itself"] = stream
        del stream
        gc.collect()
    else:
        del stream
    assert not reading_after(0.1)
    assert time.monotonic() - started < 0.5
    assert (name, tensor[0].item()) == ("w0", 0)


def test_a_stream_goes_on_when_the_weights_are_closed(models: Path) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    expected = list(weights.load())
    stream = weights.stream(max_memory=100 * MIB)
    weights.close()
    assert [name for name, _ in stream] == expected
    with pytest.raises(max_weights.ClosedError):
        weights.stream()


def test_a_file_that_was_truncated_is_told_at_the_next_step_with_the_tensor(tmp_path: Path) -> None:
    path = large(tmp_path, 64, 4 * MIB)
    weights = max_weights.load_weights(path)
    stream = weights.stream(max_memory=32 * MIB)
    next(stream)
    os.truncate(path, 100 * MIB)
    with refuses(max_weights.FileChangedError, "file.truncated") as caught:
        for _ in stream:
            pass
    assert caught.value.path == str(path)
    assert caught.value.tensor is not None
    assert f"tensor '{caught.value.tensor}'" in str(caught.value)
    assert list(stream) == [], "the error ended it"
    assert not reading_after(0.1)


def test_progress_counts_what_was_given_and_its_exception_ends_the_stream(models: Path) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    reported: list[tuple[int, int]] = []
    for _ in weights.stream(progress=lambda done, of: reported.append((done, of))):
        pass
    size = sum(info.bytes for info in max_weights.infos(weights))
    assert reported == sorted(reported)
    assert reported[-1] == (size, size)
    assert len(list(weights.stream("pooler", progress=True))) == 2

    def fails(_done: int, _of: int) -> None:
        raise RuntimeError("no more")

    stream = weights.stream(progress=fails)
    with refuses(RuntimeError):
        next(stream)
    assert list(stream) == []
    assert not reading_after(0.1)


def test_threads_share_a_stream_and_get_every_weight_once(models: Path) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")
    stream = weights.stream(max_memory=60 * MIB)
    found: list[tuple[str, bytes]] = []

    def take() -> None:
        for name, tensor in stream:
            found.append((name, raw(tensor)))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted((name, raw(tensor)) for name, tensor in weights.load().items())


def test_no_weight_at_all_is_an_empty_stream(make_file: Make) -> None:
    assert list(max_weights.load_weights(make_file({})).stream()) == []
    empty = make_file({"e": ("F32", [0, 3], b""), "s": ("F32", [], bytes(4))})
    for reuse in (False, True):
        found = list(max_weights.load_weights(empty).stream(max_memory=4096, dtype="float16", reuse=reuse))
        assert [tensor.shape for _, tensor in found] == [(0, 3), ()]


def child(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


FORK = """
import os, signal, sys, max_weights
weights = max_weights.load_weights(sys.argv[1])
stream = weights.stream(max_memory=32 << 20)
next(stream)
for wait in (0, 0.01, 0.02):
    if os.fork() == 0:
        signal.alarm(10)  # a child that waits for ever is killed
        try:
            next(stream)
        except ValueError as error:
            assert "open one in the child" in str(error)
        else:
            os._exit(1)
        stream.close()
        del stream
        assert [name for name, _ in weights.stream(max_memory=32 << 20)] == [f"w{i}" for i in range(64)]
        os._exit(0)
    assert os.wait()[1] == 0
assert len(list(stream)) == 63
"""


def test_a_forked_child_is_told_to_open_its_own_stream_and_the_parents_goes_on(tmp_path: Path) -> None:
    done = child(FORK, large(tmp_path, 64, 4 * MIB))
    assert done.returncode == 0, done.stderr


CTRL_C = """
import os, random, signal, sys, threading, time, max_weights

def names():
    found = []
    for task in os.listdir("/proc/self/task"):
        try:
            found.append(open(f"/proc/self/task/{task}/comm").read().strip())
        except OSError:
            pass  # it has ended
    return found

weights = max_weights.load_weights(sys.argv[1])
count, attempts, seconds = map(float, sys.argv[2:])
assert len(list(weights.stream())) == count  # what it imports is there
for attempt in range(int(attempts)):
    timer = threading.Timer(random.uniform(0, seconds), os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        while True:
            for name, tensor in weights.stream(max_memory=64 << 20):
                pass
    except KeyboardInterrupt:
        pass
    timer.join()
    tensor = None
    until = time.monotonic() + 0.2
    while (reading := "max_weights-str" in names()) and time.monotonic() < until:
        time.sleep(0.001)
    assert not reading, attempt
assert len(list(weights.stream(max_memory=64 << 20))) == count
"""


@pytest.mark.parametrize(
    ("count", "size", "attempts", "seconds"),
    [pytest.param(64, 4 * MIB, 12, 0.1, id="reading"), pytest.param(1, 4096, 150, 0.01, id="beginning and ending")],
)
def test_ctrl_c_in_the_consumer_ends_the_stream_and_the_next_one_works(
    tmp_path: Path, count: int, size: int, attempts: int, seconds: float
) -> None:
    done = child(CTRL_C, large(tmp_path, count, size), count, attempts, seconds)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # such as a Ctrl-C that was lost


EXIT = """
import sys, threading, max_weights
weights = max_weights.load_weights(sys.argv[1])
stream = weights.stream(max_memory=32 << 20)
next(stream)
if sys.argv[2] == "thread":
    threading.Thread(target=lambda: [None for _ in stream], daemon=True).start()
elif sys.argv[2] == "error":
    raise SystemExit(0)
"""


@pytest.mark.parametrize("where", ["module", "thread", "error"])
def test_a_process_that_ends_in_the_middle_of_a_stream_ends_well(tmp_path: Path, where: str) -> None:
    path = large(tmp_path, 64, 4 * MIB)
    for _ in range(4):
        done = child(EXIT, path, where)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_signal_that_is_handled_does_not_end_a_stream(tmp_path: Path) -> None:
    weights = max_weights.load_weights(large(tmp_path, 64, 4 * MIB))
    handled = []
    before = signal.signal(signal.SIGALRM, lambda *_: handled.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
    try:
        assert len(list(weights.stream(max_memory=32 * MIB))) == 64
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("options", [{}, {"dtype": "float16"}, {"reuse": True}, {"max_memory": "8MB"}])
def test_what_is_verified_is_compared_before_it_is_given(models: Path, options: dict[str, Any]) -> None:
    weights = max_weights.load_weights(models / "minilm.safetensors")["encoder"].layer[0]
    digests = max_weights.fingerprint(weights, digests=True).digests
    expected = {name: raw(tensor) for name, tensor in weights.load(dtype=options.get("dtype")).items()}
    assert {name: raw(tensor) for name, tensor in weights.stream(digests=digests, **options)} == expected
    *good, last = digests
    stream, given = weights.stream(digests={**digests, last: digests[good[0]]}, **options), []

    def take_all() -> None:
        given.extend(name for name, _ in stream)

    with refuses(max_weights.FormatError, "tensor.digest"):
        take_all()
    assert last not in given
    with refuses(ValueError, "argument.digests"):
        weights.stream(digests={name: digests[name] for name in good})
