"""Load a checkpoint from servers on this machine: over HTTP, with latency, over HTTPS, from S3.

The servers are nginx, haproxy before it for latency, and SeaweedFS. REMOTE_GB is the size of the checkpoint.
"""

from __future__ import annotations

import concurrent.futures
import http.client
import os
import ssl
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import files
import harness
import servers
from report import Column, Report, Target

TITLE = "Checkpoints on servers"
RAW = "raw reads into fresh memory, 16 x 8 MiB"
OBSTORE = "obstore 16 x 8 MiB, bytes left where they are"
BOTO = "boto3, 8 threads"
RUNAI = "runai-model-streamer"
PIECE = 8 << 20
ROUNDS = harness.Effort(least=7, most=9, seconds=60.0)
BUCKET = "bench"
LAYER = 54e6  # bytes of a layer of `files.llama`
STREAM = "http, a stream in 64 MB"
STREAMED = 1e9  # bytes of the file for the peak memory of a stream
BUDGET = 64_000_000  # the memory budget of the stream


def _url(kind: str, path: Path) -> str:
    return f"{os.environ['REMOTE_' + kind.replace(' ', '_').upper()]}/{path.name}"


def _ours(kind: str, path: Path) -> Callable[[], object]:
    import max_weights

    url = f"s3://{BUCKET}/{path.name}" if kind == "s3" else _url(kind, path)

    def run() -> object:
        with max_weights.load_weights(url) as weights:
            return weights.load(copy=True)

    return run


def _stream(kind: str, path: Path) -> Callable[[], object]:
    import max_weights

    url = _url(kind, path)

    def run() -> object:
        with max_weights.load_weights(url) as weights, weights.stream(max_memory=BUDGET) as stream:
            return sum(tensor.nbytes for _, tensor in stream)

    return run


def s3_store(endpoint: str) -> Any:
    """Return obstore's store of the bucket at an endpoint."""
    from obstore.store import S3Store

    key, secret = servers.KEYS
    return S3Store(
        BUCKET,
        endpoint=endpoint,
        access_key_id=key,
        secret_access_key=secret,
        region="us-east-1",
        client_options={"allow_http": True},
    )


def _raw(kind: str, path: Path) -> Callable[[], object]:
    import numpy as np

    size, parts = path.stat().st_size, urllib.parse.urlsplit(_url(kind, path))
    context = ssl.create_default_context(cafile=os.environ.get("REQUESTS_CA_BUNDLE")) if kind == "https" else None

    def connect() -> http.client.HTTPConnection:
        host, port = str(parts.hostname), parts.port
        if context is not None:
            return http.client.HTTPSConnection(host, port, context=context)
        return http.client.HTTPConnection(host, port)

    def run() -> object:
        memory = np.empty(size, np.uint8)
        starts = iter(range(0, size, PIECE))

        def fetch() -> None:
            connection = connect()
            for start in starts:
                end = min(start + PIECE, size)
                connection.request("GET", parts.path, headers={"Range": f"bytes={start}-{end - 1}"})
                answer, view = connection.getresponse(), memory.data[start:end]
                while len(view):
                    view = view[answer.readinto(view) :]
                answer.read()
            connection.close()

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            for done in [pool.submit(fetch) for _ in range(16)]:
                done.result()
        return memory

    return run


def _obstore(kind: str, path: Path) -> Callable[[], object]:
    import obstore
    from obstore.store import HTTPStore

    size = path.stat().st_size
    starts = range(0, size, PIECE)
    if kind == "s3":
        store: Any = s3_store(os.environ["REMOTE_S3"])
    else:
        store = HTTPStore.from_url(
            os.environ["REMOTE_" + kind.replace(" ", "_").upper()], client_options={"allow_http": True}
        )

    def fetch(start: int) -> object:
        return obstore.get_range(store, path.name, start=start, end=min(start + PIECE, size))

    def run() -> object:
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            return list(pool.map(fetch, starts))

    return run


def _boto(_kind: str, path: Path) -> Callable[[], object]:
    import numpy as np

    size = path.stat().st_size

    def run() -> object:
        client, memory = s3_client(), np.empty(size, np.uint8)

        def fetch(start: int) -> None:
            end = min(start + PIECE, size)
            body = client.get_object(Bucket=BUCKET, Key=path.name, Range=f"bytes={start}-{end - 1}")["Body"]
            memory[start:end] = np.frombuffer(body.read(), np.uint8)

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(fetch, range(0, size, PIECE)))
        return memory

    return run


def s3_client() -> Any:
    """Return boto3's client of the endpoint that the environment names."""
    import boto3

    key, secret = servers.KEYS
    return boto3.client(
        "s3",
        endpoint_url=os.environ["REMOTE_S3"],
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        region_name="us-east-1",
    )


def _runai(_kind: str, path: Path) -> Callable[[], object]:
    from runai_model_streamer import SafetensorsStreamer

    def run() -> object:
        with SafetensorsStreamer() as streamer:
            streamer.stream_file(f"s3://{BUCKET}/{path.name}")
            return [tensor.numel() for _, tensor in streamer.get_tensors()]

    return run


Loaders: TypeAlias = dict[str, Callable[[str, Path], Callable[[], object]]]
WEB: Loaders = {harness.OURS: _ours, RAW: _raw, OBSTORE: _obstore}
S3: Loaders = {harness.OURS: _ours, OBSTORE: _obstore, BOTO: _boto, RUNAI: _runai}
KINDS: dict[str, Loaders] = {
    "http": WEB,
    "0 ms": {harness.OURS: _ours, RAW: _raw},
    "20 ms": {harness.OURS: _ours, RAW: _raw},
    "100 ms": {harness.OURS: _ours, RAW: _raw},
    "https": {harness.OURS: _ours, RAW: _raw},
    "s3": S3,
}
CASES: harness.Cases = {
    kind: {name: partial(load, kind) for name, load in loaders.items()} for kind, loaders in KINDS.items()
}
CASES[STREAM] = {harness.OURS: partial(_stream, "http")}

_CPU = """
import resource, sys
sys.path.insert(0, {bench!r})
import remote
from pathlib import Path
run = remote.CASES[{kind!r}][{loader!r}](Path({path!r}))
run()
before = resource.getrusage(resource.RUSAGE_SELF)
for _ in range(3): run()
after = resource.getrusage(resource.RUSAGE_SELF)
print((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 3)
"""


def _cpu(kind: str, loader: str, path: Path) -> float:
    """The processor time of one load, in seconds."""
    program = _CPU.format(bench=str(Path(__file__).parent), kind=kind, loader=loader, path=str(path))
    return float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout)


def _first_use() -> float:
    """Seconds from `import max_weights` to the first request's failure at a port that nothing listens on."""
    program = (
        "import max_weights, time, sys\nfrom max_weights.remote import Remote\nbegan = time.perf_counter()\n"
        "try: max_weights.load_weights(f'http://127.0.0.1:{sys.argv[1]}/x.gguf', remote=Remote(retries=0))\n"
        "except OSError: print(time.perf_counter() - began)"
    )
    command = [sys.executable, "-c", program, str(servers.free_port())]
    return min(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(5))


def write_layers(path: Path, size: float) -> None:
    """Write only layers: an embedding exceeds the stream's memory budget."""
    entries = files.llama(max(1, round(size / LAYER)))
    files.write_safetensors(path, (entry for entry in entries if ".layers." in entry.name))


def _peak(bench: Path, path: Path) -> float:
    """Return the peak memory of a stream of the file in a fresh process."""
    return float(harness.peak_memory(bench, STREAM, [harness.OURS], path)[harness.OURS].peak)


def measure(folder: Path, small: bool) -> Report:
    """Time ours, the rivals and the limit on each kind of server."""
    effort = harness.QUICK if small else ROUNDS
    gigabytes = 0.05 if small else float(os.environ.get("REMOTE_GB", "0.5"))
    served = folder / "served"
    served.mkdir(exist_ok=True)
    path = served / "model.safetensors"
    if not path.exists():
        files.write_safetensors(path, files.llama(max(1, round(gigabytes * 1e9 / LAYER))))
    bench, timings, columns = Path(__file__), dict[str, Any](), list[Column]()
    with servers.web(served, folder / "servers") as urls, servers.s3(folder / "seaweed") as endpoint:
        for kind, url in urls.items():
            os.environ["REMOTE_" + kind.replace(" ", "_").upper()] = url
        key, secret = servers.KEYS
        os.environ |= {
            "REMOTE_S3": endpoint,
            "REQUESTS_CA_BUNDLE": str(folder / "servers/ca.pem"),
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_REGION": "us-east-1",
        }
        client = s3_client()
        client.create_bucket(Bucket=BUCKET)
        client.upload_file(str(path), BUCKET, path.name)
        time.sleep(1)
        for kind, loaders in ((kind, CASES[kind]) for kind in KINDS):
            timings[kind] = harness.alternate(bench, kind, loaders, path, effort=effort)
            columns.append(Column(kind, "ms", {name: timing.median for name, timing in timings[kind].items()}))
        cpu = {name: _cpu("http", name, path) / (path.stat().st_size / 1e9) for name in WEB}
        first = _first_use()
        long = served / "stream.safetensors"
        if not long.exists():
            write_layers(long, gigabytes * 1e9 if small else STREAMED)
        peak = _peak(bench, long)
    columns.append(Column(f"{STREAM}, peak memory", "MB", {harness.OURS: peak}, charted=False))
    columns.append(Column("http, processor per GB", "ms", cpu, charted=False))
    values = {column.label: column.values for column in columns}
    http, tls, s3 = values["http"], values["https"], values["s3"]
    here, near, far = (values[kind][harness.OURS] for kind in ("0 ms", "20 ms", "100 ms"))
    targets = [
        Target("HTTP: raw ÷ ours", http[RAW] / http[harness.OURS], 0.8, "at least"),
        Target("HTTP: processor ÷ raw's", cpu[harness.OURS] / cpu[RAW], 1.7, "at most"),
        Target("at 20 ms: without ÷ with latency", here / near, 0.9, "at least"),
        Target("at 100 ms: without ÷ with latency", here / far, 0.8, "at least"),
        Target("HTTPS: raw ÷ ours", tls[RAW] / tls[harness.OURS], 0.9, "at least"),
        Target("first use, before the first request", first * 1e3, 25, "at most", "ms"),
        Target("a stream in 64 MB: peak memory", peak / 1e6, 2 * BUDGET / 1e6, "at most", "MB"),
    ]
    best = min(seconds for name, seconds in s3.items() if name != harness.OURS and name != RUNAI)
    targets.insert(5, Target("S3: the best rival ÷ ours", best / s3[harness.OURS], 1.0, "at least"))
    if RUNAI in s3:
        targets.insert(6, Target("S3: runai ÷ ours", s3[RUNAI] / s3[harness.OURS], 1.5, "at least"))
    return Report(
        "remote",
        columns,
        targets=tuple(targets),
        limits=frozenset({RAW}),
        notes=(
            f"{path.stat().st_size / 1e9:.2f} GB of bfloat16 on loopback: nginx, haproxy with a delay before it, "
            "SeaweedFS; `0 ms` is haproxy without a delay. The raw reads are Python's, over HTTPS with OpenSSL.",
        ),
        samples={kind: {loader: timing.seconds for loader, timing in one.items()} for kind, one in timings.items()},
    )
