"""Five real models from the package index, and the usual work with a model: the same results patched and unpatched,
before and after the imports, in forked and spawned processes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import matrix_program
from matrix_program import DTYPES, MODELS

# Their weights are in a file of this kind.
SAFETENSORS, ARCHIVE, LEGACY = ("minilm",), ("antiberty", "iglm"), ("rxnfp", "rxnmapper")
WAYS = ["after", "fork", "spawn"]
TRUE = ["offloaded is close", "copied", "loaded again", "other one", "shared", "written and shared", "files unchanged"]
TRUE += [f"of torch.save, mmap={mmap}" for mmap in (False, True)]


def run(models: Path, how: str, **environment: str) -> dict[str, Any]:
    """The output of the program."""
    environment = {name: value for name, value in os.environ.items() if name != "MAX_WEIGHTS_PATCH"} | environment
    done = subprocess.run(
        [sys.executable, matrix_program.__file__, str(models), how],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def in_one_process(models: Path) -> dict[str, Any]:
    return run(models, "after")


@pytest.fixture(scope="module")
def stock(in_one_process: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = in_one_process["stock"]
    return found


@pytest.fixture(scope="module")
def spawned(models: Path, installed: str) -> dict[str, Any]:
    return run(models, "spawn", PYTHONPATH=installed, MAX_WEIGHTS_PATCH="1")


@pytest.fixture(scope="module", params=WAYS)
def patched(request: pytest.FixtureRequest) -> dict[str, Any]:
    ran = request.getfixturevalue("spawned" if request.param == "spawn" else "in_one_process")
    found: dict[str, Any] = ran[request.param]
    return found


@pytest.mark.parametrize("name", MODELS)
def test_unpatched_the_model_does_what_it_should(stock: dict[str, Any], name: str) -> None:
    results = stock[name]["results"]
    assert list(results) == list(map(str, DTYPES))
    assert results["None"]["state"] == results["auto"]["state"] != results["bfloat16"]["state"]
    for dtype in ("None", "bfloat16"):
        assert [check for check in TRUE if not results[dtype][check]] == []
        assert results[dtype]["written"] != results[dtype]["state"]
    assert bool(results["None"]["tied"]) == (name == "iglm")


@pytest.mark.parametrize("name", MODELS)
def test_all_that_is_done_with_the_model_has_the_same_outcome(
    stock: dict[str, Any], patched: dict[str, Any], name: str
) -> None:
    for dtype, found in patched[name]["results"].items():
        expected = stock[name]["results"][dtype]
        assert found | {"opened at two steps": 0} == expected


@pytest.mark.parametrize("name", MODELS)
def test_the_model_is_loaded_by_what_replaces_the_functions(patched: dict[str, Any], name: str) -> None:
    calls = patched[name]["calls"]
    assert {count[1] for count in calls.values()} == {0}  # the originals serve no call
    loaded = len(patched[name]["results"])
    from_disk = sum("copied" in found for found in patched[name]["results"].values())
    assert calls["safetensors.safe_open"][0] >= from_disk
    # For files of torch.save, mapped and not; for the model itself, offloaded, and again.
    saved, itself = 2 * from_disk, 2 * loaded + from_disk
    if name in SAFETENSORS:
        assert calls["torch.load"][0] == saved
    else:
        assert name in ARCHIVE + LEGACY
        assert calls["torch.load"][0] >= saved + itself


@pytest.mark.parametrize(("names", "start"), [(ARCHIVE, b"PK\x03\x04"), (LEGACY, b"\x80\x02\x8a\x0a")])
def test_both_forms_of_files_that_torch_writes_are_among_the_models(
    models: Path, names: tuple[str, ...], start: bytes
) -> None:
    for name in names:
        assert (models / "pretrained" / name / "pytorch_model.bin").read_bytes()[:4] == start


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_is_offloaded_to_the_disk_opens_its_file_by_what_replaces_safe_open(
    patched: dict[str, Any], name: str
) -> None:
    results = patched[name]["results"]["None"]
    # Twice: accelerate opens the file once for each weight, ALBERT uses its one layer twelve times.
    assert results["opened at two steps"] >= 2 * results["names"]


def test_every_name_that_the_libraries_have_bound_is_replaced(stock: dict[str, Any], patched: dict[str, Any]) -> None:
    assert len(stock["bound"]) > 8
    assert patched["bound"] == stock["bound"]
