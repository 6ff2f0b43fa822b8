"""Tensors in the memory of GPUs: on the stand-in driver of tests/fake_cuda, in their own processes; and without one."""

from pathlib import Path

import pytest

from stand_in import programs_of, run, run_promise, stand_in, without_driver

__all__ = ["stand_in"]

PROGRAM = Path(__file__).with_name("gpu_program.py")
SLOW = {"FAKE_CUDA_GBPS": "0.1"}

# Settings of the stand-in for each promise, in addition to two devices whose operations take 0.1 ms.
PROMISES: dict[str, dict[str, str]] = {
    "every_dtype_and_size_goes_there_and_back_bit_for_bit": {},
    "views_arrive_as_contiguous_tensors_and_views_of_them_come_back": {},
    "one_device_has_many_names": {},
    "a_device_that_is_not_there_is_named_with_those_that_are": {},
    "a_driver_without_devices_says_so": {"FAKE_CUDA_DEVICES": "0"},
    "what_reads_a_tensor_of_a_device_says_how_to_move_it": {},
    "too_little_memory_is_an_error_that_names_the_bytes": {"FAKE_CUDA_MEMORY": str(10 << 20)},
    "every_call_that_fails_is_an_error_that_names_it_and_nothing_is_left": {},
    "a_copy_that_fails_later_is_an_error_where_it_is_waited_for": {},
    "a_forked_child_is_refused_and_its_parent_goes_on": {},
    "a_child_may_use_what_its_parent_did_not": {},
    "ctrl_c_ends_a_copy_and_frees_what_it_had": SLOW,
    "reading_one_tensor_leaves_the_buffers_of_another_that_is_on_its_way": {"FAKE_CUDA_GBPS": "1"},
    "threads_share_the_staging_buffers": {},
    "pinned_memory_is_bounded_however_large_the_tensor": {},
    "a_consumers_stream_waits_for_the_tensor_and_nobody_else_does": {"FAKE_CUDA_DELAY": "20000"},
    "a_consumer_that_asks_for_no_order_gets_none": {"FAKE_CUDA_DELAY": "20000"},
    "a_capsule_keeps_the_memory_and_says_where_it_is": {},
    "a_consumer_of_host_memory_gets_a_copy": {},
    "a_tensor_of_another_library_is_shared_and_read": {"FAKE_CUDA_DELAY": "20000"},
    "a_library_that_lies_about_the_device_is_refused": {},
    "a_process_may_end_while_copies_go_on": {"FAKE_CUDA_DELAY": "50000"},
    "importing_and_using_the_host_loads_no_driver": {},
}
ON_A_FILE: dict[str, dict[str, str]] = {
    "a_view_of_a_file_arrives": {},
    "a_file_that_is_truncated_during_the_copy_is_an_error": SLOW,
}
DISORDERED = "a_consumer_that_asks_for_no_order_gets_none"


@pytest.mark.parametrize("promise", [*PROMISES, *ON_A_FILE])
def test_on_the_stand_in_driver(promise: str, stand_in: Path, tmp_path: Path) -> None:
    on_file = promise in ON_A_FILE
    arguments = [str(tmp_path / "values.bin")] if on_file else []
    settings = (ON_A_FILE if on_file else PROMISES)[promise]
    found = run_promise(stand_in, PROGRAM, promise, *arguments, report=tmp_path / "report.json", settings=settings)
    assert (found.get("violation_texts", []) == []) == (promise != DISORDERED), found


def test_every_program_is_run() -> None:
    assert programs_of(PROGRAM) == {*PROMISES, *ON_A_FILE}


NO_DRIVER = """
from max_weights import Buffer, DeviceError, DType
from max_weights.driver import Accelerator, accelerator_api, accelerator_count, scan_available_devices
assert (accelerator_count(), accelerator_api()) == (0, "cpu")
assert [spec.device_type for spec in scan_available_devices()] == ["cpu"]
value = Buffer.zeros([4], DType.float32)
for place in (lambda: value.to("cuda"), lambda: Buffer.zeros([4], "float32", "cuda:0"), Accelerator):
    try:
        place()
    except DeviceError as error:
        assert "gpu:0: no NVIDIA driver (libcuda.so.1) was found. Install it" in str(error), error
        assert "'cpu' (or 'cpu:0')" in str(error)
    else:
        raise AssertionError
assert value.to("cpu") is value
"""


def test_without_a_driver_errors_say_so_and_what_to_do(tmp_path: Path) -> None:
    run(without_driver(tmp_path), "-c", NO_DRIVER)
