"""`load(device=…, backend="cufile")`: GPUDirect Storage, on stand-ins for its library and for the driver."""

from pathlib import Path

import pytest

from stand_in import programs_of, run_promise, stand_in

__all__ = ["stand_in"]

PROGRAM = Path(__file__).with_name("gpu_cufile_program.py")
FAILS = "what_fails_is_an_error_and_leaves_nothing"
MISSING = "a_machine_without_the_library_says_what_is_missing"
CASES = [
    ("bytes_come_without_the_host", ""),
    (FAILS, "cuFileDriverOpen"),
    (FAILS, "cuFileHandleRegister"),
    (FAILS, "cuFileRead"),
    (MISSING, ""),
]


@pytest.mark.parametrize(("promise", "failing"), CASES)
def test_on_the_stand_in_libraries(promise: str, failing: str, stand_in: Path, tmp_path: Path) -> None:
    assert (stand_in / "libcufile.so").is_file(), "cargo build -p fake-cufile, as `make test` does"
    files, libraries = tmp_path / "files", stand_in
    files.mkdir()
    if promise == MISSING:
        libraries = tmp_path / "libraries"
        libraries.mkdir()
        (libraries / "libcuda.so").symlink_to(stand_in / "libcuda.so")
    settings = {"FAKE_CUFILE_REPORT": str(tmp_path / "reads"), "FAKE_CUFILE_FAIL": failing}
    report = tmp_path / "report.json"
    found = run_promise(libraries, PROGRAM, promise, str(files), report=report, settings=settings)
    assert found["violation_texts"] == []


def test_every_program_is_run() -> None:
    assert programs_of(PROGRAM) == {promise for promise, _ in CASES}
