"""Bills of materials: valid by the schema of CycloneDX, with the properties and metadata of files."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from command_line import run

CARD = """---
license: apache-2.0
language: [en, de]
datasets:
- org/data
base_model: org/base
pipeline_tag: text-generation
---
# A model
"""
CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "transformers_version": "4.50.0"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    tensors = {"a": torch.ones(8, 8), "b": torch.zeros(4, dtype=torch.bfloat16)}
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "README.md").write_text(CARD)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def bom(path: Path) -> dict[str, Any]:
    done = run("bom", path)
    assert (done.status, done.stderr) == (0, "")
    made: dict[str, Any] = json.loads(done.stdout)
    return made


def properties(component: dict[str, Any]) -> dict[str, str]:
    return {item["name"].removeprefix("max-weights:"): item["value"] for item in component["properties"]}


def test_the_document_is_valid_by_the_schema(model: Path) -> None:
    error = JsonStrictValidator(SchemaVersion.V1_7).validate_str(run("bom", model).stdout)
    assert error is None, error


def test_a_model_and_each_of_its_files_are_components(model: Path) -> None:
    made = bom(model)
    assert (made["bomFormat"], made["specVersion"], made["version"]) == ("CycloneDX", "1.7", 1)
    component = made["metadata"]["component"]
    assert (component["type"], component["name"]) == ("machine-learning-model", "tiny")
    assert component["licenses"] == [{"license": {"id": "Apache-2.0", "acknowledgement": "declared"}}]
    assert [base["name"] for base in component["pedigree"]["ancestors"]] == ["org/base"]
    parameters = component["modelCard"]["modelParameters"]
    assert parameters["modelArchitecture"] == "LlamaForCausalLM"
    assert parameters["datasets"] == [{"type": "dataset", "name": "org/data"}]
    found = properties(component["modelCard"])
    assert (found["parameters"], found["parameters:bfloat16"], found["tensors"]) == ("68", "4", "2")
    files = {file["name"]: file for file in made["components"]}
    assert set(files) == {path.name for path in model.iterdir()}
    for name, file in files.items():
        data = (model / name).read_bytes()
        assert file["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(data).hexdigest()}]
        assert properties(file)["bytes"] == str(len(data))
    assert made["dependencies"] == [{"ref": "model", "dependsOn": [f"file:{name}" for name in sorted(files)]}]


def test_the_same_files_give_the_same_document_and_no_time_is_in_it(model: Path, tmp_path: Path) -> None:
    first = run("bom", model).stdout
    for path in model.iterdir():
        path.touch()
    assert run("bom", model, "-o", tmp_path / "bom.json").status == 0
    assert (tmp_path / "bom.json").read_text() == first
    assert "timestamp" not in first
    assert "serialNumber" not in first
