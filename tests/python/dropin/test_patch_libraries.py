"""Programs that load models with other libraries get the same models patched and unpatched, in every process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("patched_program.py")
LIBRARIES = ["transformers", "accelerate", "peft", "timm", "diffusers", "sentence_transformers", "gguf"]
ALL = {
    "safetensors.safe_open",
    "safetensors.torch.load",
    "safetensors.torch.load_file",
    "torch.load",
    "gguf.GGUFReader",
    "gguf.dequantize",
    "gguf.get_tensor_name_map",
    "transformers.integrations.ggml._gguf_parse_value",
    "transformers.integrations.gguf.dequant.dequantize",
}


def run(*arguments: Any, **environment: str) -> dict[str, Any]:
    """The output of the program."""
    environment = {name: value for name, value in os.environ.items() if name != "MAX_WEIGHTS_PATCH"} | environment
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def in_one_process(folder: Path) -> dict[str, Any]:
    """Saves the models, too."""
    return run(PROGRAM, folder, "after", *LIBRARIES)


@pytest.fixture(scope="module")
def expected(in_one_process: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = in_one_process["none"]
    assert found.pop("served") == []
    return found


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_library_is_among_those_that_were_tried(expected: dict[str, Any], library: str) -> None:
    assert expected[library]


def test_models_are_the_same_patched_after_the_imports(
    in_one_process: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = in_one_process["after"]
    assert set(found.pop("served")) >= ALL
    assert found == expected


def test_models_are_the_same_patched_before_the_imports_in_a_forked_process(
    folder: Path, expected: dict[str, Any]
) -> None:
    found = run(PROGRAM, folder, "fork", *LIBRARIES)
    assert set(found.pop("served")) >= ALL
    assert found == expected


def test_models_are_the_same_and_not_ours_when_unpatched(
    in_one_process: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = in_one_process["again"]
    assert found.pop("served") == []
    assert found == expected


def test_a_program_is_run_patched_and_so_are_the_processes_that_it_starts(
    folder: Path,
    expected: dict[str, Any],
    installed: str,
) -> None:
    for how in ("none", "spawn"):
        found = run("-m", "max_weights", "run", PROGRAM, folder, how, "transformers", PYTHONPATH=installed)
        assert set(found.pop("served")) >= {"safetensors.safe_open", "torch.load"}, how
        assert found == {"transformers": expected["transformers"]}
