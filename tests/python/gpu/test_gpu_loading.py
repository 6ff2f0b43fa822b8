"""`load(device=…)`: on the stand-in driver of tests/fake_cuda, in separate processes; and without a driver."""

from pathlib import Path

import pytest

from stand_in import keeps_promise, programs_of, run, stand_in, without_driver

__all__ = ["stand_in"]

PROGRAM = Path(__file__).with_name("gpu_loading_program.py")
SLOW = {"FAKE_CUDA_GBPS": "0.1"}

# Settings of the stand-in for each promise.
PROMISES: dict[str, dict[str, str]] = {
    "every_format_arrives_bit_for_bit": {},
    "every_option_gives_what_it_gives_on_the_cpu": {},
    "tensors_lie_in_one_memory_for_each_dtype": {},
    "tensors_that_share_bytes_share_them_there": {},
    "a_consumers_stream_waits_for_all_streams_of_the_load": {"FAKE_CUDA_DELAY": "50000"},
    "nothing_is_unpinned_after_a_load": {},
    "staging_keeps_to_its_bound_and_is_kept": {},
    "too_little_memory_names_the_tensor_and_the_bytes": {"FAKE_CUDA_MEMORY": str(40 << 20)},
    "every_call_that_fails_is_an_error_that_names_it": {},
    "a_copy_that_fails_later_is_an_error": {},
    "a_file_that_is_truncated_during_the_load_is_an_error": SLOW,
    "ctrl_c_ends_a_load_and_frees_what_it_had": {"FAKE_CUDA_GBPS": "1"},
    "progress_tells_and_ends": {},
    "the_bus_carries_the_small_form": {},
    "a_kernel_that_fails_is_an_error_and_one_that_cannot_be_compiled_is_not": {},
    "threads_load_to_two_devices": {},
    "a_rank_has_its_part_on_its_device": {},
    "what_is_there_is_saved_as_it_is_from_the_cpu": {},
    "what_two_ranks_have_is_read_once": {},
    "what_is_not_done_there_yet_is_refused": {},
    "rows_of_a_table_go_to_memory_of_the_device": {},
    "a_forked_child_is_refused": {},
    "a_process_may_end_while_a_load_is_copied": {"FAKE_CUDA_DELAY": "50000"},
}


@pytest.mark.parametrize("promise", PROMISES)
def test_on_the_stand_in_driver(promise: str, stand_in: Path, tmp_path: Path, models: Path) -> None:
    keeps_promise(stand_in, PROGRAM, promise, tmp_path, models, PROMISES[promise])


def test_every_program_is_run() -> None:
    assert programs_of(PROGRAM) == set(PROMISES)


NO_DRIVER = """
import sys
from max_weights import DeviceError, WeightsNode, load_weights, plan
weights = load_weights(sys.argv[1])
for call in (WeightsNode.load, plan):
    try:
        call(weights, device="cuda:0")
    except DeviceError as error:
        assert "gpu:0: no NVIDIA driver (libcuda.so.1) was found. Install it" in str(error), error
    else:
        assert call == plan
assert weights.load(device="cpu")
"""


def test_without_a_driver_the_error_says_so(tmp_path: Path, models: Path) -> None:
    run(without_driver(tmp_path), "-c", NO_DRIVER, str(models / "minilm.safetensors"))
