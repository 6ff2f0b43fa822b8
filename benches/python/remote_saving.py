"""Save a checkpoint to S3 on this machine, with and without latency, and upload the same file with obstore.

The server is SeaweedFS, behind haproxy. SAVE_REMOTE_GB is the size of the checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import harness
import remote
import servers
from report import Column, Report, Target

TITLE = "Checkpoints saved to servers"
OBSTORE = "obstore.put, multipart: 12 x 5 MiB"
OBSTORE_8 = "obstore.put, multipart: 8 x 8 MiB"
PART = 8 << 20  # bytes of one of our parts, 8 of which are in flight
MAX_MEMORY = 3 * 8 * PART
LATENCIES = ("0 ms", "20 ms")
ROUNDS = harness.Effort(least=7, most=9, seconds=60.0)


def _endpoint(latency: str) -> str:
    return os.environ["REMOTE_SAVING_" + latency.replace(" ", "_").upper()]


def _ours(latency: str, path: Path) -> Callable[[], object]:
    import max_weights
    from max_weights.remote import Remote

    key, secret = servers.KEYS
    there = Remote(endpoint=_endpoint(latency), credentials={"key_id": key, "secret": secret}, region="us-east-1")
    weights = max_weights.load_weights(path)
    return lambda: weights.save(f"s3://{remote.BUCKET}/ours.safetensors", remote=there)


def _obstore(parts: int, size: int, latency: str, path: Path) -> Callable[[], object]:
    import obstore

    store = remote.s3_store(_endpoint(latency))
    return lambda: obstore.put(
        store, "obstore.safetensors", path, use_multipart=True, chunk_size=size, max_concurrency=parts
    )


LOADERS: dict[str, Callable[[str, Path], Callable[[], object]]] = {
    harness.OURS: _ours,
    OBSTORE: partial(_obstore, 12, 5 << 20),
    OBSTORE_8: partial(_obstore, 8, PART),
}
CASES: harness.Cases = {
    latency: {name: partial(save, latency) for name, save in LOADERS.items()} for latency in LATENCIES
}


def measure(folder: Path, small: bool) -> Report:
    """Time saves of one file, and take the memory of each."""
    effort = harness.QUICK if small else ROUNDS
    gigabytes = 0.05 if small else float(os.environ.get("SAVE_REMOTE_GB", "0.27"))
    bench, path, columns = Path(__file__), folder / "saved.safetensors", list[Column]()
    if not path.exists():
        remote.write_layers(path, gigabytes * 1e9)
    with servers.s3(folder / "seaweed") as endpoint:
        key, secret = servers.KEYS
        os.environ |= {"REMOTE_S3": endpoint, "AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
        remote.s3_client().create_bucket(Bucket=remote.BUCKET)
        with servers.delayed(int(endpoint.rpartition(":")[2]), folder / "before-seaweed") as urls:
            os.environ |= {"REMOTE_SAVING_" + latency.replace(" ", "_").upper(): urls[latency] for latency in LATENCIES}
            timings = {
                latency: harness.alternate(bench, latency, LOADERS, path, effort=effort) for latency in LATENCIES
            }
            memory = harness.peak_memory(bench, "20 ms", LOADERS, path, runs=1 if small else 3)
    for latency, of in timings.items():
        columns.append(Column(latency, "ms", {name: timing.median for name, timing in of.items()}))
    peaks = {name: float(one.peak) for name, one in memory.items()}
    columns.append(Column("20 ms, peak memory", "MB", peaks, charted=False))
    rivals = [name for name in LOADERS if name != harness.OURS]
    targets = [
        Target(
            f"at {column.label}: the best rival ÷ ours",
            min(column.values[name] for name in rivals) / column.values[harness.OURS],
            0.9,
            "at least",
        )
        for column in columns[: len(LATENCIES)]
    ]
    most = MAX_MEMORY / 1e6
    targets.append(Target("peak memory: three parts a request", peaks[harness.OURS] / 1e6, most, "at most", "MB"))
    return Report(
        "remote_saving",
        columns,
        targets=tuple(targets),
        notes=(
            f"A file of {path.stat().st_size / 1e9:.2f} GB, in the page cache, to SeaweedFS behind haproxy, which "
            "delays each request at `20 ms`. obstore's default is the first of its rows.",
        ),
        samples={latency: {name: timing.seconds for name, timing in of.items()} for latency, of in timings.items()},
    )
