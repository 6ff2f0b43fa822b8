"""Forks, ends and signals of processes that use a device, each in a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import gpu_files
from gpu_support import OnDevice, each

BEGIN = """
import os, signal, sys, threading, time
import numpy as np
from max_weights import Buffer, DeviceError, load_weights, release_memory
path = sys.argv[1]
value = Buffer.from_numpy(np.arange(5 << 20, dtype=np.uint32))

def arrives():
    return np.array_equal(value.to("cuda:0").to("cpu").to_numpy(), value.to_numpy())

def refusal(call):
    try:
        call()
    except DeviceError as error:
        return str(error)

def in_a_child(work):
    child = os.fork()
    if child == 0:
        os._exit(0 if work() else 1)
    return os.waitpid(child, 0)[1] == 0
"""
PROGRAMS = {
    "a forked child is refused, and its parent goes on": """
held = [value.to("cuda:0")]
def child():
    uses = [lambda: value.to("cuda:0"), lambda: held[0].to("cpu"), lambda: load_weights(path).load(device="cuda:0")]
    messages = [refusal(use) for use in uses]
    held.clear()
    release_memory()
    return all("forked" in message and "spawn" in message for message in messages)
assert in_a_child(child)
assert np.array_equal(held[0].to("cpu").to_numpy(), value.to_numpy())
assert arrives()
""",
    "a child may use what its parent did not": """
assert in_a_child(arrives)
""",
    "spawned processes use the device beside their parent": """
import subprocess
assert arrives()
text = "from max_weights import Buffer; import numpy as np; v = np.arange(9); "
text += "assert (Buffer.from_numpy(v).to('cuda:0').to('cpu').to_numpy() == v).all()"
assert all(one.wait() == 0 for one in [subprocess.Popen([sys.executable, "-c", text]) for _ in range(3)])
""",
    "a process may end while copies go on": """
kept = [value.to("cuda:0") for _ in range(10)]
""",
    "a process may end while a load goes on": """
kept = load_weights(path).load(device="cuda:0")
""",
    "a process may end with a thread in a load": """
def work():
    while True:
        load_weights(path).load(device="cuda:0")
threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
""",
    "ctrl-c ends loads and copies soon": """
signal.signal(signal.SIGALRM, signal.default_int_handler)
def loads():
    while True:
        load_weights(path).load(device="cuda:0")
def copies():
    while True:
        value.to("cuda:0").to("cpu")
for work in (loads, copies):
    for delay in (0.05, 0.1, 0.2):
        signal.setitimer(signal.ITIMER_REAL, delay)
        start = time.monotonic()
        try:
            work()
        except KeyboardInterrupt:
            assert time.monotonic() - start < delay + 2
        assert arrives()
""",
    "importing and using the host starts no driver": """
value.copy()
load_weights(path).load(copy=True)
assert "libcuda" not in open("/proc/self/maps").read()
assert arrives()
assert "libcuda" in open("/proc/self/maps").read()
""",
    "no device is visible": """
from max_weights.driver import accelerator_api, accelerator_count
assert (accelerator_count(), accelerator_api()) == (0, "cpu")
assert "no device gpu:0" in refusal(lambda: value.to("cuda:0"))
assert load_weights(path).load(copy=True)
""",
}
HIDDEN = {"CUDA_VISIBLE_DEVICES": "", "FAKE_CUDA_DEVICES": "0"}


class Processes(OnDevice):
    """Programs that end without an error, with what they assert."""

    @each(PROGRAMS)
    def test_that(self, promise: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = gpu_files.large(Path(folder) / "a.safetensors", 64)
            settings = HIDDEN if promise == "no device is visible" else {}
            done = subprocess.run(
                [sys.executable, "-c", BEGIN + PROGRAMS[promise], str(path)],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONFAULTHANDLER": "1"} | settings,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        self.assertEqual(done.returncode, 0, f"{done.stdout}\n{done.stderr}")
