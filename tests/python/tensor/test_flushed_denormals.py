"""`torch.set_flush_denormal(True)` affects a thread and the threads it starts; our results do not change."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
import numpy as np
import torch
import max_weights
from max_weights.driver import Buffer
from safetensors.numpy import save_file

path = sys.argv[1]
subnormal = np.random.default_rng(0).integers(1, 1 << 23, 5 << 20, dtype=np.uint32).view(np.float32)
wide, tiny = subnormal.astype(np.float64), np.float32(1e-40)  # here, as NumPy flushes, too
save_file({"w": subnormal.reshape(-1, 1024)}, path)
weights = max_weights.load_weights(path)

def bits(tensor):
    return bytes(np.from_dlpack(tensor.view("uint8")))

def results():
    for elements in (32, subnormal.size):  # on the calling thread alone, and on all
        floats = Buffer.from_numpy(subnormal[:elements])
        for dtype in ("float64", "bfloat16", "float16"):
            yield f"{dtype} of {elements}", bits(floats.astype(dtype))
        yield f"float32 of {elements} float64", bits(Buffer.from_numpy(wide[:elements]).astype("float32"))
        yield f"Q8_0 of {elements}", bits(max_weights.quantize(floats, "Q8_0"))
        small = np.full(elements // 32 * 34, 1, np.uint8)  # the scale of each block is subnormal
        yield f"{elements} of Q8_0", bits(max_weights.dequantize(small, "Q8_0", "float32"))
        codes = Buffer.from_numpy(np.full((1, elements), 56, np.uint8)).view("float8_e4m3fn")
        scales = Buffer.from_numpy(np.full((1, -(-elements // 128)), tiny))
        yield f"{elements} scaled", bits(max_weights.scale_blocks(codes, scales, dtype="float32"))
    yield "loaded", bits(weights.load(dtype="float64")["w"])
    statistics = max_weights.stats(weights)
    for column in ("minimum", "maximum", "mean", "std", "subnormals"):
        yield column, repr(list(statistics[column])).encode()

if sys.argv[2] == "first":  # threads that live on are made by a thread that flushes
    assert torch.set_flush_denormal(True)
    flushed = dict(results())
    torch.set_flush_denormal(False)
    expected = dict(results())
else:
    expected = dict(results())
    assert torch.set_flush_denormal(True)
    flushed = dict(results())
    assert float(torch.tensor([1e-40]) * 1) == 0, "the thread is as torch set it"
different = [name for name in expected if expected[name] != flushed[name]]
assert not different, different
assert any(expected["float64 of 32"]), "subnormal numbers are kept"
"""


@pytest.mark.parametrize("level", ["", "scalar"])
@pytest.mark.parametrize("order", ["first", "later"])
def test_subnormal_numbers_are_kept_where_the_thread_flushes_them(level: str, order: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "model.safetensors"), order]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"MAX_WEIGHTS_SIMD": level})
    assert done.returncode == 0, done.stderr
