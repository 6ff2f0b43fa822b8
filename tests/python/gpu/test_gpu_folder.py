"""tests/gpu, the tests for machines with a GPU: those without torch.cuda run here on the stand-in driver."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT
from max_weights.driver import accelerator_count
from test_gpu import run, stand_in

__all__ = ["stand_in"]

FOLDER = ROOT / "tests" / "gpu"
# Unsupported operations of devices, by their test module. Remove a name here when it is implemented.
NOT_YET: dict[str, set[str]] = {}
OTHER_REASONS = {
    "torch does not run on the stand-in driver",
    "gguf has nothing that this selects",
    "torch has nothing that this selects",
}


# gpu_*_program.py test the same on the same driver; the smallest of this folder show that it runs.
SMALL = {"test_on_gpu_entry_points", "test_on_gpu_torch"}


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(path.stem, marks=[] if path.stem in SMALL else pytest.mark.nightly)
        for path in sorted(FOLDER.glob("test_*.py"))
    ],
)
def test_on_the_stand_in_driver(module: str, stand_in: Path, tmp_path: Path) -> None:
    report, left = tmp_path / "report.json", tmp_path / "left.json"
    run(stand_in, str(FOLDER), module, "--report", str(report), FAKE_CUDA_CHECK="full", FAKE_CUDA_REPORT=str(left))
    found = json.loads(report.read_text())
    assert found["failed"] == []
    assert found["ran"] > 5 or module in {"test_on_gpu_torch", "test_on_gpu_ranks"}
    reasons = set(found["skipped"]) - OTHER_REASONS
    assert {reason.removeprefix("not yet: ").partition(" (")[0] for reason in reasons} == NOT_YET.get(module, set())
    if left.exists():
        assert json.loads(left.read_text())["violation_texts"] == []


@pytest.mark.nightly
def test_the_benches_of_a_gpu_run(stand_in: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    options = ["--gb", "0.02", "--rounds", "1", "--dir", str(tmp_path), "--results", str(results)]
    run(stand_in, str(ROOT / "benches" / "gpu"), *options, "--rivals", str(tmp_path), FAKE_CUDA_GBPS="25")
    found = {path.stem: json.loads(path.read_text()) for path in results.glob("*.json")}
    assert set(found) == {"gpu_warm", "gpu_cold", "gpu_conversions", "gpu_kernels"}
    ours = {
        (name, column["label"]): column["values"] for name, content in found.items() for column in content["columns"]
    }
    assert ours["gpu_warm", "again, warm"]["max_weights"] > 0
    assert ours["gpu_warm", "again, warm"]["pinned copies"] > 0
    assert ours["gpu_cold", "first, cold"]["direct reads, 32 x 1 MiB in flight"] > 0
    assert set(ours["gpu_conversions", "again"]) >= {"bf16 → f32", "Q4_K → bf16"}
    assert set(ours["gpu_kernels", "bfloat16 → float32"]) == {"max_weights", "device-to-device copy"}
    page = (results / "gpu.md").read_text()
    assert page.count("\n## ") == 3
    assert "Not measured: safetensors 0.8.0: RuntimeError: " in page
    assert not list(tmp_path.glob("max-weights-gpu-*"))


def test_benches_without_a_gpu_say_so() -> None:
    command = [sys.executable, str(ROOT / "benches" / "gpu")]
    done = subprocess.run([*command, "fast"], capture_output=True, text=True, check=False)
    assert "there is no part fast; there are warm, cold, conversions, kernels" in done.stderr
    if accelerator_count() == 0:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("benches/gpu: no accelerator gpu:0: no NVIDIA driver (libcuda.so.1) was found")


def test_without_a_gpu_all_is_skipped_with_the_reason(tmp_path: Path) -> None:
    for name in ("libcuda.so", "libcuda.so.1"):  # shadows an installed one, and is no library
        (tmp_path / name).write_bytes(b"nothing")
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, str(FOLDER)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no NVIDIA driver (libcuda.so.1) was found" in done.stderr
    by_pytest = [sys.executable, "-m", "pytest", "-rs", str(FOLDER)]
    done = subprocess.run(by_pytest, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " skipped" in done.stdout
    assert " passed" not in done.stdout
    assert "no NVIDIA driver (libcuda.so.1) was found" in done.stdout
