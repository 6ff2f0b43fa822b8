"""Malicious or broken servers.

Their wait times, listings, redirects and sizes are bounded, and every answer gives bytes or one error, never a panic.
"""

import http.server
import json
import os
import random
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

import max_weights
from fault_server import FaultServer
from max_weights import save_file
from max_weights.errors import ArgumentError, FormatError, InternalError, MissingFileError, WeightsError
from max_weights.remote import Remote
from max_weights.safetensors.numpy import save as saved
from refusals import refuses

MAX = 18446744073709551615
"""No clock reaches this many seconds from now."""
MAX_WAIT = 300
"""As in crates/remote/src/pacing.rs."""
TENSORS = {f"layers.{number}.weight": np.full((256, 256), number, np.float32) for number in range(4)}

Answer = tuple[int, dict[str, str], bytes]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "served/bucket").mkdir(parents=True)
    save_file(TENSORS, tmp_path / "served/bucket/a.safetensors")
    return tmp_path / "served"


@pytest.fixture
def server(folder: Path) -> Iterator[FaultServer]:
    with FaultServer(folder) as server:
        yield server


@contextmanager
def answering(answer: Callable[[str, str], Answer]) -> Iterator[tuple[str, list[str]]]:
    """A server that answers each path and range by a function; yields its URL, and the requested paths."""
    requested: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def do_GET(self) -> None:
            requested.append(self.path)
            status, headers, body = answer(self.path, self.headers.get("Range", ""))
            self.send_response_only(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                if value:
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = headers.get("Content-Length", "x") != "x"

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Ignore disconnected clients."""

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", requested
        server.shutdown()


def s3(url: str, **options: Any) -> Remote:
    return Remote(endpoint=url, credentials={"key_id": "a", "secret": "very-secret"}, **options)


def assert_right(loaded: dict[str, Any]) -> None:
    assert loaded.keys() == TENSORS.keys()
    assert all((loaded[name] == array).all() for name, array in TENSORS.items())


@pytest.mark.parametrize("seconds", [MAX, 10**10, MAX_WAIT + 1])
@pytest.mark.parametrize("fault", ["429-retry-after", "429-ratelimit"])
@pytest.mark.parametrize("kind", ["web", "s3"])
def test_no_server_is_waited_for_longer_than_the_bound(
    server: FaultServer, fault: str, seconds: int, kind: str
) -> None:
    """A longer requested wait is ignored by the retry, and the error names it."""
    url = server.file("bucket/a.safetensors") if kind == "web" else "s3://bucket/a.safetensors"
    remote = s3(server.s3, retries=1)
    server.set(f"{fault}={seconds} times=1")
    assert_right(max_weights.load_weights(url, remote=remote).load(framework="numpy"))
    server.set(f"{fault}={seconds}")
    with refuses(OSError):
        max_weights.load_weights(url, remote=remote)


def hostile(chance: random.Random, valid: bytes, begin: int, end: int) -> Answer:
    """Answers to a range request: each part right, wrong, at a numeric limit, or nonsense."""

    def number() -> str:
        near = chance.choice([0, 1, begin, end, len(valid), 2**31, 2**32, 2**53, 2**63, 2**64, 10**30])
        return str(near + chance.choice([-1, 0, 0, 0, 1]))

    def one(*values: str) -> str:
        return chance.choice([*values, number(), f"-{number()}", "", " ", "1e308", "inf", "\t0x10", "١", "a" * 300])

    status = chance.choice([200, 206, 206, 206, 301, 302, 304, 307, 400, 401, 403, 404, 408, 412, 416, 429, 500, 503])
    right = f"bytes {begin}-{end - 1}/{len(valid)}"
    headers: dict[str, str] = {
        "Content-Range": chance.choice(
            [
                right,
                right,
                f"bytes {number()}-{number()}/{number()}",
                f"bytes */{number()}",
                one("bytes", "items 0-1/2"),
            ]
        ),
        "ETag": chance.choice(['"a"', '"a"', 'W/"a"', '"', "", number()]),
        "Last-Modified": chance.choice(
            ["", "Thu, 26 Nov 2026 10:00:00 GMT", "Thu, 99 Nov 999999999 10:00:00 GMT", number()]
        ),
        "Retry-After": chance.choice(["", "0", one("Fri, 31 Dec 99999 23:59:59 GMT", str(MAX), str(10**10))]),
        "RateLimit": chance.choice(["", f'"a";r=0;t={number()}', f'"a";r={number()};t=', "r=0;t", ";;;=", one()]),
        "Location": chance.choice(["", "http://169.254.169.254/", "//", "http://[::1", "/again", one()]),
        "x-amz-version-id": chance.choice(["", "null", "v1"]),
    }
    body = chance.choice([valid[begin:end], valid[begin:end], valid[begin : end - 1], b"", b"<Error><Code>", valid * 2])
    if status >= 400:
        codes = chance.choice(["SlowDown", "ExpiredToken", "x" * 5000, ""])
        body = f"<Error><Code>{codes}</Code><Message>{number()}</Message></Error>".encode()
    length = chance.choice(["", "", "", number()])
    if length.isdecimal() and int(length) <= 2**63:
        headers["Content-Length"] = length
    return status, {name: value for name, value in headers.items() if "\t" not in value and value.isascii()}, body


def harm(count: int, folder: Path, seed: int) -> None:
    """Read with `count` hostile answers: each read ends within its bound, with the right bytes or one error."""
    valid = (folder / "bucket/a.safetensors").read_bytes()
    chance = random.Random(seed)
    answers = threading.Lock()
    rest = [count]

    def answer(_path: str, ranges: str) -> Answer:
        begin, _, last = ranges.removeprefix("bytes=").partition("-")
        with answers:
            rest[0] -= 1
            end = min(int(last or len(valid) - 1) + 1, len(valid))
            if chance.random() < 0.3:  # so that some are opened
                start = int(begin or 0)
                return 206, {"Content-Range": f"bytes {start}-{end - 1}/{len(valid)}", "ETag": '"a"'}, valid[start:end]
            return hostile(chance, valid, int(begin or 0), end)

    with answering(answer) as (url, _requested), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*gives neither ETag nor Last-Modified")
        loaded = 0
        while rest[0] > 0:
            kind = chance.choice([f"{url}/a.safetensors", "s3://bucket/a.safetensors"])
            # The server's wait times are shortened here; the test above checks their bounds.
            remote = s3(url, retries=1, stall=1, timeout=3, requests=2)
            try:
                tensors = max_weights.load_weights(kind, remote=remote).load(framework="numpy")
            except InternalError:
                raise
            except (OSError, WeightsError, ValueError):
                tensors = None
            if tensors is not None:
                assert_right(tensors)
                loaded += 1
        assert loaded


def test_hostile_answers_are_the_right_bytes_or_one_error(folder: Path) -> None:
    harm(600, folder, seed=7)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_ten_thousand_hostile_answers_are_the_right_bytes_or_one_error(folder: Path) -> None:
    harm(10_000, folder, seed=11)


PAGE = (
    '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>bucket</Name><Prefix>model/</Prefix>'
    "<KeyCount>{count}</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>true</IsTruncated>"
    "<NextContinuationToken>{token}</NextContinuationToken>{keys}</ListBucketResult>"
)
KEY = (
    "<Contents><Key>model/{name}</Key><LastModified>2026-11-26T10:00:00.000Z</LastModified><ETag>&quot;a&quot;</ETag>"
    "<Size>1</Size><StorageClass>STANDARD</StorageClass></Contents>"
)


def listing(pages: Callable[[int], tuple[list[str], str]]) -> Callable[[str, str], Answer]:
    """Answers with pages: the names on each, and the token of the next one."""
    counts = iter(range(10**9))

    def answer(path: str, _ranges: str) -> Answer:
        if "list-type" not in path:
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        names, token = pages(next(counts))
        keys = "".join(KEY.format(name=name) for name in names)
        return 200, {"Content-Type": "application/xml"}, PAGE.format(count=len(names), token=token, keys=keys).encode()

    return answer


@pytest.mark.parametrize("names", [[], ["a.txt"]], ids=["empty pages", "pages of one name"])
@pytest.mark.parametrize("tokens", [1, 3])
def test_a_list_that_goes_round_in_circles_is_an_error(names: list[str], tokens: int) -> None:
    with (
        answering(listing(lambda page: (names, f"token-{page % tokens}"))) as (url, requested),
        refuses(OSError),
    ):
        max_weights.load_weights("s3://bucket/model", remote=s3(url, retries=0))
    assert len(requested) == tokens + 1


def test_a_list_of_empty_pages_has_an_end() -> None:
    with (
        answering(listing(lambda page: ([], f"token-{page}"))) as (url, requested),
        refuses(OSError),
    ):
        max_weights.load_weights("s3://bucket/model", remote=s3(url, retries=0))
    assert len(requested) == 1000


def test_a_list_of_a_million_names_is_left_where_the_bound_is() -> None:
    """Eleven pages of a thousand are requested, and no more is stored."""

    def pages(page: int) -> tuple[list[str], str]:
        return [f"shard-{page}-{number}.txt" for number in range(1000)], f"token-{page}"

    with (
        answering(listing(pages)) as (url, requested),
        refuses(OSError),
    ):
        max_weights.load_weights("s3://bucket/model", remote=s3(url, retries=0))
    assert len(requested) == 11


def test_a_page_of_a_list_has_a_bound() -> None:
    names = [f"{number:07}-{'x' * 400}.txt" for number in range(40_000)]
    with (
        answering(listing(lambda page: (names, f"token-{page}"))) as (url, requested),
        refuses(OSError),
    ):
        max_weights.load_weights("s3://bucket/model", remote=s3(url, retries=0))
    assert len(requested) == 1


def test_the_list_of_a_model_of_the_hub_has_a_bound() -> None:
    """Omitted names would be missing shards."""
    siblings = [{"rfilename": f"{number}.safetensors"} for number in range(100_001)]
    body = json.dumps({"sha": "0" * 40, "siblings": siblings}).encode()
    with (
        answering(lambda _path, _ranges: (200, {}, body)) as (url, _requested),
        refuses(OSError),
    ):
        max_weights.load_weights("hf://org/model", remote=Remote(endpoint=url, retries=0))


LINK_LOCAL = [
    "http://169.254.169.254/latest/meta-data/",
    "http://[::ffff:169.254.169.254]/latest/",
    "http://[64:ff9b::a9fe:a9fe]/latest/",
    "http://[2002:a9fe:a9fe::1]/latest/",
    "http://[fe80::1]/",
    "http://[fd00:ec2::254]/latest/",
    "http://2852039166/latest/",
    "http://0xa9fea9fe/latest/",
]


@pytest.mark.parametrize("target", LINK_LOCAL)
def test_no_server_of_this_machine_leads_to_where_clouds_keep_secrets(target: str) -> None:
    with (
        answering(lambda _path, _ranges: (302, {"Location": target}, b"")) as (url, requested),
        refuses(OSError),
    ):
        max_weights.load_weights(f"{url}/a.safetensors", remote=Remote(retries=0, timeout=20))
    assert len(requested) == 1


def test_a_server_of_this_machine_may_lead_to_another_one_of_it(folder: Path) -> None:
    with FaultServer(folder) as other:
        target = other.file("bucket/a.safetensors")
        with answering(lambda _path, _ranges: (302, {"Location": target}, b"")) as (url, _requested):
            assert_right(max_weights.load_weights(f"{url}/a.safetensors").load(framework="numpy"))


@pytest.mark.parametrize("status", [300, 304, 305, 306])
def test_what_is_no_redirect_is_not_followed(server: FaultServer, status: int) -> None:
    target = server.file("bucket/a.safetensors")
    with (
        answering(lambda _path, _ranges: (status, {"Location": target}, b"")) as (url, requested),
        refuses(OSError),
    ):
        max_weights.load_weights(f"{url}/a.safetensors", remote=Remote(retries=0))
    assert len(requested) == 1
    assert server.log() == []


def test_a_server_that_does_not_say_when_a_file_is_replaced_is_one_warning() -> None:
    """A file that was fetched completely on opening needs none."""
    files = {}
    for name, rows in (("long", 1 << 16), ("longer", 1 << 17), ("short", 4)):
        files[f"/{name}.safetensors"] = saved({"w": np.zeros(rows, np.float32)})

    def answer(path: str, ranges: str) -> Answer:
        begin, _, last = ranges.removeprefix("bytes=").partition("-")
        start, end = int(begin), min(int(last) + 1, len(files[path]))
        return 206, {"Content-Range": f"bytes {start}-{end - 1}/{len(files[path])}"}, files[path][start:end]

    with answering(answer) as (url, _requested), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        remote = Remote()
        for name in ("short", "long", "longer", "long"):
            max_weights.load_weights(f"{url}/{name}.safetensors", remote=remote)
    (reported,) = [str(warning.message) for warning in caught]
    assert reported.startswith(f"{url} gives neither ETag nor Last-Modified")
    assert f"{url}/long.safetensors" in reported


def test_the_folder_of_a_server_is_known_by_what_it_serves(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch reports one process
        dcp.save({"w": torch.arange(8.0)}, checkpoint_id=folder / "distributed", no_dist=True)
    with FaultServer(folder) as server:
        weights = max_weights.load_weights(server.file("distributed"))
        assert weights.load(framework="numpy")["w"].tolist() == list(range(8))
        assert max_weights.validate(server.file("distributed")).ok
        (folder / "model").mkdir()
        save_file(TENSORS, folder / "model/model.safetensors")
        assert_right(max_weights.load_weights(server.file("model")).load(framework="numpy"))
        (folder / "delta").mkdir()
        (folder / "delta/sparse_update_manifest.json").write_text("{}")
        with refuses(FormatError, "delta.alone"):
            max_weights.load_weights(server.file("delta"))


@pytest.mark.parametrize("look", [max_weights.load_weights, max_weights.validate], ids=["load_weights", "validate"])
def test_a_folder_that_serves_nothing_known_names_what_was_tried(
    server: FaultServer, look: Callable[[str], object]
) -> None:
    with pytest.raises(MissingFileError) as caught:
        look(server.file("nothing"))
    for name in (
        "model.safetensors.index.json",
        "model.safetensors",
        ".metadata",
        "sparse_update_manifest.json",
        "does not list",
    ):
        assert name in str(caught.value)
    assert caught.value.filename == server.file("nothing")


def test_a_server_that_refuses_names_with_a_point_is_one_without_such_files() -> None:
    def answer(path: str, _ranges: str) -> Answer:
        return (403 if "/." in path else 404), {}, b""

    with answering(answer) as (url, _requested), refuses(MissingFileError, "file.missing"):
        max_weights.load_weights(f"{url}/model", remote=Remote(retries=0))


def test_a_panic_is_an_error_of_ours(capfd: pytest.CaptureFixture[str]) -> None:
    """A panic without the GIL, on a thread of the pool: the farthest from its conversion to an exception."""
    panic = getattr(max_weights._core, "_panic")  # noqa: B009 - it is in no stub
    with refuses(InternalError, "internal.panic"):
        panic("boom")
    assert issubclass(InternalError, Exception)
    assert "panicked at" in capfd.readouterr().err
    # With any message: other packages have separate classes of this name.
    kinds = [kind for kind in BaseException.__subclasses__() if kind.__name__ == "PanicException"]
    assert any(isinstance(kind(), InternalError) for kind in kinds)


CREDENTIALS = """
import http.server, json, os, sys, threading
import max_weights
from max_weights.remote import Remote
class Token(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.dumps({"access_token": "a", "token_type": "Bearer", "expires_in": 18446744073709551615}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_GET = do_POST
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Token)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_address[1]}"
os.environ.update(AZURE_STORAGE_ACCOUNT_NAME="a", AZURE_STORAGE_CLIENT_ID="a", AZURE_STORAGE_CLIENT_SECRET="b",
                  AZURE_STORAGE_TENANT_ID="c", AZURE_STORAGE_AUTHORITY_HOST=url)
try:
    max_weights.load_weights("az://bucket/a.safetensors", remote=Remote(endpoint=url, retries=0, timeout=20))
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_token_that_never_expires_is_no_panic() -> None:
    here = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    done = subprocess.run(
        [sys.executable, "-c", CREDENTIALS], env=here, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("OSError"), (done.stdout, done.stderr)


@pytest.mark.parametrize("seconds", [1e308, float("inf"), float("nan"), -1.0, 0.0])
@pytest.mark.parametrize("name", ["stall", "timeout"])
def test_times_that_no_clock_has_are_refused(name: str, seconds: float) -> None:
    with refuses(ValueError):
        Remote(**{name: seconds})


def test_times_that_are_nearly_too_long_are_times(folder: Path, server: FaultServer) -> None:
    remote = s3(server.s3, stall=1.8e19, timeout=1.8e19)
    assert_right(max_weights.load_weights("s3://bucket/a.safetensors", remote=remote).load(framework="numpy"))
    save_file(TENSORS, "s3://bucket/b.safetensors", remote=remote)
    assert (folder / "bucket/b.safetensors").is_file()


def test_a_remote_with_any_credentials_has_a_hash() -> None:
    one, other = (Remote(credentials={"token": token}) for token in "ab")
    assert one != other
    assert len({one, other, Remote(credentials={"token": "a"})}) == 2


@pytest.mark.parametrize(
    "endpoint",
    ["nonsense", "", "localhost:9000", "ftp://host", "https://", "http://[::1", "http://host:port", "s3://b"],
)
def test_an_endpoint_that_is_no_server_is_refused_when_it_is_given(endpoint: str) -> None:
    with refuses(ArgumentError, "argument.remote"):
        Remote(endpoint=endpoint)


@pytest.mark.parametrize("endpoint", ["https://user:pass@host", "https://host/?a=b", "https://host/#a"])
def test_an_endpoint_has_no_secret(endpoint: str) -> None:
    with refuses(ArgumentError, "argument.remote") as caught:
        Remote(endpoint=endpoint)
    assert "pass" not in str(caught.value).removeprefix("endpoint has no user, password")


def test_a_function_that_gives_credentials_cannot_read_from_a_server(server: FaultServer) -> None:
    """The thread already waits for a server: an error, and no panic."""
    nested: list[Exception] = []

    def credentials() -> dict[str, str | None]:
        try:
            max_weights.load_weights(server.file("bucket/a.safetensors"))
        except OSError as error:
            nested.append(error)
        return {"key_id": "a", "secret": "b"}

    remote = Remote(endpoint=server.s3, credentials=credentials)
    assert_right(max_weights.load_weights("s3://bucket/a.safetensors", remote=remote).load(framework="numpy"))
    assert "waits for a server already" in str(nested[0])
