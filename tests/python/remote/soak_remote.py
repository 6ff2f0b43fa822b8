"""Load a checkpoint repeatedly from a server that fails a tenth of its answers, and look for leaks.

    PYTHONPATH=tests/python:tests/python/support tests/python/remote/soak_remote.py FILE [--minutes 10]

Every byte of every load is compared with the file. It fails if a byte differs, a load fails, or descriptors or threads
are left. It also fails if memory grows in the second half of the time; in the first, allocators fill their arenas. The
server is that of the tests: cargo build -p fault-server.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import tempfile
import time
from pathlib import Path

import numpy as np

import max_weights
from fault_server import FaultServer
from max_weights.remote import Remote

FAULTS = (
    "slow-down percent=4 seed={0}",
    "500-in-200 percent=1 seed={0} from=3",
    "reset-before-head percent=2 seed={0}",
    "reset-in-body=100000 percent=2 seed={0}",
    "short-body percent=1 seed={0} from=3",
)
GROWTH = 16 << 20


def resident() -> int:
    """Return the bytes of memory of this process, without memory kept for reuse."""
    max_weights.release_memory()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def left() -> tuple[int, int]:
    """Return the numbers of descriptors and threads of this process."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def main() -> None:
    """Run until the time is over."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("file", type=Path)
    arguments.add_argument("--minutes", type=float, default=10)
    options = arguments.parse_args()
    local = max_weights.load_weights(options.file).load(framework="numpy")
    names = list(local)
    with tempfile.TemporaryDirectory() as folder:
        served = Path(folder) / "bucket"
        served.mkdir()
        (served / options.file.name).symlink_to(options.file.resolve())
        with FaultServer(folder) as server:
            remote = Remote(
                endpoint=server.s3, credentials={"key_id": "a", "secret": "b"}, request_bytes="1MB", stall=5
            )
            urls = (f"s3://bucket/{options.file.name}", server.file(f"bucket/{options.file.name}"))
            begin, seconds = time.monotonic(), options.minutes * 60
            first, after, requests = None, None, 0
            for number in itertools.count():
                server.set(*(fault.format(number) for fault in FAULTS))
                select = None if number % 3 == 0 else random.Random(number).sample(names, 5)
                with max_weights.load_weights(urls[number % 2], remote=remote) as weights:
                    loaded = weights.load(select, framework="numpy", copy=True)
                for name, array in loaded.items():
                    if not np.array_equal(array.view(np.uint8), local[name].view(np.uint8)):
                        raise SystemExit(f"load {number}: '{name}' has wrong bytes")
                del loaded, weights
                requests += server.counts()["requests"]
                server.reset_counts()
                if number == 20:
                    first = resident()
                if time.monotonic() > begin + seconds / 2 and first is not None and after is None:
                    after = resident(), left()
                if time.monotonic() > begin + seconds and after is not None:
                    break
            assert first is not None
            assert after is not None
            time.sleep(1)
            memory, (descriptors, threads) = resident() - after[0], left()
            print(f"{number + 1} loads, {requests:,} requests, no wrong byte")
            print(f"memory {(after[0] - first) / 1e6:+.1f} MB in the first half, {memory / 1e6:+.1f} MB in the second")
            print(f"descriptors {after[1][0]} -> {descriptors}, threads {after[1][1]} -> {threads}")
            if memory > GROWTH or threads > after[1][1] + 2 or descriptors > after[1][0] + 70:
                raise SystemExit("something was left behind")


if __name__ == "__main__":
    main()
