"""`validate --write-spec` writes what `--expect` accepts, on real files of every format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from command_line import run
from conftest import safetensors_bytes


def written(path: Path, to: Path) -> dict[str, Any]:
    done = run("validate", path, "--write-spec", to, "--level", "header")
    assert (done.status, done.stderr) == (0, "")
    spec: dict[str, Any] = json.loads(to.read_text())
    assert spec["schema"] == "max-weights.expectation/1"
    return spec


REAL = ["minilm.safetensors", "smollm2-135m.Q4_1.gguf", "derived/layer0.bf16.pt", "derived/sharded", "crepe-tiny.pth"]


@pytest.mark.parametrize("name", REAL)
def test_a_checkpoint_is_what_was_written_of_it(models: Path, tmp_path: Path, name: str) -> None:
    spec = written(models / name, tmp_path / "spec.json")
    assert len(spec["tensors"]) > 10
    done = run("validate", models / name, "--expect", tmp_path / "spec.json", "--select", "MW-XP")
    assert (done.status, done.stderr) == (0, "")


def test_a_specification_has_the_shapes_and_dtypes_of_a_file(models: Path, tmp_path: Path) -> None:
    spec = written(models / "minilm.safetensors", tmp_path / "spec.json")
    arrays = safetensors.numpy.load_file(models / "minilm.safetensors")
    assert spec["tensors"] == {
        name: {"shape": list(array.shape), "dtype": array.dtype.name} for name, array in arrays.items()
    }
    assert spec["parameters"] == sum(array.size for array in arrays.values())


def test_another_checkpoint_is_not_what_was_written(models: Path, tmp_path: Path) -> None:
    written(models / "derived" / "layer0.bf16.safetensors", tmp_path / "spec.json")
    expect = ("--expect", tmp_path / "spec.json", "--select", "MW-XP", "--json")
    same = run("validate", models / "derived" / "layer0.bf16.pt", *expect)
    assert (same.status, json.loads(same.stdout)["findings"]) == (0, [])
    other = run("validate", models / "derived" / "layer0.f16.safetensors", *expect)
    findings = json.loads(other.stdout)["findings"]
    assert other.status == 3
    assert {finding["rule"] for finding in findings} == {"expectation.dtype"}
    assert len(findings) == 16


def test_tied_weights_and_names_that_are_patterns(tmp_path: Path) -> None:
    shared = torch.ones(3, 4)
    weights = {"embed": shared, "head": shared, "a*[b]?": torch.zeros(2), "größe": torch.zeros(0, 5)}
    torch.save(weights, tmp_path / "model.pt")
    spec = written(tmp_path / "model.pt", tmp_path / "spec.json")
    assert (spec["ties"], spec["parameters"]) == ([["embed", "head"]], 14)
    expect = ("--expect", tmp_path / "spec.json", "--select", "MW-XP", "--json")
    assert run("validate", tmp_path / "model.pt", *expect).status == 0
    weights["head"] = torch.zeros(3, 4)
    torch.save(weights, tmp_path / "model.pt")
    done = run("validate", tmp_path / "model.pt", *expect)
    rules = {finding["rule"] for finding in json.loads(done.stdout)["findings"]}
    assert rules == {"expectation.ties", "expectation.parameters"}


def test_a_type_that_is_not_known_is_left_open(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes({"a": ("F6_X", [4], bytes(3)), "b": ("I8", [2], b"ab")}))
    done = run("validate", path, "--write-spec", tmp_path / "spec.json", "--json")
    assert done.stderr == ""
    spec = json.loads((tmp_path / "spec.json").read_text())
    assert spec["tensors"] == {"a": {"shape": [4]}, "b": {"shape": [2], "dtype": "int8"}}
    found = run("validate", path, "--expect", tmp_path / "spec.json", "--select", "MW-XP", "--json")
    assert (found.status, json.loads(found.stdout)["findings"]) == (0, [])


def test_of_what_is_no_checkpoint_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes({"a": ("F32", [2], np.zeros(2, "float32").tobytes())})[:-1])
    spec = tmp_path / "spec.json"
    spec.write_text("{}")
    done = run("validate", path, "--write-spec", spec)
    assert done.status == 3
    assert "model.safetensors" in done.stderr
    assert spec.read_text() == "{}"
