"""`patch()` and saving: which functions of the safetensors package are replaced, in both versions of it, and undone."""

import json
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.flax
import safetensors.numpy
import safetensors.torch
import torch

import max_weights

CANDIDATE = Path(sys.prefix) / "rivals" / "safetensors-0.9.0rc1"
NAMES = [
    *("safetensors.serialize", "safetensors.serialize_file"),
    *("safetensors.torch.save_file", "safetensors.torch.save", "safetensors.torch.save_model"),
    *("safetensors.numpy.save_file", "safetensors.numpy.save"),
]

# Saves in every available way, and prints the served calls and the results; `SITE` comes first on the path.
PROGRAM = """
import hashlib, json, sys
from pathlib import Path
folder, how = Path(sys.argv[1]), sys.argv[2]
sys.path[:0] = sys.argv[3:]
import max_weights
if how == "before":
    max_weights.patch()
import numpy as np, torch
import safetensors, safetensors.numpy, safetensors.torch
from safetensors import TensorSpec, serialize
from safetensors.torch import save_file as saves
if how == "after":
    max_weights.patch()
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
model[1].weight = model[0].weight
with torch.no_grad():
    for parameter in model.parameters():
        parameter.fill_(2)
tensors, arrays = {"a": torch.arange(5), "b": torch.ones(2, 3)}, {"a": np.arange(5)}
memory = np.arange(6.0)
spec = TensorSpec(dtype="float64", shape=[6], data_ptr=memory.ctypes.data, data_len=48)
saves(tensors, folder / "saves", metadata={"format": "pt"})
safetensors.torch.save_file(tensors, str(folder / "torch"))
safetensors.torch.save_model(model, str(folder / "model"))
safetensors.numpy.save_file(arrays, folder / "numpy")
safetensors.serialize_file({"a": spec}, folder / "spec", {})
found = [safetensors.torch.save(tensors), safetensors.numpy.save(arrays), serialize({"a": spec})]
found += [path.read_bytes() for path in sorted(folder.iterdir())]
refused = []
for call in (
    lambda: saves({"a": torch.ones(2, 3).T}, folder / "x"),
    lambda: saves({"a": tensors["a"], "b": tensors["a"]}, folder / "x"),
    lambda: saves(tensors, folder / "no" / "x"),
    lambda: saves(tensors, folder / "x", metadata={"a": 1}),
    lambda: safetensors.numpy.save({"a": np.array(["text"])}),
    lambda: serialize({"a": 5}),
):
    try:
        call()
        refused.append("saved")
    except Exception as error:
        refused.append([type(error).__name__, str(error).strip().partition(" at path")[0][:60]])
print(json.dumps({
    "version": safetensors.__version__,
    "found": [hashlib.sha256(one).hexdigest() for one in found],
    "refused": refused,
    "calls": dict(max_weights.patched()),
}))
"""


def run(folder: Path, how: str, site: Path | None) -> dict[str, Any]:
    folder.mkdir()
    command = [sys.executable, "-c", PROGRAM, str(folder), how, *([str(site)] if site else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


@pytest.mark.parametrize("site", [None, CANDIDATE], ids=["installed", "0.9.0rc1"])
@pytest.mark.parametrize("how", ["before", "after"])
def test_every_function_that_saves_is_ours_and_has_the_outcome_that_it_has_without(
    tmp_path: Path, how: str, site: Path | None
) -> None:
    assert site is None or site.is_dir(), f"{site} is missing: `make test` installs it"
    expected, found = run(tmp_path / "without", "not", site), run(tmp_path / "with", how, site)
    assert expected["calls"] == {}
    assert found["version"] == expected["version"]
    assert found["version"].startswith("0.9" if site else "0.8")
    assert found["found"] == expected["found"]
    assert found["refused"] == expected["refused"]
    assert "saved" not in found["refused"]
    served = {name: found["calls"][name][0] for name in NAMES}
    assert served == dict(zip(NAMES, [1, 1, 2, 1, 1, 1, 1], strict=True))
    # The original handles calls that ours refuses, and its inner calls are ours again.
    assert found["calls"]["safetensors.torch.save_file"][1] == 4
    assert found["calls"]["safetensors.numpy.save"][1] == 1


@pytest.fixture
def unpatched_again() -> Iterator[None]:
    assert not max_weights.patched()
    yield
    max_weights.unpatch()


def functions() -> list[Any]:
    """The current binding of each name."""
    return [vars(sys.modules[name.rpartition(".")[0]])[name.rpartition(".")[2]] for name in NAMES]


@pytest.mark.usefixtures("unpatched_again")
def test_names_bound_before_are_replaced_wherever_they_are_and_come_back() -> None:
    originals = functions()
    module = types.ModuleType("a_program")
    vars(module).update({name.replace(".", "_"): function for name, function in zip(NAMES, originals, strict=True)})
    sys.modules["a_program"] = module
    try:
        max_weights.patch()
        replaced = functions()
        assert not {id(one) for one in replaced} & {id(one) for one in originals}
        assert [vars(module)[name.replace(".", "_")] for name in NAMES] == replaced
        assert [one.__name__ for one in replaced] == [name.rpartition(".")[2] for name in NAMES]
        assert [one.__wrapped__ for one in replaced] == originals
        max_weights.unpatch()
        assert functions() == originals
        assert [vars(module)[name.replace(".", "_")] for name in NAMES] == originals
    finally:
        del sys.modules["a_program"]


@pytest.mark.usefixtures("unpatched_again")
def test_what_still_holds_the_replacement_calls_the_original_after_unpatch(tmp_path: Path) -> None:
    max_weights.patch()
    held = [safetensors.torch.save_file, safetensors.serialize]
    max_weights.unpatch()
    held[0]({"a": torch.ones(3)}, tmp_path / "a")
    assert held[1]({}) == safetensors.serialize({})
    max_weights.patch()
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600  # so does the package
    before = max_weights.patched()["safetensors.torch.save_file"].fast
    held[0]({"a": torch.ones(3)}, tmp_path / "b")
    assert max_weights.patched()["safetensors.torch.save_file"].fast == before + 1


@pytest.mark.usefixtures("unpatched_again")
def test_arrays_of_jax_and_what_calls_the_functions_for_arrays_are_served(tmp_path: Path) -> None:
    import jax.numpy as jnp

    expected = safetensors.flax.save({"a": jnp.arange(4)})
    max_weights.patch()
    before = max_weights.patched()["safetensors.numpy.save_file"].fast
    safetensors.flax.save_file({"a": jnp.arange(4)}, tmp_path / "a")
    assert max_weights.patched()["safetensors.numpy.save_file"].fast == before + 1
    assert (tmp_path / "a").read_bytes() == expected


@pytest.mark.usefixtures("unpatched_again")
def test_a_file_is_saved_over_while_its_tensors_are_in_use(tmp_path: Path) -> None:
    path = tmp_path / "a"
    max_weights.patch()
    safetensors.torch.save_file({"a": torch.arange(1000)}, path)
    path.chmod(0o640)
    tensors = safetensors.torch.load_file(path)
    safetensors.torch.save_file({"a": tensors["a"] + 1}, path)
    safetensors.torch.save_file(tensors, path)
    assert torch.equal(tensors["a"], torch.arange(1000))
    assert torch.equal(safetensors.torch.load_file(path)["a"], torch.arange(1000))
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.usefixtures("unpatched_again")
def test_models_of_transformers_are_saved_by_ours(tmp_path: Path) -> None:
    import transformers

    sizes = {"hidden_size": 8, "intermediate_size": 8, "vocab_size": 20}
    config = transformers.BertConfig(num_attention_heads=2, num_hidden_layers=1, **sizes)
    model = transformers.BertModel(config)
    model.save_pretrained(tmp_path / "without")
    max_weights.patch()
    before = max_weights.patched()["safetensors.torch.save_file"].fast
    model.save_pretrained(tmp_path / "with")
    assert max_weights.patched()["safetensors.torch.save_file"].fast == before + 1
    found, expected = ((tmp_path / how / "model.safetensors").read_bytes() for how in ("with", "without"))
    assert found == expected
