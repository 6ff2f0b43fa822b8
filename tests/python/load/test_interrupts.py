"""Ctrl-C: every long call ends within 100 ms at any time, and leaves no partial results."""

import subprocess
import sys
from pathlib import Path

import pytest

# The promise is 100 ms on an idle machine; the time of other programs does not count. The median of several attempts is
# compared.
PROMISED = 0.1
ATTEMPTS = 5

PRELUDE = """
import json, os, random, signal, statistics, struct, sys, threading, time
from pathlib import Path
import numpy as np
import max_weights
from max_weights.driver import Buffer

folder = Path(sys.argv[1])

def sparse(rows, columns, dtype="F32", item=4, name="large.safetensors"):
    size = rows * columns * item
    header = json.dumps({"w": {"dtype": dtype, "shape": [rows, columns], "data_offsets": [0, size]}}).encode()
    header += b" " * (-len(header) % 8)
    with open(folder / name, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)
    return folder / name

def kept_waiting():
    "Seconds for which each thread could have run, and other programs had the cores."
    found = {}
    for task in Path("/proc/self/task").glob("*/schedstat"):
        try:
            found[task] = int(task.read_text().split()[1]) / 1e9
        except OSError:  # the thread has ended
            continue
    return found

def waits(call):
    "Seconds from Ctrl-C, at random moments of the call, to its answer, without those that other programs took."
    # Fresh memory for each, as a program has that makes its first tensor: it costs most of the time.
    started = time.perf_counter()
    kept = call()
    whole = time.perf_counter() - started
    del kept
    max_weights.release_memory()
    found = []
    for _ in range(100):
        if len(found) == ATTEMPTS:
            break
        sent = []
        def press():
            sent.append((time.perf_counter(), kept_waiting()))
            os.kill(os.getpid(), signal.SIGINT)
        timer = threading.Timer(random.uniform(0, 0.5 * whole), press)
        try:
            timer.start()
            kept = call()
            del kept
            timer.join()  # it was done before
            time.sleep(0.01)
        except KeyboardInterrupt:
            then, before = sent[0]
            took = time.perf_counter() - then
            others = (waited - before.get(task, 0) for task, waited in kept_waiting().items())
            found.append(took - max(others, default=0))
        timer.join()
        max_weights.release_memory()
    assert len(found) == ATTEMPTS, f"{len(found)} answers; the call takes {whole:.3f} s"
    print(statistics.median(found), max(found))
"""

CALLS = {
    "copy of a mapping": """
buffer = max_weights.load_weights(sparse(8192, 16384)).w.data().data
call = buffer.copy
""",
    "copy in memory": """
buffer = Buffer.from_numpy(np.ones((8192, 16384), np.float32))
call = buffer.copy
""",
    "contiguous of a transposed view": """
buffer = Buffer.from_numpy(np.ones((8192, 12288), np.float32).T)
call = buffer.contiguous
""",
    "astype of a transposed view": """
buffer = Buffer.from_numpy(np.ones((8192, 12288), np.float32).T)
call = lambda: buffer.astype("float16")
""",
    "astype of a reversed view of a mapping": """
buffer = max_weights.load_weights(sparse(8192, 16384)).w.data().data[::-1, ::-1]
call = lambda: buffer.astype("bfloat16")
""",
    "columns of a mapping that lie far apart": """
buffer = max_weights.load_weights(sparse(1 << 17, 1024)).w.data().data[:, ::700]
call = buffer.copy
""",
    "astype": """
buffer = Buffer.from_numpy(np.ones(64 << 20, np.float32))
call = lambda: buffer.astype("float8_e8m0fnu")
""",
    "quantize": """
buffer = Buffer.from_numpy(np.ones((8192, 16384), np.float32))
call = lambda: max_weights.quantize(buffer, "Q5_1")
""",
    "dequantize": """
blocks = Buffer.from_numpy(np.zeros((8192, 110 * 96), np.uint8))
call = lambda: max_weights.dequantize(blocks, "IQ3_S")
""",
    "scale_blocks": """
data = Buffer.from_numpy(np.ones((16384, 12288), np.uint8)).view("float8_e4m3fn")
scales = Buffer.from_numpy(np.ones((128, 96), np.float32))
call = lambda: max_weights.scale_blocks(data, scales)
""",
    "reading a tensor": """
path = sparse(8192, 16384)
call = lambda: max_weights.load_weights(path, backend="read").w.data()
""",
    "opening a header of many tensors": """
names = (f'"model.layers.{i}.weight":{{"dtype":"U8","shape":[1],"data_offsets":[{i},{i + 1}]}}' for i in range(600_000))
header = ("{" + ",".join(names) + "}").encode()
with open(folder / "many.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(header)) + header + bytes(600_000))
call = lambda: max_weights.load_weights(folder / "many.safetensors")
""",
    "opening a pickle of many values": """
import pickle, zipfile
with zipfile.ZipFile(folder / "many.pt", "w") as archive:
    values = {f"optimizer.state.{i}": [float(i), i, str(i)] for i in range(300_000)}
    archive.writestr("archive/data.pkl", pickle.dumps(values, 2))
    archive.writestr("archive/version", "3")
call = lambda: max_weights.load_weights(folder / "many.pt")
""",
    "inflating a storage": """
import zipfile, torch
torch.save({"w": torch.arange(20 << 20, dtype=torch.int32)}, folder / "stored.pt")
with zipfile.ZipFile(folder / "stored.pt") as stored, zipfile.ZipFile(folder / "deflated.pt", "w") as deflated:
    for name in stored.namelist():
        deflated.writestr(name, stored.read(name), zipfile.ZIP_DEFLATED, 1)
call = lambda: max_weights.load_weights(folder / "deflated.pt").w.data()
""",
}


@pytest.mark.parametrize("name", CALLS)
def test_ctrl_c_is_answered_within_100_ms(tmp_path: Path, name: str) -> None:
    script = f"ATTEMPTS = {ATTEMPTS}\n{PRELUDE}\n{CALLS[name]}\nwaits(call)\n"
    run = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    median, _ = map(float, run.stdout.split())
    assert median < PROMISED, run.stdout
