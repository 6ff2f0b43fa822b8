"""A stalled server: Ctrl-C at each stage of the work, and headers that never end."""

import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

import max_weights
from conftest import ROOT
from fault_server import FaultServer
from max_weights import save_file, save_sharded

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

MODELS = Path(os.environ.get("MAX_WEIGHTS_MODELS", ROOT / ".models"))
MIB = 1 << 20

PRELUDE = """
import json, os, resource, signal, sys, threading, time, urllib.request
from pathlib import Path
import max_weights
from max_weights.remote import Remote

url, folder = sys.argv[1], Path(sys.argv[2])
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

def ask(method, path, text=None):
    request = urllib.request.Request(url + path, text and text.encode(), method=method)
    with direct.open(request, timeout=20) as answer:
        return answer.read()

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

def remote(**options):
    return Remote(endpoint=f"{url}/s3", credentials={"key_id": "a", "secret": "b"}, **options)

file = "s3://bucket/one.safetensors"
"""

CTRL_C = """
there = remote()
pressed = []

def press():
    "Ctrl-C, a fifth of a second after the first request that the fault has."
    words = dict(word.split("=") for word in FAULT.split() if "=" in word)
    first, path = int(words.get("from", 1)), words.get("path", "")
    while sum(path in request["path"] for request in json.loads(ask("GET", "/_log"))) < first:
        time.sleep(0.01)
    time.sleep(0.2)
    pressed.append(time.perf_counter())
    os.kill(os.getpid(), signal.SIGINT)

ask("POST", "/_control", FAULT)
ask("DELETE", "/_counts")
thread = threading.Thread(target=press)
thread.start()
try:
    call()
except KeyboardInterrupt:
    took = time.perf_counter() - pressed[0]
thread.join()
left = json.loads(ask("GET", "/_counts"))["open_uploads"]
ask("POST", "/_control", "part-too-small")
assert len(max_weights.load_weights(file, remote=there).load(framework="numpy")) == 40
max_weights.load_weights(folder / "one.safetensors").save("s3://bucket/after.safetensors", remote=there)
print(took, left)
"""

VALIDATE = (
    "def call():\n"
    "    os.environ.update(AWS_ENDPOINT_URL=f'{{url}}/s3', AWS_ACCESS_KEY_ID='a', AWS_SECRET_ACCESS_KEY='b')\n"
    "    max_weights.validate('s3://bucket/{}', level='{}')"
)

PIECES = "max_weights.load_weights('s3://bucket/pieces', remote=there)"
CHANGED = "max_weights.load_weights([file, 's3://bucket/delta.safetensors'], remote=there)"

# The stalling fault, and the waiting call.
STAGES: dict[str, tuple[str, str]] = {
    "opening a file": ("stall-before-head=60", "call = lambda: max_weights.load_weights(file, remote=there)"),
    "the first bytes": ("stall=60", "call = lambda: max_weights.load_weights(file, remote=there)"),
    "a server that is busy": ("slow-down", "call = lambda: max_weights.load_weights(file, remote=there)"),
    "a server that says how long": (
        "429-retry-after=5 times=1",
        "call = lambda: max_weights.load_weights(file, remote=there)",
    ),
    "listing a prefix": (
        "stall-before-head=60 path=list-type",
        "call = lambda: max_weights.load_weights('s3://bucket/model', remote=there)",
    ),
    "opening shards": (
        "stall-before-head=60 path=-of-",
        "call = lambda: max_weights.load_weights('s3://bucket/model', remote=there)",
    ),
    "loading": ("stall=60", "weights = max_weights.load_weights(file, remote=there)\ncall = weights.load"),
    "one tensor": (
        "stall-before-head=60",
        "weights = max_weights.load_weights(file, remote=there)\ncall = weights.layers[7].weight.data",
    ),
    "streaming": (
        "stall=60",
        "weights = max_weights.load_weights(file, remote=there)\n"
        "call = lambda: [name for name, _ in weights.stream(max_memory=16 << 20)]",
    ),
    "validating": (
        "stall=60 from=2",
        "def call():\n"
        "    os.environ.update(AWS_ENDPOINT_URL=f'{url}/s3', AWS_ACCESS_KEY_ID='a', AWS_SECRET_ACCESS_KEY='b')\n"
        "    max_weights.validate('s3://bucket/model')",
    ),
    # After the format is detected, the header is read again: on the calling thread for one file, on the pool for
    # several.
    "validating a long header": ("stall=60 from=8", VALIDATE.format("long/0.safetensors", "structure")),
    "validating several long headers": ("stall=60 from=8 path=long/3", VALIDATE.format("long", "structure")),
    "validating the values of an array": ("stall=60 from=13", VALIDATE.format("arrays", "content")),
    "validating values": ("stall=60 from=12", VALIDATE.format("one.safetensors", "content")),
    "digests": (
        "stall=60",
        "weights = max_weights.load_weights(file, remote=there)\n"
        "call = lambda: max_weights.fingerprint(weights, digests=True).digests",
    ),
    "converting to a disk": (
        "stall=60",
        "weights = max_weights.load_weights(file, remote=there)\n"
        "call = lambda: weights.save(folder / 'half.safetensors', dtype='float16')",
    ),
    "converting to a store": (
        "stall=60 from=2 method=GET",
        "weights = max_weights.load_weights(file, remote=there)\n"
        "call = lambda: weights.save('s3://bucket/half.safetensors', dtype='float16', remote=there)",
    ),
    "saving, at its beginning": (
        "stall-before-head=60 method=POST",
        "weights = max_weights.load_weights(folder / 'one.safetensors')\n"
        "call = lambda: weights.save('s3://bucket/new.safetensors', remote=there)",
    ),
    "saving, its parts": (
        "stall-before-head=60 method=PUT",
        "weights = max_weights.load_weights(folder / 'one.safetensors')\n"
        "call = lambda: weights.save('s3://bucket/new.safetensors', remote=there)",
    ),
    "saving, at its end": (
        "stall-before-head=60 method=POST path=uploadId",
        "weights = max_weights.load_weights(folder / 'one.safetensors')\n"
        "call = lambda: weights.save('s3://bucket/new.safetensors', remote=there)",
    ),
    "saving a small file": (
        "stall-before-head=60 method=PUT",
        "weights = max_weights.load_weights(folder / 'one.safetensors')\n"
        "call = lambda: weights.layers[0].save('s3://bucket/new.safetensors', remote=there)",
    ),
    "opening pieces": ("stall-before-head=60 path=.metadata", f"call = lambda: {PIECES}"),
    "looking into pieces": ("stall-before-head=60 path=.distcp", f"weights = {PIECES}\ncall = weights.load"),
    "loading pieces": ("stall=60 path=.distcp", f"weights = {PIECES}\nweights.load()\ncall = weights.load"),
    "streaming pieces": (
        "stall=60 path=.distcp",
        f"weights = {PIECES}\ncall = lambda: list(weights.stream(max_memory=64 << 20))",
    ),
    "fingerprints of pieces": (
        "stall=60 path=.distcp",
        f"weights = {PIECES}\nweights.load()\ncall = lambda: max_weights.fingerprint(weights)",
    ),
    "digests of pieces": (
        "stall=60 path=.distcp",
        f"weights = {PIECES}\nweights.load()\ncall = lambda: max_weights.fingerprint(weights, digests=True).digests",
    ),
    "statistics of pieces": (
        "stall=60 path=.distcp",
        f"weights = {PIECES}\nweights.load()\ncall = lambda: max_weights.stats(weights)",
    ),
    "converting pieces": (
        "stall=60 path=.distcp",
        f"weights = {PIECES}\nweights.load()\n"
        "call = lambda: weights.save(folder / 'half.safetensors', dtype='float16')",
    ),
    "loading pieces by ranks": (
        "stall=60 path=.distcp",
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        f"weights = {PIECES}\ncall = lambda: weights.load(group=dist.group.WORLD)",
    ),
    "opening a base and a delta": ("stall-before-head=60 path=delta", f"call = lambda: {CHANGED}"),
    "loading a base and a delta": ("stall=60 path=one", f"weights = {CHANGED}\ncall = weights.load"),
    "loading what a delta has": ("stall=60 path=delta", f"weights = {CHANGED}\ncall = weights.load"),
    "streaming a base and a delta": (
        "stall=60 path=delta",
        f"weights = {CHANGED}\ncall = lambda: list(weights.stream(max_memory=64 << 20))",
    ),
    "fingerprints of a base and a delta": (
        "stall=60 path=delta",
        f"weights = {CHANGED}\ncall = lambda: max_weights.fingerprint(weights)",
    ),
    "writing a delta": (
        "stall=60 path=one",
        "weights = max_weights.load_weights(file, remote=there)\n"
        "call = lambda: max_weights.delta.create(weights, folder / 'one.safetensors', folder / 'new.safetensors')",
    ),
    "converting a base and a delta": (
        "stall=60 path=delta",
        f"weights = {CHANGED}\ncall = lambda: weights.save(folder / 'half.safetensors', dtype='float16')",
    ),
    "saving a folder": (
        "stall-before-head=60 method=PUT path=00003",
        "weights = max_weights.load_weights(folder / 'one.safetensors')\n"
        "call = lambda: weights.save('s3://bucket/new', max_shard_size='12MB', remote=there)",
    ),
}
# The request may already have succeeded, so its answer is awaited, but no longer.
WAITED = {"saving, at its beginning": 1.0}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    (folder / "bucket").mkdir()
    tensors = {f"layers.{number}.weight": np.full(MIB // 4, number, np.float32) for number in range(40)}
    save_file(tensors, folder / "bucket/one.safetensors")
    save_sharded(tensors, folder / "bucket/model", max_shard_size="12MB")
    (folder / "bucket/long").mkdir()
    for number in range(4):  # with headers longer than the initial fetch
        one = {f"layers.{number}.weight": np.zeros(4, np.float32)}
        save_file(one, folder / f"bucket/long/{number}.safetensors", metadata={"note": "x" * MIB})
    (folder / "bucket/arrays").mkdir()
    np.save(folder / "bucket/arrays/a.npy", np.zeros(8 * MIB, np.float32))
    changed = {name: tensor + (tensor == 7) for name, tensor in tensors.items()} | {"new": np.ones(4, np.float32)}
    max_weights.delta.create(tensors, changed, folder / "bucket/delta.safetensors")
    # Short items, which are read at once, and long ones.
    pieces = {f"short.{number}": torch.ones(1 << 18) for number in range(8)}
    pieces |= {f"long.{number}": torch.ones(5 * MIB) for number in range(2)}
    dcp.save(pieces, checkpoint_id=folder / "bucket/pieces", no_dist=True)
    return folder


@pytest.fixture
def server(served: Path) -> Iterator[FaultServer]:
    with FaultServer(served) as server:
        yield server


def run(server: FaultServer, folder: Path, program: str) -> str:
    """The output of a successful separate process without errors."""
    command = [sys.executable, "-c", PRELUDE + program, server.url, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
@pytest.mark.parametrize("stage", STAGES)
def test_ctrl_c_ends_each_stage_and_leaves_nothing(
    server: FaultServer, served: Path, tmp_path: Path, stage: str
) -> None:
    fault, call = STAGES[stage]
    shutil.copy(served / "bucket/one.safetensors", tmp_path)
    (served / "bucket/after.safetensors").unlink(missing_ok=True)
    before = files(served), files(tmp_path)
    head, _, tail = CTRL_C.partition('ask("POST"')
    program = f'{head}FAULT = {fault!r}\n{call}\nask("POST"{tail}'
    # A busy machine may be late once; a call that waits for the server is late each time.
    took = 0.0
    for _ in range(3):
        took, left = map(float, run(server, tmp_path, program).split())
        print(f"{stage}: {1000 * took:.0f} ms")
        assert left == 0
        (served / "bucket/after.safetensors").unlink()
        assert (files(served), files(tmp_path)) == before
        if took < 0.3 + WAITED.get(stage, 0):
            break
    assert took < 1 + WAITED.get(stage, 0)


HEADER = """
before = peak()
began = time.perf_counter()
try:
    max_weights.load_weights("s3://bucket/header.safetensors", remote=remote(OPTIONS))
except (OSError, ValueError) as error:
    print(time.perf_counter() - began, peak() - before, str(error), sep="|")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell the peak this way")
@pytest.mark.parametrize(
    ("fault", "options", "longest", "cause"),
    [
        ("drip from=2", "stall=1, retries=2", 30, "only . of its bytes arrived in . s|no data arrived for 1 s"),
        ("drip", "stall=1, retries=2", 30, "only . of its bytes arrived in . s|no data arrived for 1 s"),
        ("drip from=2", "timeout=2", 10, "timeout"),
        ("rate=5000", "timeout=2", 10, "timeout"),
    ],
    ids=["the rest at a byte a second", "all of it", "within a timeout", "no slower than may be"],
)
def test_a_header_of_100_mb_that_does_not_come_is_one_error(
    server: FaultServer, served: Path, tmp_path: Path, fault: str, options: str, longest: float, cause: str
) -> None:
    """The header has an allowed length, and the file matches it: only the time is wrong."""
    path = served / "bucket/header.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 99_999_992) + b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}')
        file.truncate(8 + 99_999_992 + 1)
    server.set(fault)
    took, grew, message = run(server, tmp_path, HEADER.replace("OPTIONS", options)).split("|", 2)
    path.unlink()
    assert float(took) < longest, message
    # Its buffer is not touched before the data arrives.
    assert int(grew) < 24 * MIB
    assert re.search(cause, message), message
    assert "header.safetensors" in message
