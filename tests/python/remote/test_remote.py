"""Checkpoints by URL: the fetched bytes, the number of requests, and results equal to those from a disk."""

import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

import max_weights
from conftest import ROOT
from fault_server import FaultServer
from max_weights.errors import ArgumentError, FileChangedError, MissingFileError
from max_weights.remote import Remote, source
from max_weights.sharding import Shard, ShardingStrategy
from refusals import refuses

KEYS = {"key_id": "AKIDEXAMPLE", "secret": "very-secret-key"}
FIRST = 128 << 10
MODELS = Path(os.environ.get("MAX_WEIGHTS_MODELS", ROOT / ".models"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bucket and a model of the hub, each with a sharded checkpoint and files of every format."""
    folder = tmp_path_factory.mktemp("served")
    for place in ("bucket/model", "org/model"):
        shutil.copytree(MODELS / "derived/sharded", folder / place)
    for name in ("minilm.safetensors", "smollm2-135m.Q4_1.gguf", "crepe-tiny.pth"):
        os.link(MODELS / name, folder / "bucket" / name) if _same_disk(folder) else shutil.copy(
            MODELS / name, folder / "bucket" / name
        )
    return folder


def _same_disk(folder: Path) -> bool:
    return folder.stat().st_dev == MODELS.stat().st_dev


@pytest.fixture
def server(folder: Path) -> Iterator[FaultServer]:
    with FaultServer(folder) as server:
        yield server


def s3(server: FaultServer, **options: Any) -> Remote:
    return Remote(endpoint=server.s3, credentials=KEYS, **options)


def load(url: Any, **options: Any) -> dict[str, np.ndarray[Any, Any]]:
    remote = options.pop("remote", None)
    return max_weights.load_weights(url, remote=remote).load(framework="numpy", **options)


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.dtype == other[name].dtype, name
        assert array.tobytes() == other[name].tobytes(), name


@pytest.mark.parametrize("name", ["minilm.safetensors", "smollm2-135m.Q4_1.gguf", "crepe-tiny.pth"])
def test_files_of_every_format_are_what_they_are_on_a_disk(server: FaultServer, name: str) -> None:
    options: dict[str, Any] = {"packed": "keep"} if name.endswith("gguf") else {}
    expected = load(MODELS / name, **options)
    assert_equal(load(server.file(f"bucket/{name}"), **options), expected)
    assert_equal(load(f"s3://bucket/{name}", remote=s3(server), **options), expected)


def test_a_folder_is_its_index_and_opens_in_three_latencies(server: FaultServer, folder: Path) -> None:
    expected = load(MODELS / "derived/sharded")
    shards = sorted(path.name for path in (folder / "bucket/model").glob("*.safetensors"))
    weights = max_weights.load_weights("s3://bucket/model", remote=s3(server))
    log, counts = server.log(), server.counts()
    assert len(log) <= len(shards) + 2
    assert {request["method"] for request in log} == {"GET"}
    assert counts["bytes"] <= (len(shards) + 1) * FIRST + 64_000
    assert_equal(weights.load(framework="numpy"), expected)
    assert_equal(load("s3://bucket/model/model.safetensors.index.json", remote=s3(server)), expected)
    assert_equal(load(server.file("bucket/model")), expected)
    server.reset_counts()
    began = time.perf_counter()
    server.set("latency_ms=200")
    max_weights.load_weights("s3://bucket/model", remote=s3(server))
    assert time.perf_counter() - began < 4 * 0.2 + 0.5


def test_the_hub_is_resolved_to_a_commit_once_and_links_are_used_again(server: FaultServer) -> None:
    hub = Remote(endpoint=server.hub, credentials={"token": "hf_secret"})
    weights = max_weights.load_weights("hf://org/model", remote=hub)
    assert_equal(weights.load(framework="numpy"), load(MODELS / "derived/sharded"))
    log = server.log()
    resolves = [request["path"] for request in log if "/resolve/" in request["path"]]
    assert len(resolves) == len(set(resolves))
    assert not any("/resolve/main/" in path for path in resolves)
    assert sum("/api/" in request["path"] for request in log) == 1
    for request in log:
        assert request["authorization"] == ("/cdn/" not in request["path"]), request["path"]


def test_a_link_that_expires_is_asked_for_again(server: FaultServer) -> None:
    server.set("link-expires-after=2")
    hub = Remote(endpoint=server.hub)
    weights = max_weights.load_weights("hf://org/model", remote=hub)
    assert_equal(weights.load(framework="numpy"), load(MODELS / "derived/sharded"))


def test_the_rows_of_a_rank_are_all_that_is_fetched(server: FaultServer) -> None:
    weights = max_weights.load_weights("s3://bucket/minilm.safetensors", remote=s3(server))
    server.reset_counts()
    name = "embeddings.word_embeddings.weight"
    part = weights.load(name, shard=Shard(3, 8, {name: ShardingStrategy.rowwise(8)}), framework="numpy")[name]
    whole = load(MODELS / "minilm.safetensors", select=name)[name]
    assert (part == np.array_split(whole, 8)[3]).all()
    assert server.counts()["bytes"] <= 1.02 * part.nbytes


def test_streams_plans_slices_digests_and_files_written_from_a_url(server: FaultServer, tmp_path: Path) -> None:
    url = server.file("bucket/minilm.safetensors")
    weights, local = max_weights.load_weights(url), max_weights.load_weights(MODELS / "minilm.safetensors")
    with weights.stream(framework="numpy", max_memory=64 << 20) as stream:
        assert_equal({name: array.copy() for name, array in stream}, local.load(framework="numpy"))
    assert "a web server" in str(max_weights.plan(weights, "pooler").how)
    assert (
        max_weights.fingerprint(weights, "pooler", digests=True).digests
        == max_weights.fingerprint(local, "pooler", digests=True).digests
    )
    row = weights.embeddings.word_embeddings.weight[7:9].to_numpy()
    assert (row == local.embeddings.word_embeddings.weight[7:9].to_numpy()).all()
    weights.save(tmp_path / "copy.safetensors", select="encoder.layer.0")
    assert_equal(load(tmp_path / "copy.safetensors"), local.load("encoder.layer.0", framework="numpy"))
    verified = weights.load("pooler", digests=max_weights.fingerprint(local, digests=True).digests, framework="numpy")
    assert_equal(verified, local.load("pooler", framework="numpy"))


def test_what_is_not_there_is_named_without_what_is_secret(server: FaultServer) -> None:
    remote = s3(server, retries=0)
    for url in ("s3://bucket/nope.safetensors", "s3://bucket/nope", server.file("nope.gguf?signature=hidden")):
        with pytest.raises(MissingFileError) as caught:
            max_weights.load_weights(url, remote=remote)
        assert "nope" in str(caught.value)
        assert "hidden" not in str(caught.value)
    assert "secret" not in repr(remote)
    with refuses(TypeError):
        pickle.dumps(remote)


@pytest.mark.parametrize(
    "url",
    [
        "https://user:secret@host/x.gguf",
        "http://example.org/x.gguf",
        "s3://a b/x.gguf",
        "hf://model",
        "s3://bucket/../x.gguf",
    ],
)
def test_urls_that_make_no_sense_are_refused(url: str) -> None:
    with refuses((ArgumentError, ValueError, OSError)) as caught:
        max_weights.load_weights(url, remote=Remote(retries=0, credentials=KEYS))
    assert "secret" not in str(caught.value)


def test_credentials_come_from_a_function_and_again_when_they_are_refused(server: FaultServer) -> None:
    calls: list[float] = []

    def keys() -> dict[str, str]:
        calls.append(time.monotonic())
        return KEYS

    remote = Remote(endpoint=server.s3, credentials=keys)
    server.set("expired-token times=1")
    weights = max_weights.load_weights("s3://bucket/minilm.safetensors", remote=remote)
    assert len(weights) == 104
    assert len(calls) == 2

    def fails() -> dict[str, str]:
        raise RuntimeError("no session")

    with refuses(OSError):
        max_weights.load_weights("s3://bucket/minilm.safetensors", remote=Remote(endpoint=server.s3, credentials=fails))


@pytest.mark.parametrize("way", ["sso_session = lab", "role_arn = arn:aws:iam::1:role/x", "credential_process = x"])
def test_a_profile_that_needs_boto3_is_refused_with_what_to_do(
    server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    (tmp_path / "config").write_text(f"[profile lab]\nregion = eu-west-1\n{way}\nendpoint_url = {server.s3}\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_PROFILE", "lab")
    cause = f"the profile 'lab' has {way.split(' ')[0]}, which boto3 knows: give credentials= a function"
    with pytest.raises(OSError, match=cause):
        max_weights.load_weights("s3://bucket/minilm.safetensors")
    assert server.log() == []
    assert len(max_weights.load_weights("s3://bucket/minilm.safetensors", remote=Remote(credentials=KEYS))) == 104


ELSEWHERE: dict[str, tuple[str, dict[str, str]]] = {
    "azure, by a key": ("az", {"account": "lab", "key": "dmVyeS1zZWNyZXQta2V5"}),
    "azure, by a signature": ("az", {"account": "lab", "sas": "sv=2024-01-01&sp=r&sig=very-secret-key"}),
    "azure, by a token": ("az", {"account": "lab", "token": "very-secret-key"}),
    "google": ("gs", {"token": "very-secret-key"}),
}


@pytest.mark.parametrize(("scheme", "fields"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_files_of_azure_and_google_are_read_and_secrets_are_in_no_message(
    server: FaultServer, scheme: str, fields: dict[str, str]
) -> None:
    # For reads, these stores are web servers: a path of container and key, and ranges.
    remote = Remote(endpoint=f"{server.url}/files", credentials=fields, retries=0)
    url = f"{scheme}://bucket/minilm.safetensors"
    assert_equal(load(url, remote=remote), load(MODELS / "minilm.safetensors"))
    [path] = {unquote(request["path"].split("?")[0]) for request in server.log()}
    assert path == "/files/bucket/minilm.safetensors"
    assert {request["authorization"] for request in server.log()} == {"sas" not in fields}
    for fault, name in (("denied", "minilm"), ("slow-down", "minilm"), ("", "nope")):
        server.set(fault)
        with refuses(OSError) as caught:
            load(f"{scheme}://bucket/{name}.safetensors", remote=remote)
        message = f"{caught.value} {caught.value!r} {remote!r}"
        assert not any(secret in message for secret in ("very-secret-key", fields.get("key", "-none-"), "sig=")), (
            message
        )


def test_the_environment_says_who_asks_and_where(server: FaultServer) -> None:
    program = "import max_weights, sys; print(len(max_weights.load_weights(sys.argv[1])))"
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_ENDPOINT_URL_S3": server.s3,
        "HF_ENDPOINT": server.hub,
    }
    for url in ("s3://bucket/minilm.safetensors", "hf://org/model"):
        done = subprocess.run(
            [sys.executable, "-c", program, url], env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == "104"


def test_the_example_fetches_a_part(server: FaultServer) -> None:
    url = server.file("bucket/minilm.safetensors")
    command = [sys.executable, ROOT / "examples/remote_checkpoint.py", url, "pooler"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("104 weights, opened in ")
    assert "2 tensors, 0.6 MB, fetched in" in done.stdout


RIGHT = {
    "busy": "slow-down percent=10 seed=3",
    "too many requests": "429-retry-after=1 times=1",
    "too many requests, of the hub": "429-ratelimit=1 times=1",
    "an error in a success": "500-in-200 times=2",
    "reset before the head": "reset-before-head times=2",
    "reset in the body": "reset-in-body=70000 percent=20 seed=5",
    "a body that ends early": "short-body times=3",
    "the wrong status with the right range": "whole-200-right-range",
    "no entity tag": "no-etag",
    "chunks": "chunked",
    "conditions that are ignored": "if-match-ignored",
    "a stall": "stall=30 times=1 from=3",
    "a byte a second": "drip times=1 from=3",
}


@pytest.mark.parametrize("fault", RIGHT.values(), ids=RIGHT)
@pytest.mark.parametrize("kind", ["web", "s3"])
def test_faults_that_pass_leave_right_bytes(server: FaultServer, fault: str, kind: str) -> None:
    server.set(fault)
    remote = s3(server, stall=1, request_bytes="1MB")
    url = server.file("bucket/minilm.safetensors") if kind == "web" else "s3://bucket/minilm.safetensors"
    assert_equal(load(url, remote=remote), load(MODELS / "minilm.safetensors"))


WRONG = {
    "another object": ("etag-changes=3", FileChangedError, "the object changed"),
    "another object in the body": ("etag-changes-in-body from=3", FileChangedError, "the object changed"),
    "a longer object": ("grows=3", FileChangedError, "the object changed"),
    "a shorter object": ("shrinks=3", FileChangedError, "the object changed"),
    "a deleted object": ("deleted=3", OSError, "bucket/minilm"),
    "another range": ("shifted-range from=3", OSError, "requested bytes .*, got"),
    "another total": ("other-total from=3", (FileChangedError, OSError), "bytes when it was opened|requested bytes"),
    "no range": ("no-content-range from=3", OSError, "no Content-Range"),
    "the whole file": ("whole-200 from=3", OSError, "whole file"),
    "compressed": ("gzip from=3", OSError, "compressed"),
    "always busy": ("slow-down", OSError, "503 SlowDown.*tries"),
    "always a byte a second": ("drip from=3", OSError, "only . of its bytes arrived in|no data arrived for"),
    "always short": ("short-body from=3", OSError, "early|connection broke|tries"),
    "denied": ("denied", OSError, "403 AccessDenied"),
    "expired": ("expired-token", OSError, "ExpiredToken.*renew it"),
    "a wrong clock": ("clock-skew", OSError, "the clock of this machine is wrong"),
}


@pytest.mark.parametrize("fault", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("kind", ["web", "s3"])
def test_faults_that_stay_are_one_right_error(server: FaultServer, fault: tuple[str, Any, str], kind: str) -> None:
    text, error, cause = fault
    server.set(text)
    remote = s3(server, stall=1, retries=2, request_bytes="1MB")
    url = server.file("bucket/minilm.safetensors") if kind == "web" else "s3://bucket/minilm.safetensors"
    with pytest.raises(error, match=cause) as caught:
        load(url, remote=remote)
    assert "secret" not in str(caught.value)


def test_redirects_go_no_further_than_they_may(server: FaultServer) -> None:
    for target in [
        "redirect-loop",
        "redirect-to=ftp://host/x",
        "redirect-to=http://127.0.0.1:1/x",
    ]:
        server.set(target)
        with refuses(OSError):
            max_weights.load_weights(server.file("bucket/minilm.safetensors"), remote=Remote(retries=0))


def test_what_is_spoilt_on_the_way_is_found_by_digests(server: FaultServer) -> None:
    digests = max_weights.fingerprint(max_weights.load_weights(MODELS / "minilm.safetensors"), digests=True).digests
    weights = max_weights.load_weights(server.file("bucket/minilm.safetensors"))
    server.set("corrupt")
    with pytest.raises(max_weights.FormatError, match="digest"):
        weights.load(digests=digests)


def test_ctrl_c_ends_a_load_that_waits(server: FaultServer) -> None:
    program = """
import max_weights, os, signal, sys, threading, time
weights = max_weights.load_weights(sys.argv[1])
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
began = time.perf_counter()
try:
    weights.load()
except KeyboardInterrupt:
    print(time.perf_counter() - began)
"""
    url = server.file("bucket/minilm.safetensors")
    # A busy machine may be late once; a program that waits for the server is late each time.
    for _ in range(3):
        server.set("stall=30 from=2")
        done = subprocess.run([sys.executable, "-c", program, url], capture_output=True, text=True, timeout=25)
        assert done.returncode == 0, done.stderr
        if float(done.stdout) < 0.5 + 0.3:
            break
    assert float(done.stdout) < 0.5 + 0.3


def test_a_timeout_bounds_a_load(server: FaultServer) -> None:
    # Long enough to open the file on a busy machine, and much shorter than the server's delay or another attempt.
    weights = max_weights.load_weights(server.file("bucket/minilm.safetensors"), remote=Remote(timeout=3, stall=120))
    server.set("stall=120")
    began = time.perf_counter()
    with pytest.raises(TimeoutError, match=r"minilm\.safetensors.*timeout"):
        weights.load()
    assert 3 <= time.perf_counter() - began < 60


@pytest.mark.filterwarnings("ignore:os.fork")
def test_a_forked_child_has_connections_of_its_own(server: FaultServer) -> None:
    weights = max_weights.load_weights(server.file("bucket/minilm.safetensors"))
    weights.load("pooler")
    child = os.fork()
    if child == 0:
        ok = weights.load("pooler", framework="numpy")["pooler.dense.bias"].shape == (384,)
        os._exit(0 if ok else 1)
    for _ in range(200):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.05)
    assert done == child
    assert status == 0
    assert weights.load("pooler", framework="numpy")["pooler.dense.bias"].shape == (384,)


def test_a_tree_of_a_url_is_pickled_by_its_url_and_opened_where_it_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    max_weights.save_file({"a": np.arange(9.0)}, path)
    with FaultServer(tmp_path) as server:
        weights = max_weights.load_weights(server.file(path.name))
        again = pickle.loads(pickle.dumps(weights.a))
        assert_equal(again.load(framework="numpy"), {"a": np.arange(9.0)})
        dumped = pickle.dumps(weights)
        del again, weights
        max_weights.save_file({"a": np.arange(9.0) + 1}, path)
        with pytest.raises(FileChangedError):
            pickle.loads(dumped)


def test_a_signature_is_in_no_pickle_and_in_no_message(server: FaultServer) -> None:
    weights = max_weights.load_weights(server.file("bucket/minilm.safetensors?signature=hidden"))
    assert "hidden" not in str(max_weights.infos(weights)[0].file)
    with refuses(ValueError) as caught:
        pickle.dumps(weights)
    assert "hidden" not in str(caught.value)
    with refuses(ValueError):
        max_weights.load_weights(server.file("bucket/model/model.safetensors.index.json?signature=hidden"))


def reader(content: bytes) -> Callable[[list[tuple[int, int]]], list[bytes]]:
    return lambda ranges: [content[start:end] for start, end in ranges]


def test_a_function_reads_the_bytes_of_a_source() -> None:
    content = (MODELS / "minilm.safetensors").read_bytes()
    file = source(reader(content), len(content), name="x.safetensors", identity="v1")
    assert repr(file) == f"<x.safetensors of {len(content)} bytes>"
    assert_equal(load(file), load(MODELS / "minilm.safetensors"))
    names = sorted((MODELS / "derived/sharded").glob("*.safetensors"))
    shards = [source(reader(path.read_bytes()), path.stat().st_size, name=path.name) for path in names]
    assert_equal(load(shards), load(MODELS / "derived/sharded"))


@pytest.mark.parametrize(
    "read",
    [
        lambda ranges: [b"" for _ in ranges],
        lambda _: [],
        lambda _: 1 / 0,
        lambda ranges: ["text" for _ in ranges],
    ],
)
def test_a_function_that_gives_something_else_is_named(read: Any) -> None:
    with refuses(OSError):
        max_weights.load_weights(source(read, 100, name="x.gguf"))


def test_what_is_no_source_is_refused() -> None:
    with refuses(TypeError):
        source(3, 100)  # type: ignore[arg-type]
    with refuses(ArgumentError, "argument.number"):
        source(reader(b""), -1)
    with refuses(ValueError):
        max_weights.load_weights([source(reader(b""), 1), "x.safetensors"])
    with refuses(ArgumentError, "argument.number"):
        Remote(requests=0)
    with refuses(ValueError):
        Remote(stall=-1)
