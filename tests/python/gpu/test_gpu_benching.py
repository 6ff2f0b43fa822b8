"""`bench(device=…)` on the stand-in driver, and without a driver."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import max_weights
from max_weights import DeviceError
from max_weights.driver import accelerator_count
from max_weights.errors import ArgumentError
from refusals import refuses
from test_gpu import run, stand_in

__all__ = ["stand_in"]

PROGRAM = """
import json, sys, max_weights
result = max_weights.bench(sys.argv[1], (), device="cuda:1", seconds=100, cold=sys.argv[3] == "cold")
print(result)
with open(sys.argv[2], "w") as file:
    json.dump(result.as_dict(), file)
"""


def measured(stand_in: Path, tmp_path: Path, path: Path, cold: str = "", **settings: str) -> dict[str, Any]:
    run(stand_in, "-c", PROGRAM, str(path), str(tmp_path / "found.json"), cold, **settings)
    found: dict[str, Any] = json.loads((tmp_path / "found.json").read_text())
    return found


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("minilm.safetensors", marks=pytest.mark.nightly),
        pytest.param("smollm2-135m.Q4_1.gguf", marks=pytest.mark.nightly),
        "crepe-tiny.pth",
    ],
)
def test_a_checkpoint_is_measured_beside_its_link(stand_in: Path, tmp_path: Path, models: Path, name: str) -> None:
    found = measured(stand_in, tmp_path, models / name, FAKE_CUDA_GBPS="10")
    rows = {row["loader"]: row for row in found["rows"]}
    assert (found["device"], found["bytes"]) == ("cuda:1", (models / name).stat().st_size)
    ours, link = rows["max_weights"], rows["pinned copies"]
    assert (ours["failed"], link["failed"]) == ("", "")
    assert (len(ours["seconds"]["first"]), len(ours["seconds"]["warm"]), ours["seconds"]["cold"]) == (1, 5, [])
    assert min(link["seconds"]["warm"]) >= found["bytes"] / 10e9
    assert min(ours["seconds"]["warm"]) >= 0.9 * found["bytes"] / 10e9
    assert ours["device_peak_bytes"] >= 0.9 * found["bytes"]
    assert "To cuda:1, from the page cache: max_weights " in found["summary"]
    assert all(row["failed"] for row in found["rows"] if row["loader"].startswith("max_weights.torch"))


def test_a_cold_file_is_read_from_the_disk(stand_in: Path, tmp_path: Path, models: Path) -> None:
    path = tmp_path / "mine.safetensors"  # without other mappings
    shutil.copyfile(models / "minilm.safetensors", path)
    found = measured(stand_in, tmp_path, path, "cold")
    ours = found["rows"][0]
    assert len(ours["seconds"]["cold"]) == 5
    assert min(ours["read_bytes"]) >= 0.9 * found["bytes"]


def test_what_did_not_arrive_is_no_result(stand_in: Path, tmp_path: Path, models: Path) -> None:
    found = measured(stand_in, tmp_path, models / "minilm.safetensors", FAKE_CUDA_BYTES="0")
    assert found["rows"][0]["failed"].endswith("' differs from the file")
    assert found["rows"][0]["seconds"]["warm"] == []


@pytest.mark.skipif(accelerator_count() > 0, reason="there is a GPU")
def test_without_a_gpu_the_error_says_so(models: Path) -> None:
    path = models / "minilm.safetensors"
    with refuses(DeviceError, "device.absent"):
        max_weights.bench(path, device="cuda")
    command = [sys.executable, "-m", "max_weights", "bench", str(path), "--device", "cuda:0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("max-weights: no accelerator gpu:0: no NVIDIA driver (libcuda.so.1) was found.")


NAMED = """
import sys, max_weights
for name in ("gguf", "nobody"):
    try:
        max_weights.bench(sys.argv[1], name, device="cuda")
    except ValueError as error:
        assert str(error).startswith(f"against names {name!r}; it can name safetensors, torch, instanttensor"), error
    else:
        raise AssertionError
"""


def test_what_is_no_package_of_a_device_is_named(models: Path, stand_in: Path) -> None:
    path = models / "minilm.safetensors"
    run(stand_in, "-c", NAMED, str(path))
    with refuses(ArgumentError, "argument.choice"):
        max_weights.bench(path, "instanttensor")
