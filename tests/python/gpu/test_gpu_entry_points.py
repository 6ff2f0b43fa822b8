"""The entry points that bring tensors to a GPU: which implementation serves a call, and, in separate processes on the
stand-in driver of tests/fake_cuda, that the tensors arrive.
"""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from max_weights import _devices as devices
from max_weights._devices import torch_gpu
from max_weights.safetensors._devices import as_requested, device_of
from stand_in import keeps_promise, programs_of, stand_in

__all__ = ["stand_in"]

PROGRAM = Path(__file__).with_name("gpu_entry_points_program.py")

# Settings of the stand-in for each promise.
PROMISES: dict[str, dict[str, str]] = {
    "tensors_of_safetensors_files_arrive": {"FAKE_CUDA_DELAY": "500"},
    "parts_of_tensors_arrive": {"FAKE_CUDA_DELAY": "500"},
    "prefetched_tensors_arrive": {},
    "bare_cuda_may_be_torchs_current_device": {},
    "calls_of_a_patched_program_are_served": {},
    "torch_files_arrive": {},
    "what_the_gpu_refuses_us_is_left_to_torch": {"FAKE_CUDA_MEMORY": str(20 << 20)},
    "allocated_weights_arrive_when_they_are_used": {},
    "out_is_written_where_it_lies": {},
    "what_lies_between_two_outs_stays": {},
    "out_that_is_inflated_or_swapped_arrives_too": {},
    "out_waits_for_what_its_library_asked_before_and_is_there_on_return": {"FAKE_CUDA_DELAY": "20000"},
    "out_that_does_not_fit_is_refused_and_nothing_is_written": {},
    "a_module_on_a_gpu_is_filled_in_place": {},
    "pinned_memory_stays_bounded": {},
}


@pytest.mark.parametrize("promise", PROMISES)
def test_on_the_stand_in_driver(promise: str, stand_in: Path, tmp_path: Path, models: Path) -> None:
    keeps_promise(stand_in, PROGRAM, promise, tmp_path, models, PROMISES[promise])


def test_every_program_is_run() -> None:
    assert programs_of(PROGRAM) - {"take_the_place_of_torchs_cuda"} == set(PROMISES)


def double(*, available: bool = True, hip: str | None = None, count: int = 2, current: int = 1) -> Any:
    """A torch that reports these GPUs."""

    def device(name: Any) -> Any:
        if isinstance(name, int):
            return SimpleNamespace(type="cuda", index=name)
        kind, _, number = str(name).partition(":")
        if kind not in ("cuda", "cpu", "xpu", "meta"):
            raise RuntimeError(f"Expected one of cpu, cuda … device type at start of device string: {name}")
        return SimpleNamespace(type=kind, index=int(number) if number else None)

    cuda = SimpleNamespace(is_available=lambda: available, device_count=lambda: count, current_device=lambda: current)
    return SimpleNamespace(version=SimpleNamespace(hip=hip), cuda=cuda, device=device)


def test_calls_for_gpus_that_torch_and_the_driver_agree_on_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "accelerator_count", lambda: 2)
    torch = double()
    names = ("cuda:0", "cuda:1", 1, 0, "cuda")
    assert [torch_gpu(torch, name) for name in names] == ["cuda:0", "cuda:1", "cuda:1", "cuda:0", "cuda:1"]
    assert [torch_gpu(torch, name) for name in ("cpu", "xpu:0", "meta", "npu:0", "cuda:2", 7)] == [None] * 6
    for other in (double(available=False), double(hip="6.2"), double(count=1), double(count=3)):
        assert torch_gpu(other, "cuda:0") is None
    monkeypatch.setattr(devices, "accelerator_count", lambda: 0)
    assert torch_gpu(torch, "cuda:0") is None


def test_bare_cuda_is_the_first_device_unless_the_program_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("max_weights.safetensors._devices.current_gpu", lambda: 3)
    monkeypatch.delenv("MAX_WEIGHTS_CUDA", raising=False)
    assert (as_requested("cuda"), device_of("cuda"), device_of("cuda:5"), device_of(5)) == (
        "cuda",
        "cuda:0",
        "cuda:5",
        5,
    )
    monkeypatch.setenv("MAX_WEIGHTS_CUDA", "first")
    assert device_of("cuda") == "cuda:0"
    monkeypatch.setenv("MAX_WEIGHTS_CUDA", "current")
    assert (as_requested("cuda"), device_of("cuda"), device_of("cuda:5")) == ("cuda:3", "cuda:3", "cuda:5")
    assert (as_requested(None), device_of("xpu"), device_of("cpu")) == (None, "xpu:0", "cpu")


def test_without_cuda_the_errors_are_those_of_safetensors(models: Path) -> None:
    program = """
import sys
from safetensors.torch import load_file as theirs
from max_weights.safetensors.torch import load_file as ours

for device in ("cuda", "cuda:1", "xpu", "npu:0"):
    errors = []
    for load in (theirs, ours):
        try:
            load(sys.argv[1], device)
        except Exception as error:
            errors.append((type(error), str(error)))
    assert len(errors) == 2 and errors[0] == errors[1], errors
"""
    command = [sys.executable, "-c", program, str(models / "minilm.safetensors")]
    subprocess.run(command, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, check=True)  # independent of this machine
