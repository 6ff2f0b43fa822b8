"""The server with faults, as used by the Python tests; and that independent clients understand it."""

import urllib.error
import urllib.request
import zlib
from pathlib import Path

import pytest

from fault_server import DIRECT, FaultServer

CONTENT = bytes(range(256)) * 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("bucket", "org/name"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "model.bin").write_bytes(CONTENT)
    return tmp_path


def read(url: str, **headers: str) -> bytes:
    with DIRECT.open(urllib.request.Request(url, headers=headers), timeout=20) as reply:
        content: bytes = reply.read()
    return content


def test_ranges_are_served_counted_and_logged(folder: Path) -> None:
    with FaultServer(folder, latency_ms=1, rate=100_000_000) as server:
        assert read(server.file("bucket/model.bin"), Range="bytes=10-19") == CONTENT[10:20]
        counts = server.counts()
        assert (counts["requests"], counts["bytes"]) == (1, 10)
        assert counts["by_path"] == {"/files/bucket/model.bin": {"requests": 1, "bytes": 10}}
        [request] = server.log()
        assert (request["method"], request["range"], request["status"]) == ("GET", "bytes=10-19", 206)
        assert not request["authorization"]
        server.reset_counts()
        assert server.counts()["requests"] == 0
        assert server.log() == []


def test_faults_are_set_at_the_start_and_later(folder: Path) -> None:
    with FaultServer(folder, "slow-down,times=1") as server:
        with pytest.raises(urllib.error.HTTPError, match="503"):
            read(server.file("bucket/model.bin"))
        assert read(server.file("bucket/model.bin")) == CONTENT
        server.set("gzip", "etag-changes=1 path=other")
        assert zlib.decompress(read(server.file("bucket/model.bin")), wbits=31) == CONTENT
        with pytest.raises(urllib.error.HTTPError, match="400"):
            server.set("rubbish")
        server.set()
        assert read(server.file("bucket/model.bin")) == CONTENT


def test_a_link_of_the_hub_is_followed_to_another_host(folder: Path) -> None:
    with FaultServer(folder) as server:
        url = f"{server.hub}/org/name/resolve/main/model.bin"
        assert read(url, Range="bytes=0-9") == CONTENT[:10]
        first, second = server.log()
        assert (first["status"], second["status"]) == (302, 206)
        assert first["host"] != second["host"]
