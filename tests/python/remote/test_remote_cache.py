"""The cache of remote files: right bytes by few requests. A damaged, full or foreign folder, or one shared with a
killed process, is no worse than no cache.
"""

import json
import os
import pickle
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import max_weights
from conftest import ROOT
from fault_server import FaultServer
from max_weights.errors import ArgumentError
from max_weights.remote import Remote
from refusals import refuses

MODELS = Path(os.environ.get("MAX_WEIGHTS_MODELS", ROOT / ".models"))
KEYS = {"key_id": "AKIDEXAMPLE", "secret": "very-secret-key"}
FIRST = 128 << 10
UNIT = 1 << 20
FILE = "bucket/model-00004-of-00004.safetensors"  # 5 MB
EXPECTED = MODELS / "derived/sharded/model-00004-of-00004.safetensors"

# Loads a URL with a cache, and prints the kind and values of the tensors.
LOAD = """
import hashlib, json, sys, warnings, max_weights
from max_weights.remote import Remote
url, cache, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as caught:
    weights = max_weights.load_weights(url, remote=Remote(cache=cache, **options))
    tensors = weights.load(framework="numpy")
digest = hashlib.sha256(b"".join(tensors[name].tobytes() for name in sorted(tensors))).hexdigest()
print(json.dumps([digest, [str(one.message) for one in caught]]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "served"
    shutil.copytree(MODELS / "derived/sharded", folder / "bucket")
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[FaultServer]:
    with FaultServer(folder) as server:
        yield server


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def load(url: str, cache: Path, **options: Any) -> dict[str, np.ndarray[Any, Any]]:
    return max_weights.load_weights(url, remote=Remote(cache=cache, **options)).load(framework="numpy")


def assert_equal(one: dict[str, Any], path: Path = EXPECTED, select: str | None = None) -> None:
    other = max_weights.load_weights(path).load(select, framework="numpy")
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.tobytes() == other[name].tobytes(), name


def start(url: str, cache: Path, **options: Any) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", LOAD, url, str(cache), json.dumps(options)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def result(process: "subprocess.Popen[str]") -> Any:
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return json.loads(out)


def fetched(server: FaultServer, path: str = FILE) -> int:
    """Bytes of a file that the server has sent since the counts began."""
    return int(server.counts()["by_path"][f"/files/{path}"]["bytes"])


def test_the_second_load_asks_only_what_the_files_are_and_maps_them(server: FaultServer, cache: Path) -> None:
    remote = Remote(endpoint=server.s3, credentials=KEYS, cache=cache)
    expected = MODELS / "derived/sharded"
    first = max_weights.load_weights("s3://bucket/", remote=remote)
    assert_equal(first.load(framework="numpy"), expected)
    server.reset_counts()
    again = max_weights.load_weights("s3://bucket/", remote=Remote(endpoint=server.s3, credentials=KEYS, cache=cache))
    opened = server.counts()
    assert opened["requests"] <= 4 + 2
    assert opened["bytes"] <= 5 * FIRST + 64_000
    tensors = again.load()
    assert all(buffer.is_mapped for buffer in tensors.values())
    assert_equal(again.load(framework="numpy"), expected)
    name = "embeddings.word_embeddings.weight"
    row = again.embeddings.word_embeddings.weight[7:9].to_numpy()
    assert (row == max_weights.load_weights(expected).embeddings.word_embeddings.weight[7:9].to_numpy()).all()
    assert server.counts()["requests"] == opened["requests"], "nothing more was asked for"
    assert "object" not in str(max_weights.plan(again, name).how)
    assert str(max_weights.infos(again)[0].file).startswith("s3://bucket/")
    copy = pickle.loads(pickle.dumps(tensors[name]))
    assert copy.to_numpy().tobytes() == tensors[name].to_numpy().tobytes()


def test_a_part_is_kept_in_whole_units_and_read_from_there(server: FaultServer, cache: Path) -> None:
    weights = max_weights.load_weights(server.file(FILE), remote=Remote(cache=cache))
    info = max(max_weights.infos(weights), key=lambda info: info.bytes)
    part = weights.load(info.name, framework="numpy")
    assert_equal(part, EXPECTED, info.name)
    assert fetched(server) <= FIRST + info.bytes + 2 * UNIT
    server.reset_counts()
    weights = max_weights.load_weights(server.file(FILE), remote=Remote(cache=cache))
    assert_equal(weights.load(info.name, framework="numpy"), EXPECTED, info.name)
    assert fetched(server) <= FIRST
    assert not weights.load(info.name)[info.name].is_mapped, "the file is not all there"
    assert_equal(weights.load(framework="numpy"))


def test_what_lies_apart_is_fetched_without_what_lies_between(server: FaultServer, folder: Path, cache: Path) -> None:
    path = MODELS / "crepe-tiny.pth"
    shutil.copy(path, folder / "bucket")
    url = server.file("bucket/crepe-tiny.pth")
    plain = max_weights.load_weights(url)
    without = fetched(server, "bucket/crepe-tiny.pth")
    server.reset_counts()
    weights = max_weights.load_weights(url, remote=Remote(cache=cache))
    assert fetched(server, "bucket/crepe-tiny.pth") <= without + UNIT
    assert len(weights) == len(plain)
    for _ in range(2):
        assert_equal(load(url, cache), path)


def test_two_processes_fetch_nothing_twice(server: FaultServer, cache: Path) -> None:
    url = server.file(FILE)
    server.set("rate=2000000")
    both = [start(url, cache) for _ in range(2)]
    (one, reported), (other, told_too) = [result(process) for process in both]
    assert one == other
    assert reported == told_too == []
    assert fetched(server) <= EXPECTED.stat().st_size + 2 * FIRST
    assert_equal(load(url, cache))


# The same, tensor by tensor.
LOAD_ONE_BY_ONE = LOAD.replace(
    "weights.load(framework", "{name: weights.load(name, framework='numpy')[name] for name, _ in weights.items()} #"
)


def kept_units(cache: Path) -> int:
    return sum(path.read_bytes()[64:].count(1) for path in cache.glob("*.units"))


def test_a_process_that_is_killed_leaves_whole_units(server: FaultServer, cache: Path) -> None:
    url = server.file(FILE)
    server.set("rate=3000000")
    before = 0
    for _ in range(2):
        process = subprocess.Popen([sys.executable, "-c", LOAD_ONE_BY_ONE, url, str(cache), "{}"])
        deadline = time.monotonic() + 30
        while kept_units(cache) == before and time.monotonic() < deadline:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=20)
        assert before < kept_units(cache), "some were kept"
        before = kept_units(cache)
    assert before < 6, "some were not"
    server.set()
    server.reset_counts()
    assert_equal(load(url, cache))
    assert fetched(server) <= EXPECTED.stat().st_size - (before - 1) * UNIT + FIRST


def test_a_process_that_is_stopped_is_not_waited_for(server: FaultServer, cache: Path) -> None:
    url = server.file(FILE)
    server.set("stall=30 from=2 times=1")
    process = start(url, cache, requests=1, stall=60)
    try:
        deadline = time.monotonic() + 30
        while server.counts()["requests"] < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        assert_equal(load(url, cache, stall=1))
        assert time.monotonic() - began < 20
    finally:
        process.kill()
        process.communicate(timeout=20)


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _scribble(path: Path) -> None:
    path.write_bytes(b"\xff" * path.stat().st_size)


def _link(path: Path) -> None:
    elsewhere = path.with_name("elsewhere")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


# Tensor bytes have no checksum in the cache, as on a disk or server: `verify=` checks them.
SPOILT = [(spoil, end) for spoil in (_cut, _link, Path.unlink) for end in (".units", ".data")] + [(_scribble, ".units")]


@pytest.mark.parametrize(("spoil", "end"), SPOILT)
def test_files_that_are_spoilt_are_not_read(
    server: FaultServer, cache: Path, spoil: Callable[[Path], None], end: str
) -> None:
    url = server.file(FILE)
    assert_equal(load(url, cache))
    [path] = cache.glob(f"*{end}")
    spoil(path)
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        assert_equal(load(url, cache))
    assert len(reported) == (1 if spoil is _link else 0)


def test_an_object_that_is_replaced_is_another(server: FaultServer, folder: Path, cache: Path) -> None:
    url = server.file(FILE)
    assert_equal(load(url, cache))
    tensors = {name: array + 1 for name, array in max_weights.load_weights(EXPECTED).load(framework="numpy").items()}
    max_weights.save_file(tensors, folder / FILE)
    assert_equal(load(url, cache), folder / FILE)
    assert len(list(cache.glob("*.data"))) == 2


def test_what_has_no_tag_is_not_kept(server: FaultServer, cache: Path) -> None:
    server.set("no-etag")
    assert_equal(load(server.file(FILE), cache))
    assert not list(cache.glob("*.data"))


@pytest.mark.parametrize("fault", ["slow-down percent=10 seed=3", "short-body times=3", "reset-in-body=70000 times=2"])
def test_faults_that_pass_leave_right_bytes_in_the_folder(server: FaultServer, cache: Path, fault: str) -> None:
    server.set(fault)
    assert_equal(load(server.file(FILE), cache, request_bytes="1MB", stall=1))
    server.set()
    assert_equal(load(server.file(FILE), cache))


def test_a_change_while_it_is_read_is_an_error_and_is_not_kept(server: FaultServer, cache: Path) -> None:
    server.set("etag-changes=3")
    with pytest.raises(max_weights.FileChangedError):
        load(server.file(FILE), cache, request_bytes="1MB")
    server.set()
    assert_equal(load(server.file(FILE), cache))


def test_the_folder_and_its_files_are_their_owners_and_know_no_secret(server: FaultServer, cache: Path) -> None:
    remote = Remote(endpoint=server.s3, credentials=KEYS, cache=cache)
    max_weights.load_weights(f"s3://{FILE}", remote=remote).load()
    load(server.file(f"{FILE}?signature=hidden-one"), cache)
    server.reset_counts()
    load(server.file(f"{FILE}?signature=hidden-two"), cache)
    assert server.counts()["bytes"] <= FIRST, "another signature for the same object"
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    for path in cache.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        if path.suffix != ".data":
            content = path.name.encode() + path.read_bytes()
            assert not any(word in content for word in (b"hidden", b"very-secret-key", b"AKIDEXAMPLE")), path


def test_the_bound_is_kept_and_nothing_that_is_in_use_goes(server: FaultServer, cache: Path) -> None:
    sizes = {path.name: path.stat().st_size for path in (MODELS / "derived/sharded").glob("*.safetensors")}
    limit = max(sizes.values()) + 1_000_000

    def kept() -> int:
        return sum(path.stat().st_size for path in cache.glob("*.data"))

    first = server.file("bucket/model-00002-of-00004.safetensors")
    held = max_weights.load_weights(first, remote=Remote(cache=cache, cache_bytes=limit))
    held.load()
    for name in sorted(sizes):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert_equal(
                load(server.file(f"bucket/{name}"), cache, cache_bytes=limit), MODELS / "derived/sharded" / name
            )
        assert kept() <= limit
    server.reset_counts()
    held.load()
    assert server.counts()["requests"] == 0, "what was in use is still there"
    with pytest.warns(UserWarning, match="has no room: a file of 5315296 bytes is not kept, because cache_bytes=1000"):
        assert_equal(load(server.file(FILE), cache.with_name("small"), cache_bytes=1000))


def _no_folder(cache: Path) -> None:
    cache.write_text("a file")


def _anybodys(cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o777)


def _anothers(cache: Path) -> None:
    cache.mkdir()
    os.chown(cache, 12345, -1)


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (_no_folder, "is not used: "),
        (_anybodys, r"others may write to the folder: take that from them \(chmod go-w\)"),
        pytest.param(
            _anothers,
            "the folder is another user's",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away"),
        ),
    ],
)
def test_a_folder_that_cannot_be_used_is_one_warning(
    server: FaultServer, cache: Path, make: Callable[[Path], None], cause: str
) -> None:
    make(cache)
    remote = Remote(cache=cache)
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        for _ in range(2):
            weights = max_weights.load_weights(server.file(FILE), remote=remote)
            assert_equal(weights.load(framework="numpy"))
    [warning] = reported
    assert re.search(cause, str(warning.message))


@pytest.mark.parametrize("space", [1000, 2 * UNIT], ids=["at once", "on the way"])
def test_a_disk_that_is_full_is_one_warning(server: FaultServer, cache: Path, space: int) -> None:
    # A file size limit fails like a full disk; sparse files have their full length from the beginning.
    program = f"""
import resource, max_weights, sys
from max_weights.remote import Remote
cache = Remote(cache=sys.argv[2], request_bytes="1MB")
weights = max_weights.load_weights(sys.argv[1], remote=cache) if {space} > {UNIT} else None
resource.setrlimit(resource.RLIMIT_FSIZE, ({space}, {space}))
weights = weights or max_weights.load_weights(sys.argv[1], remote=cache)
tensors = weights.load(framework="numpy")
expected = max_weights.load_weights(sys.argv[3]).load(framework="numpy")
assert all((tensors[name] == expected[name]).all() for name in expected)
"""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    command = [sys.executable, "-W", "always", "-c", program, server.file(FILE), str(cache), str(EXPECTED)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("is not used: ") == 1, done.stderr
    assert_equal(load(server.file(FILE), cache))


@pytest.mark.filterwarnings("ignore:os.fork")
def test_a_forked_child_reads_and_keeps_on(server: FaultServer, cache: Path) -> None:
    weights = max_weights.load_weights(server.file(FILE), remote=Remote(cache=cache))
    child = os.fork()
    if child == 0:
        try:
            assert_equal(weights.load(framework="numpy"))
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    server.reset_counts()
    assert_equal(weights.load(framework="numpy"))
    assert server.counts()["requests"] == 0


def test_what_makes_no_sense_is_refused() -> None:
    with refuses(ArgumentError, "argument.number"):
        Remote(cache="x", cache_bytes="much")
