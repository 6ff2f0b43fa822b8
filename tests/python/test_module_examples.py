"""The examples run, and show what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from safetensors import safe_open

from conftest import ROOT


def run(name: str, *arguments: object) -> str:
    command = [sys.executable, str(ROOT / "examples" / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_mlp_prints_its_tree_its_state_dict_and_a_helpful_error() -> None:
    shown = run("mlp.py")
    assert shown.startswith("MLP  150 parameters\n")
    assert "{'up.weight': Buffer([5, 10]), 'gate.weight': Buffer([5, 10]), 'down.weight': Buffer([10, 5])}" in shown
    assert "3/3" in shown
    assert "'up.weight' (did you mean 'up.wieght'?)" in shown


def test_minilm_loads_every_weight_of_the_real_file(models: Path) -> None:
    path = models / "minilm.safetensors"
    shown = run("minilm_module.py", path)
    with safe_open(path, "np") as file:
        names = list(file.keys())
        first = file.get_tensor("encoder.layer.5.output.dense.weight")[0, :4]
    assert "0 to 5: 6 x Layer" in shown
    assert f"{len(names)} weights in " in shown
    assert f"encoder.layer.5.output.dense.weight: {first}" in shown
