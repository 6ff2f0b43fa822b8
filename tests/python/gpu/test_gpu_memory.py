"""Copies of tensors between GPUs, streams of their consumers, and deallocation: on the stand-in driver of
tests/fake_cuda, in separate processes.
"""

from pathlib import Path

import pytest

from stand_in import programs_of, run_promise, stand_in

__all__ = ["stand_in"]

PROGRAM = Path(__file__).with_name("gpu_memory_program.py")

# Settings of the stand-in for each promise.
PROMISES: dict[str, dict[str, str]] = {
    "from_one_gpu_to_another_tensors_go_directly": {},
    "a_tensor_may_go_while_it_is_copied_to_another_gpu": {"FAKE_CUDA_DELAY": "30000"},
    "what_the_driver_does_not_copy_goes_by_host_memory": {},
    "a_call_that_fails_on_the_way_to_another_gpu_leaves_nothing": {},
    "the_lock_of_python_is_free_while_memory_is_given_back": {"FAKE_CUDA_GBPS": "0.1"},
    "default_streams_wait_for_the_tensor": {"FAKE_CUDA_DELAY": "20000"},
    "what_dlpack_asks_is_answered_or_refused": {},
    "a_context_that_fails_when_memory_is_given_back_harms_nobody": {},
}


@pytest.mark.parametrize("promise", PROMISES)
def test_on_the_stand_in_driver(promise: str, stand_in: Path, tmp_path: Path) -> None:
    report, settings = tmp_path / "report.json", PROMISES[promise]
    found = run_promise(stand_in, PROGRAM, promise, report=report, settings=settings)
    assert found["violation_texts"] == []


def test_every_program_is_run() -> None:
    assert programs_of(PROGRAM) == set(PROMISES)
