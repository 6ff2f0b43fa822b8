"""Packed blocks decoded on a device: on the stand-in driver of tests/fake_cuda, in separate processes."""

import json
from pathlib import Path

import pytest

from max_weights.graph.quantization import QuantizationEncoding
from test_gpu import run, stand_in

__all__ = ["stand_in"]

PROGRAM = Path(__file__).with_name("gpu_dequantize_program.py")

ENCODINGS = [encoding.value for encoding in QuantizationEncoding if encoding.is_gguf]

# Settings of the stand-in for each promise.
PROMISES: dict[str, dict[str, str]] = {
    "rows_decode_without_the_rest": {},
    "what_cannot_be_decoded_is_refused_as_on_the_cpu": {},
    "every_call_that_fails_is_an_error_that_names_it": {},
    "a_kernel_that_fails_while_it_runs_is_an_error": {},
    "too_little_memory_names_the_bytes": {"FAKE_CUDA_MEMORY": str(10 << 20)},
    "a_consumers_stream_waits_for_the_elements": {"FAKE_CUDA_DELAY": "20000"},
    "the_blocks_may_go_while_they_are_decoded": {"FAKE_CUDA_DELAY": "20000"},
    "threads_decode_on_two_devices": {},
    "no_blocks_have_no_elements": {},
}
ON_FILES = "weights_of_files_decode_there"


@pytest.mark.parametrize("promise", [*ENCODINGS, ON_FILES, *PROMISES])
def test_on_the_stand_in_driver(promise: str, stand_in: Path, tmp_path: Path, models: Path) -> None:
    report, folders = tmp_path / "report.json", [str(tmp_path), str(models)] if promise == ON_FILES else []
    settings = {"FAKE_CUDA_CHECK": "full", **PROMISES.get(promise, {})}
    run(stand_in, str(PROGRAM), promise, *folders, FAKE_CUDA_REPORT=str(report), **settings)
    assert json.loads(report.read_text())["violation_texts"] == []


def test_every_program_is_run() -> None:
    lines = PROGRAM.read_text().splitlines()
    programs = {line[4 : line.index("(")] for line in lines if line.startswith("def ") and line.endswith("() -> None:")}
    assert programs == set(PROMISES)
