"""Strided views: copies, conversions and readahead give NumPy's values, at the cost of the view's size."""

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import max_weights
from max_weights import DType
from max_weights.driver import Buffer
from refusals import refuses

Make = Callable[..., Path]


def measured(script: str, *arguments: object) -> dict[str, float]:
    """The numbers by name that a fresh process prints: peak private memory in MB, measured by `with Peak()`."""
    prelude = """
import sys, threading, time, numpy as np, max_weights
from max_weights.driver import Buffer
def private():
    return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("RssAnon"))
class Peak:
    def __enter__(self):
        self.before = self.most = private()
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
    def watch(self):
        while not self.done.wait(0.001):
            self.most = max(self.most, private())
    def __exit__(self, *_):
        self.done.set()
        self.thread.join()
        print("peak", self.most - self.before)
"""
    run = subprocess.run(
        [sys.executable, "-c", prelude + script, *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    return {key: float(value) for key, value in (line.split() for line in run.stdout.splitlines())}


def random_view(array: np.ndarray[Any, Any], chance: random.Random) -> tuple[Any, ...]:
    def part(dim: int) -> Any:
        match chance.randrange(6):
            case 0 if dim:
                return chance.randrange(dim)
            case 1:
                return slice(None)
            case 2:
                return slice(None, None, -chance.randint(1, 3))
            case 3:
                return slice(chance.randint(0, dim), chance.randint(0, dim), chance.randint(1, 5))
            case _:
                return slice(chance.randint(0, dim), None, chance.choice((1, 1, 2, 7)))

    return tuple(part(dim) for dim in array.shape[: chance.randint(0, array.ndim)])


@pytest.mark.parametrize("backend", ["mmap", "read"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
def test_copies_of_any_view_are_numpys(make_file: Make, backend: str, dtype: type) -> None:
    chance = random.Random(f"{backend} {dtype.__name__}")
    shapes = [(5,), (300, 7), (3, 900, 5), (2, 3, 4, 5), (1, 6, 1, 9), (70_000, 3), (3, 1 << 17), (0, 4), ()]
    arrays = {
        f"w{i}": np.random.default_rng(i).integers(0, 255, np.prod(shape, dtype=int)).astype(dtype).reshape(shape)
        for i, shape in enumerate(shapes)
    }
    weights = max_weights.load_weights(make_file(arrays), backend=backend)
    for _ in range(400):
        name = chance.choice(list(arrays))
        array, buffer = arrays[name], weights[name].data().data
        key = random_view(array, chance)
        expected, view = array[key], buffer[key]
        copied = view.copy().to_numpy()
        assert copied.shape == expected.shape, key
        assert np.array_equal(copied, expected), key
        assert np.array_equal(view.astype("float64").to_numpy(), expected.astype(np.float64)), key


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 1, 0), (0, 2, 1), (2, 0, 1)])
def test_dimensions_in_any_order_are_copied_and_converted(order: tuple[int, ...]) -> None:
    array = np.arange(50 * 700 * 90, dtype=np.float32).reshape(50, 700, 90)
    view = Buffer.from_numpy(array.transpose(order))
    assert np.array_equal(view.copy().to_numpy(), array.transpose(order))
    assert np.array_equal(view[::-1, 1:, ::3].astype("float64").to_numpy(), array.transpose(order)[::-1, 1:, ::3])


@pytest.mark.parametrize("target", ["float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"])
@pytest.mark.parametrize("rows", [8, 40_000])
def test_a_view_with_strides_converts_to_packed_dtypes(target: str, rows: int) -> None:
    values = np.random.default_rng(0).normal(size=(rows, 24)).astype(np.float32)
    for key in (np.s_[:, ::2], np.s_[::-1], np.s_[4:, 4:8], np.s_[:, 3:4]):
        contiguous = Buffer.from_numpy(np.ascontiguousarray(values[key])).astype(target)
        packed = Buffer.from_numpy(values)[key].astype(target)
        size = [packed.nbytes]
        assert bytes(packed.view("uint8", size)) == bytes(contiguous.view("uint8", size)), key


@pytest.mark.parametrize("stored", ["F6_E2M3", "F6_E3M2", "F4"])
@pytest.mark.parametrize("target", ["float32", "bfloat16", "float6_e2m3fn", "float4_e2m1fn", "uint8"])
def test_mapped_packed_dtypes_of_any_size_convert_as_in_memory(tmp_path: Path, stored: str, target: str) -> None:
    """Regression: from 349,525 elements on, guarded copies of a mapping began inside a byte."""
    bits = 4 if stored == "F4" else 6
    count = 4 * 349_526
    data = np.random.default_rng(0).integers(0, 256, count * bits // 8, dtype=np.uint8).tobytes()
    header = f'{{"w":{{"dtype":"{stored}","shape":[{count}],"data_offsets":[0,{len(data)}]}}}}'.encode()
    header += b" " * (-len(header) % 8)
    path = tmp_path / "packed.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    mapped, heap = (max_weights.load_weights(path, backend=backend).w.data().data for backend in ("mmap", "read"))
    assert mapped.is_mapped
    assert not heap.is_mapped
    assert bytes(mapped.astype(target).view("uint8")) == bytes(heap.astype(target).view("uint8"))


def sparse_file(path: Path, columns: int, rows: int) -> Path:
    """A sparse file of zeros of any size."""
    size = rows * columns * 4
    header = f'{{"w":{{"dtype":"F32","shape":[{rows},{columns}],"data_offsets":[0,{size}]}}}}'.encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    return path


def test_two_elements_that_lie_far_apart_cost_two_elements(tmp_path: Path) -> None:
    path = sparse_file(tmp_path / "large.safetensors", columns=128 << 20, rows=2)
    script = """
view = max_weights.load_weights(sys.argv[1]).w.data().data[:, 5:6]
with Peak():
    view.copy()
    view.astype("float64")
    view.contiguous()
"""
    assert measured(script, path)["peak"] < 64


def test_a_column_costs_its_own_elements(tmp_path: Path) -> None:
    path = sparse_file(tmp_path / "large.safetensors", columns=4096, rows=32_768)
    script = """
view = max_weights.load_weights(sys.argv[1]).w.data().data[:, 100:132]
with Peak():
    view.copy()
"""
    assert measured(script, path)["peak"] < 64 + 2 * 4


def test_conversions_of_views_with_strides_need_room_for_parts_not_for_the_whole() -> None:
    script = """
array = np.ones((2, 32 << 20), np.float32)
view = Buffer.from_numpy(array)[:, ::-1]
with Peak():
    view.astype("float16")
"""
    assert measured(script)["peak"] < 128 + 64


@pytest.mark.parametrize("shape", [(2**62, 0), (200_000_000, 0), (0, 2**62), (3, 0, 2**40)])
def test_reading_ahead_of_nothing_ends(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = tmp_path / "empty.safetensors"
    header = f'{{"w":{{"dtype":"U8","shape":{list(shape)},"data_offsets":[0,0]}},'.encode()
    header += b'"x":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    script = """
buffer = max_weights.load_weights(sys.argv[1]).w.data().data
buffer.prefetch(); buffer.copy(); buffer.astype("float32")
print("ended", 1)
"""
    assert measured(script, path)["ended"]


def test_reading_ahead_of_a_broadcast_view_asks_for_its_bytes_once(tmp_path: Path) -> None:
    import torch

    path = tmp_path / "expanded.pt"
    torch.save(
        {"w": torch.zeros(1, 8).expand(1 << 40, 8), "v": torch.zeros(4096).as_strided((999, 999, 999), (1, 1, 2))}, path
    )
    script = """
weights = max_weights.load_weights(sys.argv[1])
weights.w.data().data.prefetch(); weights.v.data().data.prefetch()
print("ended", 1)
"""
    assert measured(script, path)["ended"]


def test_views_with_strides_of_a_truncated_file_give_an_error(make_file: Make) -> None:
    import os

    path = make_file({"w": np.zeros((4096, 4096), np.float32)})
    buffer = max_weights.load_weights(path).w.data().data
    os.truncate(path, 8192)
    for key in (np.s_[:, ::2], np.s_[:, 7], np.s_[::-1, ::-1], np.s_[:, 5:500]):
        with refuses(max_weights.FileChangedError, "file.truncated"):
            buffer[key].copy()
        with refuses(max_weights.FileChangedError, "file.truncated"):
            buffer[key].astype(DType.float16)
