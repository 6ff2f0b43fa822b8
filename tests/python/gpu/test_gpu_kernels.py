"""The kernels of src/device/kernels: a GPU gives the CPU's bits. Here they run on the stand-in driver, compiled for the
host from the same source.
"""

import json
import re
from pathlib import Path

import pytest

from conftest import ROOT
from test_gpu import run, stand_in  # noqa: F401  (a fixture)

PROGRAM = Path(__file__).with_name("gpu_kernels_program.py")
PTX = ROOT / "src" / "device" / "kernels" / "kernels.ptx"

PROMISES: dict[str, dict[str, str]] = {
    "every_count_and_every_address_is_served": {"FAKE_CUDA_DELAY": "0"},
    "large_tensors_and_shapes_keep_their_place": {},
    "what_no_kernel_does_says_what_to_do": {},
    "every_type_of_scaled_blocks_gives_the_bits_of_the_cpu": {"FAKE_CUDA_DELAY": "0"},
    "blocks_of_every_shape_find_their_scales": {"FAKE_CUDA_DELAY": "0"},
    "results_are_ready_by_their_event_and_what_was_read_may_go": {"FAKE_CUDA_DELAY": "20000"},
    "a_consumer_that_asks_for_no_order_gets_none": {"FAKE_CUDA_DELAY": "20000"},
    "every_call_that_fails_is_an_error_that_says_what_to_do_and_nothing_is_left": {},
    "a_kernel_that_fails_later_is_an_error_where_it_is_waited_for": {},
    "too_little_memory_is_an_error_that_names_the_bytes": {"FAKE_CUDA_MEMORY": str(10 << 20)},
    "kernels_are_compiled_when_they_are_first_used_and_once_on_each_device": {},
}
PARTS = {"every_pair_gives_the_bits_of_the_cpu": ("0", "1", "2")}
DISORDERED = "a_consumer_that_asks_for_no_order_gets_none"


def programs(promise: str, folder: Path, tmp_path: Path, *arguments: str, **settings: str) -> None:
    """Run one, and check the report of the stand-in."""
    report = tmp_path / "report.json"
    run(folder, str(PROGRAM), promise, *arguments, FAKE_CUDA_REPORT=str(report), **settings)
    found = json.loads(report.read_text())
    assert (found.get("violation_texts", []) == []) == (promise != DISORDERED), found


@pytest.mark.parametrize("promise", PROMISES)
def test_on_the_stand_in_driver(promise: str, stand_in: Path, tmp_path: Path) -> None:  # noqa: F811
    programs(promise, stand_in, tmp_path, **PROMISES[promise])


@pytest.mark.parametrize(("promise", "part"), [(promise, part) for promise, parts in PARTS.items() for part in parts])
def test_in_parts(promise: str, part: str, stand_in: Path, tmp_path: Path) -> None:  # noqa: F811
    programs(promise, stand_in, tmp_path, part, FAKE_CUDA_DELAY="0")


def test_every_program_is_run() -> None:
    lines = PROGRAM.read_text().splitlines()
    found = {line[4 : line.index("(")] for line in lines if line.startswith("def ") and line.endswith("None:")}
    assert found - {"identical", "scaled_alike", "fails"} == {*PROMISES, *PARTS}


def test_the_kernels_are_for_old_drivers_and_do_no_arithmetic_that_the_cpu_does_not() -> None:
    text = PTX.read_text()
    page = (ROOT / "docs" / "gpu.md").read_text()
    assert text.startswith(".version 8.0\n.target sm_75\n.address_size 64\n")
    assert "PTX 8.0 for compute capability 7.5" in page
    words = set(re.findall(r"^\s*(?:@!?%p\d+ )?([a-z][\w.]*)", text, re.MULTILINE))
    assert len(words) > 50
    fused = {word for word in words if word.startswith(("fma", "mad")) and re.search(r"\.f(16|32|64)", word)}
    loose = {word for word in words if re.search(r"\.(ftz|approx|full)\b", word)}
    # Functions are not extracted with the kernel that calls them; the stand-in has no shared memory and barriers.
    absent = {word for word in words if word.startswith(("call", "bar.", "atom", "red."))}
    assert not fused | loose | absent
    assert ".func" not in text
    assert ".shared" not in text
