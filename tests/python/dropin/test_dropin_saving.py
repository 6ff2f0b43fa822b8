"""Saving by `max_weights.safetensors` and by two versions of the safetensors package: the same bytes and errors."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import safetensors_saving_cases

CANDIDATE = Path(sys.prefix) / "rivals" / "safetensors-0.9.0rc1"
WITHOUT = Path(__file__).with_name("without_safetensors.py")
SITES = {"installed": None, "0.9.0rc1": CANDIDATE}

# Deliberate differences of ours.
BETTER = {"serialize[nothing but empty metadata]": "JSON, where there the header is none, which no reader takes"}
# Specific to the package: its classes, its helpers, models, and names of arguments that differ among its modules.
OF_THE_PACKAGE = ("serialize[", "torch-helpers[", "model[", "arguments")
# Python words these errors, which name the class and its arguments.
WORDED_BY_PYTHON = ("AttributeError", "TypeError")
# The system's errors for invalid file names.
WORDED_BY_RUST = ("path[empty]", "path[nul]")
# The parts of longer texts that programs match.
KEYS = (
    "You are trying to save a non contiguous tensor: `a` which is not allowed",
    "You are trying to save a non contiguous tensor: `weight` which is not allowed",
    "You are trying to save a sparse tensors: `['a', 'b']`",
    "Some tensors share memory",
    "no suitable name to keep for saving amongst: {'part'}",
    "no suitable name to keep for saving amongst: {",
    "Or use save_model(..., force_contiguous=True)",
)


def outcomes(folder: Path, package: str, site: Path | None = None, *before: Path) -> dict[str, Any]:
    """The outcomes of a package, in a separate process."""
    program = safetensors_saving_cases.__file__
    command = [sys.executable, *before, program, str(folder), package, *([str(site)] if site else [])]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return outcomes(tmp_path_factory.mktemp("ours"), "max_weights.safetensors")


@pytest.fixture(scope="module", params=SITES)
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    site = SITES[request.param]
    assert site is None or site.is_dir(), f"{site} is missing: `make test` installs it"
    found = outcomes(tmp_path_factory.mktemp("theirs"), "safetensors", site)
    assert site is None or found["version"].startswith("0.9.0")
    return found


def same_error(name: str, found: Any, expected: Any) -> bool:
    """Whether both failed in the same way: the kind, and the part of the text that programs match."""
    if not (isinstance(found, dict) and isinstance(expected, dict) and "error" in found and "error" in expected):
        return False
    if found["error"] != expected["error"]:
        return False
    if found["error"] in WORDED_BY_PYTHON:
        return True
    keys = [key for key in KEYS if key in expected["text"]]
    if keys:
        return all(key in found["text"] for key in keys)
    parts = expected["text"].partition(" at path")[0].split(": ")
    return bool(found["text"].startswith(": ".join(parts[:2] if name in WORDED_BY_RUST else parts[:3])))


@pytest.mark.parametrize("name", safetensors_saving_cases.CASES)
def test_the_outcome_is_that_of_the_package(name: str, ours: dict[str, Any], other: dict[str, Any]) -> None:
    found, expected = ours[name], other[name]
    if name in BETTER:
        assert found != expected, f"it is no longer another: {BETTER[name]}"
        assert json.loads(bytes.fromhex(found[1])[8:]) == {"__metadata__": {}}
        return
    assert found == expected or same_error(name, found, expected)


def test_without_the_package_the_same_is_saved(other: dict[str, Any], tmp_path: Path) -> None:
    found = outcomes(tmp_path, "max_weights.safetensors", None, WITHOUT)
    saved = {name: one for name, one in other.items() if not (isinstance(one, dict) and "error" in one)}
    del saved["version"]
    same = {name for name, one in saved.items() if found[name] == one}
    assert [name for name in saved if name not in same and not name.startswith(OF_THE_PACKAGE)] == []
    assert len(same) > 150
