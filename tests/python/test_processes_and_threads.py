"""Pickling by reference, spawned and forked workers, and many threads on one tree of weights."""

import concurrent.futures
import copy
import multiprocessing
import os
import pickle
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
from max_weights import DType, FileChangedError, MissingFileError
from max_weights.driver import Buffer

Make = Callable[..., Path]
MEGABYTE = 1 << 20


@pytest.fixture
def path(make_file: Make) -> Path:
    tensors = {f"layers.{i}.weight": np.full((256, 1024), i, np.float32) for i in range(8)}
    return make_file(tensors)


def total(weights: Any) -> float:
    return float(sum(np.asarray(weight.data()).sum(dtype=np.float64) for _, weight in weights.items()))


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


def test_what_is_unpickled_twice_is_opened_and_mapped_once(path: Path) -> None:
    weights = max_weights.load_weights(path)
    nodes = [pickle.loads(pickle.dumps(weight)) for _, weight in weights.items()]
    values = [pickle.loads(pickle.dumps(weight.data())) for _, weight in weights.items()]
    weights.close()
    assert len(nodes) == len(values) == 8
    del weights
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(path) in line]
    assert len(mapped) == 1, "the nodes have not mapped yet, and the values share one mapping"


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
        with pytest.raises(FileChangedError, match="not the one that was opened before"):
            pickle.loads(text)
    weights.close()
    with pytest.raises(max_weights.ClosedError):
        pickle.dumps(weights)


def test_a_sharded_checkpoint_pickles_by_its_index(models: Path) -> None:
    weights = max_weights.load_weights(models / "derived/sharded")
    again = pickle.loads(pickle.dumps(weights))
    assert [info.name for info in again.infos()] == [info.name for info in weights.infos()]
    assert copy.deepcopy(weights) is weights


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_workers_read_the_same_weights(path: Path, method: str) -> None:
    weights = max_weights.load_weights(path)
    assert total(weights) == EXPECTED
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fork beside threads: what users do all the same
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
                    assert len(weights.layers[layer].weight.infos()) == 1
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
