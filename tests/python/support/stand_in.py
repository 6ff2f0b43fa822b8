"""Run programs on the stand-in for CUDA's driver (tests/fake_cuda), each in a separate process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from children import with_support
from conftest import ROOT


@pytest.fixture(scope="session")
def stand_in() -> Path:
    """The folder of the stand-in driver, built by `cargo build -p fake-cuda`."""
    named = os.environ.get("MAX_WEIGHTS_FAKE_CUDA")
    folders = [Path(named)] if named else [ROOT / "target" / profile for profile in ("debug", "quick", "release")]
    found = [folder for folder in folders if (folder / "libcuda.so").is_file()]
    assert found, f"the stand-in driver is in none of {folders}: cargo build -p fake-cuda, as `make test` does"
    return found[0]


def run(folder: Path, *arguments: str, **settings: str) -> None:
    """Run a program with a folder in front of the library search path."""
    inherited = {name: value for name, value in with_support().items() if not name.startswith("FAKE_CUDA_")}
    environment = inherited | {"LD_LIBRARY_PATH": str(folder), "PYTHONFAULTHANDLER": "1"} | settings
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"


def run_promise(
    folder: Path, program: Path, promise: str, *arguments: str, report: Path, settings: dict[str, str]
) -> dict[str, Any]:
    """Run one function of a program; return the stand-in's report, empty if the program did not load it."""
    checked = {"FAKE_CUDA_CHECK": "full", "FAKE_CUDA_REPORT": str(report), **settings}
    run(folder, str(program), promise, *arguments, **checked)
    reported: dict[str, Any] = json.loads(report.read_text()) if report.exists() else {}
    return reported


def keeps_promise(
    folder: Path, program: Path, promise: str, tmp_path: Path, models: Path, settings: dict[str, str]
) -> None:
    """Assert that one function of a program, called with an output folder and the models' folder, succeeds, and that
    the stand-in reports no error.
    """
    files = tmp_path / "files"
    files.mkdir()
    report = tmp_path / "report.json"
    found = run_promise(folder, program, promise, str(files), str(models), report=report, settings=settings)
    assert found["violation_texts"] == []


def without_driver(folder: Path) -> Path:
    """A folder with invalid files that shadow an installed driver."""
    for name in ("libcuda.so", "libcuda.so.1"):
        (folder / name).write_bytes(b"nothing")
    return folder


def programs_of(program: Path) -> set[str]:
    """The test functions of a program: those that no other function calls, and that return nothing."""
    lines = program.read_text().splitlines()
    endings = ("() -> None:", ": Path) -> None:", "(path: str) -> None:")
    found = [line for line in lines if line.startswith("def ") and line.endswith(endings)]
    return {line[4 : line.index("(")] for line in found}
