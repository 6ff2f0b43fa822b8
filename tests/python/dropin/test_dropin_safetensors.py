"""`max_weights.safetensors` against two versions of the safetensors package: the same programs, results and errors."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import safetensors_cases
from safetensors_files import write_files

CANDIDATE = Path(sys.prefix) / "rivals" / "safetensors-0.9.0rc1"
WITHOUT = Path(__file__).with_name("without_safetensors.py")
SITES = {"installed": None, "0.9.0rc1": CANDIDATE}

# Deliberate differences of ours.
BETTER = {
    "dtype-slice[F4]": "torch's packed elements are sliced, where there the shape does not fit",
    "load-dtype[F4]": "get_tensor has it there too",
    "load-dtype[F8_E8M0]": "get_tensor has it there too",
    "slice-np-mmap-z.last[4:2]": "an empty array, where there a SystemError comes out of the interpreter",
    "slice-np-pread-z.last[4:2]": "an empty array, where there a SystemError comes out of the interpreter",
}
# Specific to the package: models, and its helpers.
OF_THE_PACKAGE = ("load_model[", "helpers", "no_whole_tensor")
SINCE_0_9 = ("prefetch[", "meta[")
# Python words these errors, which name the class and its arguments.
WORDED_BY_PYTHON = ("AttributeError", "TypeError")


def outcomes(folder: Path, package: str, site: Path | None = None, *before: Path) -> dict[str, Any]:
    """The outcomes of a package, in a separate process: other imports change NumPy's dtypes."""
    write_files(folder)
    command = [sys.executable, *before, safetensors_cases.__file__, str(folder), package]
    command += [str(site)] if site else []
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return outcomes(tmp_path_factory.mktemp("files"), "max_weights.safetensors")


@pytest.fixture(scope="module", params=SITES)
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    site = SITES[request.param]
    assert site is None or site.is_dir(), f"{site} is missing: `make test` installs it"
    return outcomes(tmp_path_factory.mktemp("files"), "safetensors", site)


def expected_of(name: str) -> str:
    """The case with the expected outcome: for torch, slices of a file that is read equal those of a mapped one."""
    return name.replace("slice-pt-pread", "slice-pt-mmap")


def same_error(found: Any, expected: Any) -> bool:
    """Whether both failed in the same way: the kind, and the start of the text, which programs match."""
    if not (isinstance(found, dict) and isinstance(expected, dict) and "error" in found and "error" in expected):
        return False
    if found["error"] != expected["error"]:
        return False
    start = ": ".join(expected["text"].split(": ")[:2])
    if found["error"] == "FileNotFoundError":
        start = start.partition("/")[0]
    return found["error"] in WORDED_BY_PYTHON or found["text"].startswith(start)


@pytest.mark.parametrize("name", safetensors_cases.CASES)
def test_the_outcome_is_that_of_the_package(name: str, ours: dict[str, Any], other: dict[str, Any]) -> None:
    found, expected = ours[name], other[expected_of(name)]
    if name in BETTER:
        assert "error" in expected, f"it is no longer another: {BETTER[name]}"
        assert "error" not in found
        return
    if name.startswith(SINCE_0_9) and other["version"] < "0.9":
        assert expected["error"] == "AttributeError"
        return
    assert found == expected or same_error(found, expected)


def test_without_the_package_the_same_is_loaded(other: dict[str, Any], tmp_path: Path) -> None:
    found = outcomes(tmp_path, "max_weights.safetensors", None, WITHOUT)
    expected = {name: other[expected_of(name)] for name in safetensors_cases.CASES}
    loaded = {name: one for name, one in expected.items() if not (isinstance(one, dict) and "error" in one)}
    same = {name for name, one in loaded.items() if found[name] == one}
    assert [name for name in loaded if name not in same and not name.startswith(OF_THE_PACKAGE)] == []
    assert len(same) > 200
