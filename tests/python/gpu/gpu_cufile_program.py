"""Run by test_gpu_cufile.py in separate processes, on the stand-ins for libcuda and libcufile: one function for each
promise of `load(device=…, backend="cufile")`.
"""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

import max_weights
from gpu_loading_program import large
from gpu_program import nothing_is_left, refused, same
from max_weights import load_weights
from max_weights.sharding import Shard, ShardingStrategy


def bytes_come_without_the_host(folder: Path) -> None:
    path = large(folder, 60)
    weights = load_weights(path)
    halves = {"*.weight": ShardingStrategy.rowwise(2), "*": None}
    several: list[dict[str, Any]] = [{}, {"dtype": {"*.weight": "float32"}}, {"shard": Shard(1, 2, halves)}]
    for options in several:
        expected = weights.load(**({"copy": True} | options))
        there = weights.load(device="cuda:1", backend="cufile", **options)
        assert list(there) == list(expected)
        assert all(same(there[name].to("cpu"), tensor) for name, tensor in expected.items())
        if not options:
            counts = map(int, Path(os.environ["FAKE_CUFILE_REPORT"]).read_text().split())
            assert sum(counts) > 58 << 20, "but for the small tensors and the ends of others"
    names = list(weights.load())
    streamed = dict(weights.stream(device="cuda:0", backend="cufile"))
    assert list(streamed) == names
    assert max_weights.plan(weights, device="cuda:0", backend="cufile").how.startswith("cufile, ")
    del there, streamed
    assert nothing_is_left()


def what_fails_is_an_error_and_leaves_nothing(folder: Path) -> None:
    weights = load_weights(large(folder, 60))
    call = os.environ["FAKE_CUFILE_FAIL"]
    message = refused(lambda: weights.load(device="cuda", backend="cufile"))
    assert message.startswith("GPUDirect Storage: "), message
    assert call in message
    assert "5000" in message
    assert "backend='auto' works without it" in message
    assert weights.load(device="cuda")
    assert nothing_is_left()


def a_machine_without_the_library_says_what_is_missing(folder: Path) -> None:
    weights = load_weights(large(folder, 5))
    message = refused(lambda: weights.load(device="cuda", backend="cufile"))
    assert message.startswith("GPUDirect Storage needs libcufile.so.0, which was not found: install"), message
    with pytest.raises(ValueError, match="backend='cufile' reads from a disk to a GPU: name the GPU with device="):
        weights.load(backend="cufile")
    assert nothing_is_left()


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
