"""Rows of tables on a server: scattered rows are single requests, many at a time, and neighbours are one."""

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import max_weights
from fault_server import FaultServer
from max_weights import FileChangedError
from refusals import refuses

ROWS = 40_000
WHOLE = np.random.default_rng(5).integers(0, 256, (ROWS, 640), dtype=np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    safetensors.numpy.save_file({"t": WHOLE}, folder / "t.safetensors")
    return folder


@pytest.mark.parametrize("cache", [0, "1MB"])
def test_scattered_rows_are_many_requests_at_a_time_and_neighbours_are_one(folder: Path, cache: int | str) -> None:
    with FaultServer(folder, latency_ms=5) as server:
        table = max_weights.table(server.file("t.safetensors"), "t", cache=cache)
        server.reset_counts()
        far = np.arange(500, ROWS, 400)
        assert np.array_equal(table.take(np.repeat(far, 3), framework="numpy"), WHOLE[np.repeat(far, 3)])
        counts = server.counts()
        assert counts["requests"] == len(far)
        assert counts["most_at_once"] > 30
        assert counts["bytes"] < 2 * len(far) * 640
        server.reset_counts()
        near = np.arange(20_001, 20_100)[::-1]
        assert np.array_equal(table.take(near, framework="numpy"), WHOLE[near])
        assert server.counts()["requests"] == 1
        server.reset_counts()
        assert np.array_equal(table.take(near, framework="numpy"), WHOLE[near])
        assert server.counts()["requests"] == (0 if cache else 1)


def test_an_index_of_a_served_weight_reads_its_rows(folder: Path) -> None:
    with FaultServer(folder) as server:
        weights = max_weights.load_weights(server.file("t.safetensors"))
        server.reset_counts()
        assert np.array_equal(weights["t"][[39_999, -2, 9_000]].to_numpy(), WHOLE[[39_999, -2, 9_000]])
        assert server.counts()["bytes"] < 10_000


def test_errors_of_the_server_are_those_of_loads(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    safetensors.numpy.save_file({"t": WHOLE}, path)
    with FaultServer(tmp_path) as server:
        table = max_weights.table(server.file("t.safetensors"), "t")
        safetensors.numpy.save_file({"t": WHOLE[:-1]}, path)
        with refuses(FileChangedError):
            table.take([30_000])
        pending = table.take([30_000, 9_000], wait=False)
        with refuses(FileChangedError):
            pending.result()
