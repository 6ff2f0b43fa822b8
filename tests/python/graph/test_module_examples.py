"""MiniLM as a tree of modules loads from its real file, without a copy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

HERE = Path(__file__).parent


def run(name: str, *arguments: object) -> str:
    command = [sys.executable, str(HERE / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_minilm_loads_every_weight_of_the_real_file(models: Path) -> None:
    path = models / "minilm.safetensors"
    shown = run("minilm_module.py", path)
    with safe_open(path, "np") as file:
        names = list(file.keys())
        first = file.get_tensor("encoder.layer.5.output.dense.weight")[0, :4]
    assert "0 to 5: 6 x Layer" in shown
    assert f"{len(names)} weights in " in shown
    assert f"encoder.layer.5.output.dense.weight: {first}" in shown


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which pages of a mapping are there")
def test_minilm_is_loaded_without_reading_a_page_of_its_weights(models: Path) -> None:
    """The claim of the example: `none of them read`."""
    script = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
from minilm_module import MiniLM

def resident():
    mapped, pages = False, 0
    for line in open("/proc/self/smaps"):
        key, *values = line.split()
        if not key.endswith(":"):
            mapped = line.rstrip().endswith("minilm.safetensors")
        elif mapped and key == "Rss:":
            pages += int(values[0])
    return pages

model = MiniLM()
model.load({str(models / "minilm.safetensors")!r})
values = model.state_dict(auto_initialize=False).values()
print(all(value.is_mapped for value in values), resident())
for value in values:
    value.copy()
print(resident())"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    mapped, after_load, after_use = done.stdout.split()
    assert (mapped, after_load) == ("True", "0")
    assert int(after_use) * 1024 > 0.9 * (models / "minilm.safetensors").stat().st_size
