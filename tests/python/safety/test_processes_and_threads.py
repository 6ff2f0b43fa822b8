"""Pickling by reference, spawned and forked workers, and many threads on one tree of weights."""

import concurrent.futures
import copy
import json
import multiprocessing
import os
import pickle
import struct
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import max_weights
from max_weights import DType, FileChangedError, MissingFileError, nn
from max_weights.driver import Buffer
from max_weights.graph import DeviceRef, Weight
from refusals import refuses

Make = Callable[..., Path]
MEGABYTE = 1 << 20


@pytest.fixture
def path(make_file: Make) -> Path:
    tensors = {f"layers.{i}.weight": np.full((256, 1024), i, np.float32) for i in range(8)}
    return make_file(tensors)


def total(weights: Any) -> float:
    return float(sum(np.asarray(weight.data()).sum(dtype=np.float64) for _, weight in weights.items()))


class Written(nn.Module):
    """One weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = Weight("weight", DType.float32, [256, 1024], DeviceRef.CPU())

    def __call__(self) -> None: ...


EXPECTED = sum(i * 256 * 1024 for i in range(8))


def test_weights_pickle_by_reference(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    weights = max_weights.load_weights(path.name, backend="read", strict=False)
    text = pickle.dumps(weights.layers[3].weight)
    assert len(text) < 1000
    monkeypatch.chdir("/")
    node = pickle.loads(text)
    assert node.name == "layers.3.weight"
    assert np.asarray(node.data())[0, 0] == 3
    assert not node.data().data.is_mapped, "the backend goes along"
    assert total(pickle.loads(pickle.dumps(weights))) == EXPECTED


def test_a_mapped_tensor_pickles_by_reference_and_another_by_its_bytes(path: Path) -> None:
    weights = max_weights.load_weights(path)
    value = weights.layers[5].weight.data()
    text = pickle.dumps(value)
    assert len(text) < 1000
    again = pickle.loads(text)
    assert (again.name, again.dtype, again.shape) == (value.name, value.dtype, value.shape)
    assert again.data.is_mapped
    assert np.array_equal(np.asarray(again), np.asarray(value))
    part = value.data[3:200:7, ::-2]
    assert len(pickle.dumps(part)) < 1000
    assert np.array_equal(pickle.loads(pickle.dumps(part)).to_numpy(), part.to_numpy())
    own = value.data.copy()
    assert len(pickle.dumps(own)) > MEGABYTE
    assert np.array_equal(pickle.loads(pickle.dumps(own)).to_numpy(), own.to_numpy())
    for small in (
        Buffer.zeros((), "i64"),
        Buffer.zeros((0, 3), DType.bfloat16),
        Buffer.zeros((2, 4), "u8").view(DType.float4_e2m1fn),
    ):
        assert str(pickle.loads(pickle.dumps(small))) == str(small)


def mappings(path: Path) -> int:
    return sum(str(path) in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_nodes_that_are_unpickled_one_by_one_open_the_file_once(path: Path) -> None:
    weights = max_weights.load_weights(path)
    nodes = [pickle.loads(pickle.dumps(weight)) for _, weight in weights.items()]
    weights.close()
    del weights
    before = len(os.listdir("/proc/self/fd"))
    again = [pickle.loads(pickle.dumps(node)) for node in nodes]
    assert len(os.listdir("/proc/self/fd")) == before
    assert [np.asarray(node.data())[0, 0] for node in again] == list(range(8))
    assert mappings(path) == 1


def test_views_in_one_pickle_share_one_mapping_and_those_of_two_share_nothing(path: Path) -> None:
    weights = max_weights.load_weights(path)
    values = [weight.data() for _, weight in weights.items()]
    text = pickle.dumps([*values, values[0]])
    del weights, values
    one = pickle.loads(text)
    assert mappings(path) == 1
    other = pickle.loads(text)
    assert mappings(path) == 2
    np.asarray(one[0])[0, 0] = 99
    assert np.asarray(one[8])[0, 0] == 99, "the same tensor in the same pickle"
    assert np.asarray(other[0])[0, 0] == 0
    assert np.asarray(pickle.loads(text)[0])[0, 0] == 0


def test_trees_that_are_unpickled_twice_close_and_allocate_each_by_itself(path: Path) -> None:
    text = pickle.dumps(max_weights.load_weights(path))
    one, other = pickle.loads(text), pickle.loads(text)
    one.layers[0].weight.allocate()
    assert list(one.allocated_weights) == ["layers.0.weight"]
    assert list(other.allocated_weights) == []
    with pickle.loads(text):
        pass
    one.close()
    assert total(other) == EXPECTED
    with pytest.raises(max_weights.ClosedError):
        one.layers[0].weight.data()


@pytest.mark.parametrize("entry_point", ["numpy", "torch", "index", "out"])
def test_a_view_that_was_written_to_pickles_with_what_was_written(path: Path, entry_point: str) -> None:
    weights = max_weights.load_weights(path)
    value, neighbour = weights.layers[5].weight.data(), weights.layers[7].weight.data()
    if entry_point == "numpy":
        np.asarray(value)[3, 4] = 77
    elif entry_point == "torch":
        torch.from_dlpack(value)[3, 4] = 77
    elif entry_point == "index":
        value.to_buffer()[3, 4] = 77
    else:
        changed = value.to_buffer().copy()
        changed[3, 4] = 77
        changed.astype("float32", out=value.to_buffer())
    for again in (pickle.loads(pickle.dumps(value)), pickle.loads(pickle.dumps({"a": [value]}))["a"][0]):
        assert np.array_equal(np.asarray(again), np.asarray(value))
        assert np.asarray(again)[3, 4] == 77
    row = value.to_buffer()[3, ::2]
    assert np.array_equal(pickle.loads(pickle.dumps(row)).to_numpy(), row.to_numpy())
    assert len(pickle.dumps(neighbour)) < 1000, "this one was never written to"
    assert len(pickle.dumps(max_weights.load_weights(path).layers[5].weight.data())) < 1000


def test_a_module_whose_views_were_written_to_pickles_with_what_was_written(path: Path) -> None:
    model = Written()
    model.load_state_dict(max_weights.load_weights(path).layers[2])
    values = model.state_dict()
    np.asarray(values["weight"])[0, 0] = 55
    again = pickle.loads(pickle.dumps(model))
    assert np.asarray(again.state_dict()["weight"])[0, 0] == 55


def test_a_view_where_mapping_is_refused_is_unpickled_without_the_rest_of_the_file(tmp_path: Path) -> None:
    size = 1 << 33
    header = json.dumps(
        {
            "big": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]},
            "v": {"dtype": "F32", "shape": [2], "data_offsets": [size, size + 8]},
        }
    ).encode()
    header += b" " * (-len(header) % 8)
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.seek(8 + len(header) + size)
        file.write(np.array([1, 2], np.float32).tobytes())
    text = pickle.dumps(max_weights.load_weights(path).v.data().to_buffer())
    script = (
        "import pickle, resource, sys, max_weights; resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32)); "
        "view = pickle.loads(bytes.fromhex(sys.argv[1])); print(view.to_numpy().tolist(), view.is_mapped)"
    )
    done = subprocess.run([sys.executable, "-c", script, text.hex()], capture_output=True, text=True)
    assert done.stdout.strip() == "[1.0, 2.0] False", done.stderr


def test_a_file_that_is_another_one_by_now_is_refused(path: Path) -> None:
    weights = max_weights.load_weights(path)
    texts = [pickle.dumps(weights), pickle.dumps(weights.layers[0].weight.data())]
    time.sleep(0.02)
    content = path.read_bytes()
    path.unlink()
    for text in texts:
        with pytest.raises(MissingFileError):
            pickle.loads(text)
    path.write_bytes(content)
    for text in texts:
        with refuses(FileChangedError, "file.replaced"):
            pickle.loads(text)
    weights.close()
    with pytest.raises(max_weights.ClosedError):
        pickle.dumps(weights)


def test_a_sharded_checkpoint_pickles_by_its_index(models: Path) -> None:
    weights = max_weights.load_weights(models / "derived/sharded")
    again = pickle.loads(pickle.dumps(weights))
    assert [info.name for info in max_weights.infos(again)] == [info.name for info in max_weights.infos(weights)]
    assert copy.deepcopy(weights) is weights


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_workers_read_the_same_weights(path: Path, method: str) -> None:
    weights = max_weights.load_weights(path)
    assert total(weights) == EXPECTED
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fork with threads: users do it all the same
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(total, [weights, weights.layers[7], weights.layers[7].weight.data() and weights]) == [
                EXPECTED,
                7 * 256 * 1024,
                EXPECTED,
            ]


def test_a_forked_child_uses_what_its_parent_opened(path: Path) -> None:
    weights = max_weights.load_weights(path)
    array = np.asarray(weights.layers[1].weight.data())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        array[0, 0] = 99  # the child's private page
        os._exit(0 if total(weights) == EXPECTED + 98 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert array[0, 0] == 1


class Rows(Dataset[torch.Tensor]):
    def __init__(self, weights: Any) -> None:
        self.weights = weights

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_dlpack(self.weights.layers[index].weight)[0, :4].clone()


def test_dataloader_workers_take_weights(path: Path) -> None:
    loader = DataLoader(
        Rows(max_weights.load_weights(path)), batch_size=4, num_workers=2, multiprocessing_context="spawn"
    )
    assert [batch[:, 0].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_sixteen_threads_open_walk_and_read_one_tree(path: Path) -> None:
    shared = {backend: max_weights.load_weights(path, backend=backend) for backend in ("mmap", "read")}
    start = threading.Barrier(16)

    def work(seed: int) -> int:
        rng = np.random.default_rng(seed)
        start.wait()
        for _ in range(30):
            weights: Any = shared[("mmap", "read")[int(rng.integers(2))]]
            layer = int(rng.integers(8))
            match int(rng.integers(6)):
                case 0:
                    assert len(max_weights.infos(weights.layers[layer].weight)) == 1
                case 1:
                    assert [name for name, _ in weights.items()][layer] == f"layers.{layer}.weight"
                case 2:
                    assert np.asarray(weights.layers[layer].weight.data())[17, 5] == layer
                case 3:
                    assert weights.layers[layer].weight.data().data[::16].copy()[3, 3].item() == layer
                case 4:
                    assert total(max_weights.load_weights(path).layers[layer]) == layer * 256 * 1024
                case 5:
                    weights.layers[layer].weight.allocate()
                    with pytest.raises(KeyError, match="did you mean"):
                        weights.layers[layer].wieght.data()
        return seed

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert sorted(pool.map(work, range(16))) == list(range(16))


def test_closing_beside_readers_gives_values_or_the_named_error(path: Path) -> None:
    weights = max_weights.load_weights(path)
    closed = threading.Event()

    def read() -> int:
        count = 0
        while True:
            try:
                assert np.asarray(weights.layers[count % 8].weight.data())[0, 0] == count % 8
            except max_weights.ClosedError:
                assert closed.is_set()
                return count
            count += 1

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read) for _ in range(4)]
        time.sleep(0.1)
        closed.set()
        weights.close()
        assert all(reader.result(timeout=30) >= 0 for reader in readers)


def test_a_number_of_threads_that_nobody_can_use_does_not_slow_anything_down(tmp_path: Path) -> None:
    program = """
import sys
import numpy as np
import max_weights
from max_weights import _core, load_weights, save_file

assert _core.get_threads() == 512
path = sys.argv[1] + "/a.safetensors"
save_file({f"w{i}": np.full((64, 64), i, np.float32) for i in range(100)}, path)
loaded = load_weights(path).load(framework="numpy", dtype="float16", copy=True)
assert loaded["w99"][0, 0] == 99
max_weights.set_threads(100_000)
assert _core.get_threads() == 512
"""
    environment = {**os.environ, "MAX_WEIGHTS_THREADS": "10000"}
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60, env=environment)
