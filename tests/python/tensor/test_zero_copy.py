"""Zero-copy tensors are writable private pages: no write reaches the file, another mapping, or crashes."""

import hashlib
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import max_weights
import max_weights.torch

Make = Callable[..., Path]


def test_writing_through_torch_changes_neither_the_file_nor_another_process(make_file: Make) -> None:
    path = make_file({"w": np.arange(4096, dtype=np.float32)})
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    weights, other = max_weights.load_weights(path), max_weights.load_weights(path)
    tensor = torch.from_dlpack(weights.w)
    tensor[0] = 42
    assert np.asarray(weights.w.data())[0] == 42, "one tree, one memory"
    assert np.asarray(other.w.data())[0] == 0
    script = f"import max_weights, numpy as np; print(np.asarray(max_weights.load_weights({str(path)!r}).w.data())[0])"
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
        == "0.0"
    )
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before


def test_a_file_that_may_only_be_read_gives_writable_tensors(make_file: Make) -> None:
    path = make_file({"w": np.zeros(4, np.float32)})
    path.chmod(0o400)
    array = np.asarray(max_weights.load_weights(path).w.data())
    array[:] = 1
    assert array.sum() == 4


def sparse_file(path: Path, size: int) -> Path:
    """A sparse safetensors file of one tensor of `size` bytes."""
    header = b'{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (size, size)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    return path


def test_a_sparse_file_larger_than_memory_opens(tmp_path: Path) -> None:
    memory = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    path = sparse_file(tmp_path / "sparse.safetensors", 4 * memory)
    tensor = max_weights.torch.load_file(path)["w"]
    assert tensor.numel() == 4 * memory
    assert int(tensor[-1]) == 0
    tensor[-1] = 7
    assert int(tensor[-1]) == 7


def test_reads_where_the_system_refuses_to_map_and_says_so_once(make_file: Make) -> None:
    path = make_file(
        {
            "a": np.arange(4, dtype=np.float32),
            "b": np.arange(4, dtype=np.float32),
            "big": ("U8", [1 << 28], b"\0" * (1 << 28)),
        }
    )
    script = f"""
import logging, resource, numpy, max_weights, max_weights._buffer
logging.basicConfig(format="LOG %(name)s %(message)s")
weights = max_weights.load_weights({str(path)!r})
numpy.asarray(numpy.zeros(1))
import ml_dtypes
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (128 << 20), resource.RLIM_INFINITY))
for name in ("a", "b"):
    print(weights[name].data().data.is_mapped, numpy.asarray(weights[name].data()).tolist())
try:
    weights.big.data()
except MemoryError as error:
    print("MemoryError", error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["False [0.0, 1.0, 2.0, 3.0]"] * 2
    assert lines[2].startswith("MemoryError")
    assert str(path) in lines[2]
    assert done.stderr.count("LOG max_weights") == 1
    assert "cannot be mapped" in done.stderr


@pytest.mark.parametrize("entry_point", ["numpy", "torch"])
def test_taking_and_dropping_many_tensors_leaks_nothing(make_file: Make, entry_point: str) -> None:
    weights = max_weights.load_weights(make_file({f"t{i}": np.zeros(16, np.float32) for i in range(50)}))

    def once() -> None:
        for _, weight in weights.items():
            np.asarray(weight.data()) if entry_point == "numpy" else torch.from_dlpack(weight.data())

    for _ in range(20):
        once()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(400):
        once()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4096, "KiB"
