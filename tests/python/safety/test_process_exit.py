"""A process ends cleanly with any owner of a tensor: nothing is released through a finalized Python."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

Make = Callable[..., Path]

ENTER = {
    "from_dlpack": "Buffer.from_dlpack(a)",
    "from_numpy": "Buffer.from_numpy(a)",
}
LEAVE = {
    "numpy by dlpack": "np.from_dlpack(b)",
    "numpy": "b.to_numpy()",
    "numpy view": "b.to_numpy()[::2]",
    "memoryview": "memoryview(b)",
    "strided": "b[::-2].to_numpy()",
    "capsule": "b.__dlpack__(max_version=(1, 0))",
    "buffer again": "Buffer.from_dlpack(np.from_dlpack(Buffer.from_numpy(np.from_dlpack(b))))",
}
# Owners that are alive when the modules are torn down.
HELD = {
    "at module level": "",
    "owners dropped first": "del a, b",
    "consumer in a cycle": "c = [c]; c.append(c); del a",
    "in another module": "import decimal; decimal.kept = c; del c",
    "at exit": "import atexit; atexit.register(lambda kept: None, c); del a, b, c",
    "in a thread that still runs": (
        "import threading, time; threading.Thread(target=lambda kept: time.sleep(9), args=(c,), daemon=True).start()"
    ),
}


def run(script: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def run_each(scripts: list[str], library: str = "numpy") -> None:
    """Each in a separate process: forked, because importing the libraries takes a hundred times as long."""
    children = "".join(
        f"""
child = os.fork()
if not child:
    exec({script!r}, vars(sys.modules["__main__"]))
    sys.exit(0)
status = os.waitpid(child, 0)[1]
assert status == 0, ({script!r}, status)
"""
        for script in scripts
    )
    run(
        f"""
import os, sys, warnings
warnings.simplefilter("ignore")  # about forks of a process with a framework's threads
import numpy as np, {library}, max_weights._buffer
from max_weights.driver import Buffer
{children}"""
    )


def test_every_order_of_numpys_and_our_owners_ends_with_status_0() -> None:
    chains = [f"a = np.arange(8.)\nb = {enter}\nc = {leave}\n" for enter in ENTER.values() for leave in LEAVE.values()]
    run_each([chain + held for chain in chains for held in HELD.values()])
    run("import numpy as np\nfrom max_weights.driver import Buffer\n" + chains[0])


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_every_order_of_owners_with_other_libraries_ends_with_status_0(library: str) -> None:
    make = {"torch": "torch.arange(64.)", "jax": "jax.numpy.arange(64.)"}[library]
    back = {"torch": "torch.from_dlpack", "jax": "jax.dlpack.from_dlpack"}[library]
    chains = [
        f"a = {make}; b = Buffer.from_dlpack(a); c = np.from_dlpack(b)\n",
        f"a = np.arange(64.); b = Buffer.from_dlpack(a); c = {back}(b.copy())\n",
        f"b = Buffer.from_numpy(np.arange(64.)); c = {back}(b); d = Buffer.from_dlpack(c); a = np.from_dlpack(d)\n",
    ]
    cycle = HELD["consumer in a cycle"]  # each takes its time to end
    run_each([*chains, chains[0] + cycle, chains[1] + cycle], library)
    run(f"import numpy as np, {library}\nfrom max_weights.driver import Buffer\n" + chains[0])


def test_threads_that_copy_and_convert_while_python_ends_do_not_end_it_otherwise() -> None:
    script = """
import threading, time
source = Buffer.from_dlpack(np.arange(1 << 20, dtype=np.float32))
def work():
    while True:
        np.from_dlpack(Buffer.from_dlpack(source.to_numpy())), source.astype("bf16"), source[::3].copy()
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.1)
"""
    run_each([script] * 8)


@pytest.mark.parametrize("leaving", ["sys.exit(0)", "os._exit(0)", "pass"])
def test_a_forked_child_ends_with_status_0_as_its_parent_does(leaving: str, make_file: Make) -> None:
    path = make_file({"w": np.arange(8, dtype=np.float32)})
    script = f"""
import max_weights
a = np.arange(8.)
b = Buffer.from_dlpack(a)
c = np.from_dlpack(b)
d = np.asarray(max_weights.load_weights({str(path)!r}).w.data())
child = os.fork()
if not child:
    e = np.from_dlpack(Buffer.from_dlpack(c))
    f = np.from_dlpack(Buffer.from_dlpack(d))
    {leaving}
else:
    assert os.waitpid(child, 0)[1] == 0
"""
    run_each([script])
