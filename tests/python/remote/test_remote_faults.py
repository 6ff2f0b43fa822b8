"""Server faults that last, are combined, or redirect: right bytes, or one right error."""

import http.server
import os
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import max_weights
from fault_server import FaultServer
from max_weights import save_file, save_sharded
from max_weights.errors import FileChangedError
from max_weights.remote import Remote
from refusals import refuses

TENSORS = {f"layers.{number}.weight": np.full((512, 512), number, np.float32) for number in range(8)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "served"
    (folder / "bucket").mkdir(parents=True)
    save_file(TENSORS, folder / "bucket/a.safetensors")
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[FaultServer]:
    with FaultServer(folder) as server:
        yield server


def s3(server: FaultServer, **options: Any) -> Remote:
    return Remote(endpoint=server.s3, credentials={"key_id": "a", "secret": "very-secret"}, **options)


def load(url: str, remote: Remote) -> dict[str, Any]:
    return max_weights.load_weights(url, remote=remote).load(framework="numpy")


def assert_right(loaded: dict[str, Any]) -> None:
    assert loaded.keys() == TENSORS.keys()
    assert all((loaded[name] == array).all() for name, array in TENSORS.items())


def test_a_server_that_is_busy_for_seconds_is_waited_for_and_not_stormed(server: FaultServer) -> None:
    """Each answer is 503 for two seconds: requests in flight are retried with increasing backoff."""
    remote = s3(server, request_bytes="1MB")
    weights = max_weights.load_weights("s3://bucket/a.safetensors", remote=remote)
    server.reset_counts()
    server.set("slow-down")
    timer = threading.Timer(2.0, server.set)
    timer.start()
    assert_right(weights.load(framework="numpy"))
    timer.join()
    statuses = [request["status"] for request in server.log()]
    assert 0 < statuses.count(503) < 60
    assert statuses.count(206) <= 12


@pytest.mark.parametrize("kind", ["web", "s3"])
def test_a_body_that_is_short_with_the_right_length_for_that_is_asked_for_again(server: FaultServer, kind: str) -> None:
    url = server.file("bucket/a.safetensors") if kind == "web" else "s3://bucket/a.safetensors"
    server.set("short-adjusted times=3")
    assert_right(load(url, s3(server, request_bytes="1MB")))
    server.set("short-adjusted from=2")
    with pytest.raises(OSError, match=r"a\.safetensors.*bytes.*the answer has [0-9]+ bytes, not those of"):
        load(url, s3(server, request_bytes="1MB", retries=1))


@pytest.mark.parametrize("kind", ["web", "s3"])
@pytest.mark.parametrize("fault", ["etag-changes=3", "grows=3", "shrinks=3"])
def test_another_object_is_found_where_conditions_are_ignored(server: FaultServer, kind: str, fault: str) -> None:
    url = server.file("bucket/a.safetensors") if kind == "web" else "s3://bucket/a.safetensors"
    server.set(fault, "if-match-ignored")
    with pytest.raises(FileChangedError, match=r"the object changed|bytes when it was opened"):
        load(url, s3(server, request_bytes="1MB"))


@pytest.mark.parametrize("kind", ["web", "s3"])
def test_bytes_that_an_object_no_longer_has_are_those_of_another_one(server: FaultServer, kind: str) -> None:
    url = server.file("bucket/a.safetensors") if kind == "web" else "s3://bucket/a.safetensors"
    weights = max_weights.load_weights(url, remote=s3(server, request_bytes="1MB"))
    server.set("shrinks=0", "if-match-ignored")
    with refuses(FileChangedError, "file.changed"):
        weights.load(["layers.7.weight"], framework="numpy")


@pytest.mark.parametrize("fault", ["denied", "clock-skew"])
def test_what_will_not_pass_is_asked_for_no_more_than_again_by_new_keys(server: FaultServer, fault: str) -> None:
    server.set(fault)
    with refuses(OSError):
        load("s3://bucket/a.safetensors", s3(server))
    assert len(server.log()) <= 2


@pytest.mark.parametrize("name", ["one two+three", "50%20", "a%2Fb", "ünï", "#1", "a&b=c;d"])
def test_names_with_signs_of_urls_are_names(server: FaultServer, folder: Path, tmp_path: Path, name: str) -> None:
    (folder / "bucket" / name).mkdir()
    save_file(TENSORS, folder / "bucket" / name / f"{name}.safetensors")
    assert_right(load(f"s3://bucket/{name}/{name}.safetensors", s3(server)))
    save_sharded(TENSORS, f"s3://bucket/{name}/saved", max_shard_size="3MB", remote=s3(server))
    save_sharded(TENSORS, tmp_path / "saved", max_shard_size="3MB")
    there = folder / "bucket" / name / "saved"
    assert {path.name: path.read_bytes() for path in there.iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()
    }
    assert_right(load(f"s3://bucket/{name}/saved", s3(server)))


class Leads(http.server.BaseHTTPRequestHandler):
    """Redirects every client to another place, and records the requests there."""

    target = ""
    requested: list[str]

    def do_GET(self) -> None:
        self.requested.append(self.path)
        self.send_response(302)
        self.send_header("Location", self.target)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


LOAD = """
import sys, max_weights
from max_weights.remote import Remote
remote = Remote(allow_http=True, retries=0, timeout=20, credentials={"token": "t0ken"})
max_weights.load_weights(sys.argv[1], remote=remote)
"""


def led(url: str, **environment: str) -> str:
    """The last line of output of a load in a separate process."""
    here = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    command = [sys.executable, "-c", LOAD, url]
    done = subprocess.run(command, env=here | environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "t0ken" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    "target",
    [
        "http://169.254.169.254/latest/meta-data/iam/security-credentials/",
        "http://[fd00:ec2::254]/latest/",
        "http://127.0.0.1:{port}/inner",
        "http://localhost:{port}/inner",
        "http://2130706433:{port}/inner",
        "http://10.0.0.1/inner",
    ],
)
def test_a_server_outside_leads_to_no_machine_inside(target: str) -> None:
    """A proxy answers for the outside server; the inside one is the same, and would get a request for its path."""
    leads = type("Here", (Leads,), {"requested": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), leads) as server:
        port = server.server_address[1]
        leads.target = target.format(port=port)  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        message = led("http://weights.example/a.safetensors", HTTP_PROXY=f"http://127.0.0.1:{port}")
        server.shutdown()
    assert "the server redirects to an address of a private network, which is not followed" in message
    assert leads.requested == ["http://weights.example/a.safetensors"]  # type: ignore[attr-defined]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="keys are made by openssl, which is not there")
def test_nothing_leads_from_encryption_to_none(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    made = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key, "-out", certificate]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-addext"]
    usage = "basicConstraints=critical,CA:FALSE"
    subprocess.run(["openssl", "req", *made, *names, usage], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    leads = type("Here", (Leads,), {"requested": []})
    plain = type("Plain", (Leads,), {"requested": []})
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), leads) as server,
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), plain) as other,
    ):
        server.socket = context.wrap_socket(server.socket, server_side=True)
        leads.target = f"http://localhost:{other.server_address[1]}/plain"  # type: ignore[attr-defined]
        for one in (server, other):
            threading.Thread(target=one.serve_forever, daemon=True).start()
        url = f"https://localhost:{server.server_address[1]}/a.safetensors"
        message = led(url, REQUESTS_CA_BUNDLE=str(certificate))
        server.shutdown()
        other.shutdown()
    assert "the server redirects to a URL without encryption, which is not followed" in message
    assert leads.requested == ["/a.safetensors"]  # type: ignore[attr-defined]
    assert plain.requested == []  # type: ignore[attr-defined]
