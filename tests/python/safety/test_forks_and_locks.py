"""No thread waits for another's read, and no forked child for a lock held by its parent."""

import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import max_weights
import warm as warm_processes
from max_weights import FileChangedError
from refusals import refuses

Make = Callable[..., Path]


def large_and_small(path: Path, size: int) -> Path:
    """A sparse file with a large tensor of zeros, and a small tensor."""
    header = {
        "large": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]},
        "small": {"dtype": "F32", "shape": [1], "data_offsets": [size, size + 4]},
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.seek(size, os.SEEK_CUR)
        file.write(struct.pack("<f", 7))
    return path


def test_a_small_tensor_does_not_wait_for_a_large_one_that_is_read(tmp_path: Path) -> None:
    weights = max_weights.load_weights(large_and_small(tmp_path / "m.safetensors", 1 << 30), backend="read")
    begun, done = threading.Event(), []

    def read() -> None:
        begun.set()
        value = weights.large.data()
        done.append(value)

    reader = threading.Thread(target=read)
    reader.start()
    begun.wait()
    time.sleep(0.03)  # so that it reads now
    assert weights.small.data().data.item() == 7
    assert not done
    reader.join()


FORK_WHILE_READING = """
import os, signal, sys, threading, time, max_weights
weights = max_weights.load_weights(sys.argv[1], backend="read")
thread = threading.Thread(target=weights.large.data)
thread.start()
time.sleep(0.02)
child = os.fork()
if child == 0:
    signal.alarm(10)  # a child that waits for a lock for ever is killed
    assert weights.small.data().data.item() == 7
    assert weights.large.data().shape[0] == 1 << 29
    os._exit(0)
status = os.waitpid(child, 0)[1]
thread.join()
raise SystemExit(os.waitstatus_to_exitcode(status))
"""

FORKS_WHILE_COPYING = """
import os, signal, threading, numpy as np, max_weights
from max_weights.driver import Buffer
source = Buffer.from_numpy(np.ones(1 << 18, np.float32))
kept = [Buffer.zeros((1 << 20,), "uint8") for _ in range(2500)]
del kept  # the longer the list of kept blocks, the longer its lock is held
done = threading.Event()
def work():
    while not done.is_set():
        source.copy()
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
failed = 0
for _ in range(100):
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        for _ in range(3):
            source.copy()
        max_weights.release_memory()
        os._exit(0)
    failed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
    if failed:
        break
done.set()
for thread in threads:
    thread.join()
raise SystemExit(failed)
"""


def run(script: str, *arguments: object, limits: str = "") -> None:
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", limits + script, *map(str, arguments)], check=True, timeout=120
    )


def test_a_child_forked_while_a_tensor_is_read_does_not_hang(tmp_path: Path) -> None:
    run(FORK_WHILE_READING, large_and_small(tmp_path / "m.safetensors", 1 << 29))


def test_children_forked_while_threads_copy_do_not_hang() -> None:
    run(FORKS_WHILE_COPYING)


CHILD_OF = """
import os, signal, threading

def child_of(hold, act):
    # Whether a child ends that was forked while another thread of its parent held a lock.
    held, resume = threading.Event(), threading.Event()
    def hold_it():
        with hold:
            held.set()
            resume.wait()
    thread = threading.Thread(target=hold_it)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        act()
        os._exit(0)
    resume.set()
    thread.join()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""

FORK_WHILE_A_WEIGHT_IS_ADDED = f"""{CHILD_OF}
from max_weights.dtype import DType
from max_weights.graph import DeviceRef, Graph, Weight, _declared as declared, _graph as graph
built = Graph("built", input_types=[])
for lock in (graph._adding, declared._adding):
    def add():
        with built, lock:
            built.add_weight(Weight("w", DType.float32, [2], DeviceRef.CPU()))
    assert child_of(lock, add) == 0
"""


def test_a_child_forked_while_a_weight_is_added_to_a_graph_does_not_hang() -> None:
    run(FORK_WHILE_A_WEIGHT_IS_ADDED)


@pytest.mark.parametrize("backend", ["mmap", "read"])
def test_many_threads_that_take_one_tensor_get_views_of_one_mapping_or_memory_of_their_own(
    make_file: Make, backend: str
) -> None:
    path = make_file({"w": np.arange(1 << 20, dtype=np.float32)})
    for _ in range(10):
        weights = max_weights.load_weights(path, backend=backend)
        taken: list[max_weights.WeightData] = []
        threads = [threading.Thread(target=lambda w=weights, t=taken: t.append(w.w.data())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(np.array_equal(value, np.arange(1 << 20)) for value in taken)
        assert len({value.data._data_ptr() for value in taken}) == (1 if backend == "mmap" else 8)


def shards(folder: Path, count: int) -> Path:
    """A set of small shards and its index."""
    names = [f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]
    for i, name in enumerate(names):
        text = json.dumps({f"w{i}": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
        text += b" " * (-len(text) % 8)
        (folder / name).write_bytes(struct.pack("<Q", len(text)) + text + struct.pack("<ff", i, -i))
    index = folder / "model.safetensors.index.json"
    index.write_text(
        json.dumps(
            {"metadata": {"total_size": 8 * count}, "weight_map": {f"w{i}": name for i, name in enumerate(names)}}
        )
    )
    return index


@pytest.mark.parametrize("backend", ["mmap", "read"])
def test_a_set_of_many_files_holds_few_of_them_open(tmp_path: Path, backend: str) -> None:
    """Common limits of open files are 1,024 and 256."""
    index = shards(tmp_path, 600)
    limits = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))\n"
    script = """
import os, sys, numpy, max_weights
for path in (sys.argv[1], [entry.path for entry in os.scandir(os.path.dirname(sys.argv[1])) if "-of-" in entry.name]):
    weights = max_weights.load_weights(path, backend=sys.argv[2])
    for i in range(600):
        assert weights[f"w{i}"].data().data[0].item() == i
    assert len(os.listdir("/proc/self/fd")) < 150
    weights.close()
"""
    run(script, index, backend, limits=limits)


@pytest.mark.parametrize("backend", ["mmap", "read"])
def test_a_file_of_a_large_set_that_was_replaced_is_named(tmp_path: Path, backend: str) -> None:
    weights = max_weights.load_weights(shards(tmp_path, 200), backend=backend)
    last = tmp_path / "model-00200-of-00200.safetensors"
    content = last.read_bytes()
    last.unlink()
    (tmp_path / "new").write_bytes(content)
    (tmp_path / "new").rename(last)
    with refuses(FileChangedError, "file.replaced") as caught:
        weights.w199.data()
    assert caught.value.rule == "file.replaced"
    assert weights.w0.data().data[0].item() == 0


def test_a_file_that_shrank_before_its_first_tensor_is_taken_gives_an_error(make_file: Make) -> None:
    path = make_file({"w": np.ones((1 << 20,), np.float32)})
    script = """
import os, sys, numpy, max_weights
weights = max_weights.load_weights(sys.argv[1])
os.truncate(sys.argv[1], 8192)
try:
    array = numpy.asarray(weights.w.data())
except max_weights.FileChangedError as error:
    assert "truncated" in str(error)
else:
    print(array[-1])
    raise SystemExit("no error")
"""
    run(script, path)


FORKS = f"""{CHILD_OF}
import torch, max_weights
from max_weights._dropin import calls, patching

def use():
    torch.save(torch.ones(3), "child.pt")
    assert torch.load("child.pt").tolist() == [1, 1, 1]
    max_weights.patched(); max_weights.unpatch(); max_weights.patch(); max_weights.unpatch()
    assert torch.load.__module__ == "torch.serialization" and not max_weights.patched()

max_weights.patch()
for hold in (patching._state.lock, calls._counting):
    assert child_of(hold, use) == 0
with patching._state.lock:  # which still holds it
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        use()
if child == 0:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

# And at any moment of a thread that does nothing else.
done = threading.Event()
def again():
    while not done.is_set():
        max_weights.patch()
        max_weights.unpatch()
thread = threading.Thread(target=again)
thread.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        use()
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        break
done.set()
thread.join()
print(status)
"""


def test_children_that_are_forked_while_threads_patch_and_unpatch_do_not_hang(
    warm: warm_processes.Parent, tmp_path: Path
) -> None:
    done = warm.run(FORKS, tmp_path)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
