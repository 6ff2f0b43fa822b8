"""`stream(device=…)`: on the stand-in driver of tests/fake_cuda, in separate processes; and without a driver."""

from pathlib import Path

import pytest

from stand_in import keeps_promise, programs_of, run, stand_in, without_driver

__all__ = ["stand_in"]

PROGRAM = Path(__file__).with_name("gpu_streaming_program.py")
SLOW = {"FAKE_CUDA_GBPS": "0.1"}

# Settings of the stand-in for each promise.
PROMISES: dict[str, dict[str, str]] = {
    "every_format_arrives_bit_for_bit": {},
    "every_option_gives_what_it_gives_on_the_cpu": {},
    "memory_is_bounded_here_and_there": {},
    "others_are_under_way_while_one_is_used": {"FAKE_CUDA_GBPS": "1"},
    "a_tensor_that_is_dropped_is_freed": {},
    "a_consumers_stream_waits_for_each_tensor": {"FAKE_CUDA_DELAY": "50000"},
    "a_break_leaves_nothing": {"FAKE_CUDA_GBPS": "1"},
    "ctrl_c_ends_a_stream_and_frees_what_it_had": {"FAKE_CUDA_GBPS": "1"},
    "too_little_memory_names_the_tensor_and_the_bytes": {"FAKE_CUDA_MEMORY": str(60 << 20)},
    "every_call_that_fails_is_an_error_that_names_it": {},
    "a_copy_that_fails_later_is_an_error": {},
    "a_file_that_is_truncated_meanwhile_is_an_error": SLOW,
    "what_is_not_done_there_is_refused": {},
    "a_forked_child_is_refused": {},
    "threads_share_a_stream": {},
    "a_process_may_end_while_a_stream_reads": {"FAKE_CUDA_DELAY": "50000"},
}


@pytest.mark.parametrize("promise", PROMISES)
def test_on_the_stand_in_driver(promise: str, stand_in: Path, tmp_path: Path, models: Path) -> None:
    keeps_promise(stand_in, PROGRAM, promise, tmp_path, models, PROMISES[promise])


def test_every_program_is_run() -> None:
    assert programs_of(PROGRAM) == set(PROMISES)


NO_DRIVER = """
import sys
from max_weights import DeviceError, load_weights
weights = load_weights(sys.argv[1])
try:
    weights.stream(device="cuda:0")
except DeviceError as error:
    assert "gpu:0: no NVIDIA driver (libcuda.so.1) was found. Install it" in str(error), error
else:
    raise AssertionError
assert dict(weights.stream(device="cpu"))
"""


def test_without_a_driver_the_error_says_so(tmp_path: Path, models: Path) -> None:
    run(without_driver(tmp_path), "-c", NO_DRIVER, str(models / "minilm.safetensors"))
