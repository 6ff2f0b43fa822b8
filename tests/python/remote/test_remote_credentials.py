"""Credentials that no program gives: from the environment, a file, the machine. And absent servers."""

import http.client
import http.server
import json
import os
import shutil
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, unquote

import numpy as np
import pytest

import max_weights
from fault_server import FaultServer
from max_weights import save_file
from max_weights.remote import Remote
from refusals import refuses

SECRET = "secret-of-the-machine"  # what `tests/fault_server/src/machine.rs` gives
WITH_OPENSSL = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="keys are made by openssl, which is not there"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "served"
    (folder / "bucket").mkdir(parents=True)
    save_file({"w": np.arange(1000, dtype=np.float32)}, folder / "bucket/a.safetensors")
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[FaultServer]:
    with FaultServer(folder) as server:
        yield server


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """An environment without credentials."""
    for name in os.environ:
        if name.startswith(("AWS_", "GOOGLE_", "GCE_", "AZURE_", "IDENTITY_", "MSI_")):
            monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return monkeypatch


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


# The scheme, and the variables of the environment: files are in a folder, and the machine's metadata at a URL.
WAYS: dict[str, tuple[str, dict[str, str]]] = {
    "a machine of Amazon": ("s3", {"AWS_METADATA_ENDPOINT": "{url}/machine"}),
    "a container of Amazon": (
        "s3",
        {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": "{url}/machine/container",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "{folder}/token",
        },
    ),
    "a web identity": (
        "s3",
        {
            "AWS_WEB_IDENTITY_TOKEN_FILE": "{folder}/token",
            "AWS_ROLE_ARN": "arn:aws:iam::1:role/lab",
            "AWS_ENDPOINT_URL_STS": "{url}/machine/sts",
        },
    ),
    "a machine of Google": ("gs", {"GCE_METADATA_HOST": "{host}/machine"}),
    "a machine of Azure": ("az", {"AZURE_STORAGE_ACCOUNT_NAME": "lab", "IDENTITY_ENDPOINT": "{url}/machine/azure"}),
}


def remote(server: FaultServer, scheme: str) -> Remote:
    return Remote(endpoint=server.azure if scheme == "az" else server.s3, retries=0)


@pytest.mark.parametrize("way", WAYS)
def test_the_machine_says_who_asks(server: FaultServer, nobody: pytest.MonkeyPatch, tmp_path: Path, way: str) -> None:
    scheme, environment = WAYS[way]
    (tmp_path / "token").write_text("token-of-the-pod")
    for name, value in environment.items():
        host = server.url.removeprefix("http://")
        nobody.setenv(name, value.format(url=server.url, host=host, folder=tmp_path))
    url = f"{scheme}://bucket/a.safetensors"
    weights = max_weights.load_weights(url, remote=remote(server, scheme))
    assert weights.load(framework="numpy")["w"][999] == 999
    log = server.log()
    assert log[0]["path"].startswith("/machine/")
    requested = [request for request in log if "a.safetensors" in unquote(request["path"])]
    assert requested
    assert all(request["authorization"] for request in requested)
    if scheme == "s3":
        assert all("x-amz-security-token" in request["headers"] for request in requested)
    server.set("denied path=bucket")
    with refuses(OSError) as refused:
        max_weights.load_weights(url, remote=remote(server, scheme))
    assert SECRET not in str(refused.value)
    assert "token-of-the-pod" not in str(refused.value)


@pytest.mark.parametrize("way", [way for way in WAYS if way.startswith("a machine")])
def test_a_machine_that_knows_nobody_says_what_to_do(server: FaultServer, nobody: pytest.MonkeyPatch, way: str) -> None:
    scheme, environment = WAYS[way]
    for name, value in environment.items():
        host = server.url.removeprefix("http://")
        nobody.setenv(name, value.replace("/machine", "/nothing").format(url=server.url, host=host))
    nobody.setenv("GCE_METADATA_IP", server.url.removeprefix("http://"))
    with refuses(OSError):
        max_weights.load_weights(f"{scheme}://bucket/a.safetensors", remote=remote(server, scheme))


def test_a_machine_that_does_not_answer_is_not_waited_for(server: FaultServer, nobody: pytest.MonkeyPatch) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        nobody.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{deaf.getsockname()[1]}")
        began = time.perf_counter()
        with refuses(OSError):
            max_weights.load_weights("s3://bucket/a.safetensors", remote=Remote(endpoint=server.s3))
        assert time.perf_counter() - began < 15
    assert server.log() == []


@WITH_OPENSSL
def test_a_service_account_of_google_signs_for_itself(
    server: FaultServer, nobody: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = tmp_path / "key.pem"
    openssl("genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", key)
    account = {
        "type": "service_account",
        "private_key": key.read_text(),
        "private_key_id": "1",
        "client_email": "lab@project.iam.gserviceaccount.com",
    }
    (tmp_path / "account.json").write_text(json.dumps(account))
    for variable in ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_APPLICATION_CREDENTIALS"):
        nobody.setenv(variable, str(tmp_path / "account.json"))
        server.reset_counts()
        weights = max_weights.load_weights("gs://bucket/a.safetensors", remote=remote(server, "gs"))
        assert weights.load(framework="numpy")["w"][999] == 999
        assert {(request["method"], request["authorization"]) for request in server.log()} == {("GET", True)}
        nobody.delenv(variable)


class GoogleAccounts(socketserver.StreamRequestHandler):
    """A proxy that acts as the token server for `authorized_user`."""

    answer: ClassVar[tuple[int, dict[str, object]]]
    requested: ClassVar[list[dict[str, list[str]]]]
    context: ClassVar[ssl.SSLContext]

    def handle(self) -> None:
        """Answer one request for a token."""
        assert self.rfile.readline().startswith(b"CONNECT accounts.google.com:443 ")
        while self.rfile.readline() != b"\r\n":
            pass
        self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with self.context.wrap_socket(self.request, server_side=True) as inside, inside.makefile("rb") as read:
            assert read.readline().startswith(b"POST /o/oauth2/token ")
            head = http.client.parse_headers(read)
            self.requested.append(parse_qs(read.read(int(head["content-length"])).decode()))
            status, body = self.answer
            text = json.dumps(body).encode()
            inside.sendall(b"HTTP/1.1 %d x\r\nContent-Length: %d\r\n\r\n%s" % (status, len(text), text))


ASKED_BY_A_USER = """
import sys, max_weights
from max_weights.remote import Remote

remote = Remote(endpoint=sys.argv[1], retries=0)
print(max_weights.load_weights("gs://bucket/a.safetensors", remote=remote).load(framework="numpy")["w"][999])
"""


@WITH_OPENSSL
@pytest.mark.parametrize("place", ["GOOGLE_APPLICATION_CREDENTIALS", "the file of gcloud"])
def test_a_user_of_google_gets_tokens_for_what_gcloud_saved(server: FaultServer, tmp_path: Path, place: str) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    made = ("-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", str(key), "-out", str(certificate))
    names = ("-addext", "subjectAltName=DNS:accounts.google.com", "-addext", "basicConstraints=critical,CA:FALSE")
    openssl("req", *made, "-subj", "/CN=accounts.google.com", *names)
    saved = tmp_path / ".config/gcloud/application_default_credentials.json"
    saved.parent.mkdir(parents=True)
    user = {
        "type": "authorized_user",
        "client_id": "id-of-gcloud",
        "client_secret": "secret-of-gcloud",
        "refresh_token": "secret-of-the-user",
    }
    saved.write_text(json.dumps(user))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GOOGLE_", "GCE_")) and not name.lower().endswith("_proxy")
    }
    environment |= {"HOME": str(tmp_path), "REQUESTS_CA_BUNDLE": str(certificate)}
    if place.startswith("GOOGLE"):
        environment |= {place: str(saved.rename(tmp_path / "mine.json"))}

    def load(status: int, answer: dict[str, object]) -> "subprocess.CompletedProcess[str]":
        what = {"answer": (status, answer), "requested": [], "context": context}
        accounts = type("Accounts", (GoogleAccounts,), what)
        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), accounts) as proxy:
            threading.Thread(target=proxy.serve_forever, daemon=True).start()
            there = environment | {"HTTPS_PROXY": f"http://127.0.0.1:{proxy.server_address[1]}"}
            command = [sys.executable, "-c", ASKED_BY_A_USER, server.s3]
            done = subprocess.run(command, env=there, capture_output=True, text=True, timeout=60)
            proxy.shutdown()
        for form in accounts.requested:  # type: ignore[attr-defined]
            assert form["refresh_token"] == ["secret-of-the-user"]
            assert form["grant_type"] == ["refresh_token"]
        assert accounts.requested  # type: ignore[attr-defined]
        return done

    done = load(200, {"access_token": "secret-of-an-hour", "expires_in": 3600})
    assert done.stdout == "999.0\n", done.stderr
    assert {(request["method"], request["authorization"]) for request in server.log()} == {("GET", True)}
    server.reset_counts()
    done = load(400, {"error": "invalid_grant", "error_description": "Token has been expired or revoked."})
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(("OSError", "PermissionError")), done.stderr
    assert "400 Bad Request: invalid_grant" in last
    assert "secret-of" not in done.stderr
    assert server.log() == []


def test_a_profile_with_keys_is_used_and_its_secret_is_in_no_message(
    server: FaultServer, nobody: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text(f"[profile lab]\nregion = eu-west-1\nendpoint_url = {server.s3}\n")
    keys = "aws_access_key_id = AKLAB\naws_secret_access_key = very-secret-key\naws_session_token = secret-token\n"
    (tmp_path / "credentials").write_text(f"[other]\naws_access_key_id = AKOTHER\n[lab]\n{keys}")
    nobody.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    nobody.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    nobody.setenv("AWS_PROFILE", "lab")
    assert len(max_weights.load_weights("s3://bucket/a.safetensors", remote=Remote(retries=0))) == 1
    [request] = server.log()
    assert request["authorization"]
    assert "x-amz-security-token" in request["headers"]
    server.set("denied")
    with refuses(OSError) as caught:
        max_weights.load_weights("s3://bucket/a.safetensors", remote=Remote(retries=0))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", ["web", "s3"])
@pytest.mark.parametrize("host", ["127.0.0.1", "nothing.invalid"])
def test_servers_that_are_not_there_are_not_tried_for_long(kind: str, host: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://{host}:{closed.getsockname()[1]}"
    here = Remote(endpoint=endpoint, allow_http=True, credentials={"key_id": "a", "secret": "b"})
    url = f"{endpoint}/a.safetensors" if kind == "web" else "s3://bucket/a.safetensors"
    began = time.perf_counter()
    with pytest.raises(OSError, match=r"cannot connect.*\(3 tries"):
        max_weights.load_weights(url, remote=here)
    assert time.perf_counter() - began < 20


LOAD = """
import sys, max_weights
print(len(max_weights.load_weights(sys.argv[1])))
"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves the working directory of a test, and prints nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@WITH_OPENSSL
def test_a_certificate_is_that_of_the_server_and_of_an_authority_that_is_known(folder: Path, tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    usage = ("-addext", "basicConstraints=critical,CA:FALSE")
    made = ("-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", str(key), "-out", str(certificate))
    openssl("req", *made, *names, *usage)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def serve(*arguments: object) -> Quiet:
        return Quiet(*arguments, directory=os.fspath(folder / "bucket"))  # type: ignore[arg-type]

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]

        def load(host: str, **environment: str) -> "subprocess.CompletedProcess[str]":
            command = [sys.executable, "-c", LOAD, f"https://{host}:{port}/a.safetensors"]
            return subprocess.run(
                command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
            )

        known = {"REQUESTS_CA_BUNDLE": str(certificate)}
        right = load("localhost", **known)
        assert right.stdout.strip() == "1", right.stderr
        for refused in (load("127.0.0.1", **known), load("localhost")):
            assert refused.returncode == 1
            assert "certificate" in refused.stderr.splitlines()[-1]
            assert "tries" not in refused.stderr
        server.shutdown()
