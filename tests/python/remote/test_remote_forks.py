"""A child that is forked while its parent reads from and writes to servers uses separate connections.

It never waits for requests or locks of its parent.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fault_server import FaultServer
from max_weights import save_file

TENSORS = {f"layers.{number}.weight": np.full((256, 256), number, np.float32) for number in range(4)}

FORKS = """
import itertools, os, signal, sys, threading, traceback
import max_weights
from max_weights.remote import Remote

(web, endpoint, local, cache), count = sys.argv[1:5], int(sys.argv[5])
# So few concurrent requests that another one can hardly ever start.
options = dict(endpoint=endpoint, credentials={"key_id": "a", "secret": "b"}, requests=2, request_bytes="64kB")
remote, kept = Remote(**options), Remote(**options, cache=cache)
url = "s3://bucket/a.safetensors"
shared = max_weights.load_weights(url, remote=remote)
cached = max_weights.load_weights(url, remote=kept)
tensors = shared.load(framework="numpy")
done = threading.Event()

def forever(work):
    def repeat():
        for number in itertools.count():
            if done.is_set():
                break
            work(number)
    return threading.Thread(target=repeat)

def right(loaded):
    assert loaded and all((array == int(name.split(".")[1])).all() for name, array in loaded.items())

threads = [
    forever(lambda _: right(shared.load(framework="numpy"))),
    forever(lambda _: right(shared.load("layers.1", framework="numpy"))),
    forever(lambda _: right(max_weights.load_weights(web).load(framework="numpy"))),
    forever(lambda _: right(max_weights.load_weights(url, remote=kept).load(framework="numpy"))),
    forever(lambda _: [right({name: array}) for name, array in shared.stream(framework="numpy")]),
    forever(lambda number: max_weights.save_file(tensors, f"s3://bucket/new-{number % 4}.safetensors", remote=remote)),
]
for thread in threads:
    thread.start()

def child():
    right(shared.load("layers.2", framework="numpy"))
    right(cached.load("layers.3", framework="numpy"))
    right(max_weights.load_weights(web).load("layers.1", framework="numpy"))
    right(max_weights.load_weights(local).load(framework="numpy"))
    max_weights.validate(local)

failed = 0
for _ in range(count):
    process = os.fork()
    if process == 0:
        signal.alarm(60)  # a child that waits for ever is killed
        try:
            child()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    failed += os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) != 0
    if failed:
        break
done.set()
for thread in threads:
    thread.join()
print(failed)
"""


def fork_while_reading(tmp_path: Path, count: int) -> None:
    (tmp_path / "served/bucket").mkdir(parents=True)
    file = tmp_path / "served/bucket/a.safetensors"
    save_file(TENSORS, file)
    here = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    with FaultServer(tmp_path / "served", latency_ms=5) as server:
        places = [server.file("bucket/a.safetensors"), server.s3, str(file), str(tmp_path / "cache"), str(count)]
        command = [sys.executable, "-W", "ignore", "-c", FORKS, *places]
        done = subprocess.run(command, env=here, capture_output=True, text=True, timeout=200 + 2 * count, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr[-4000:]


def test_no_child_that_is_forked_during_remote_requests_hangs(tmp_path: Path) -> None:
    fork_while_reading(tmp_path, 12)


@pytest.mark.nightly
@pytest.mark.timeout(2400)
def test_no_child_of_a_thousand_that_are_forked_during_remote_requests_hangs(tmp_path: Path) -> None:
    fork_while_reading(tmp_path, 1000)
