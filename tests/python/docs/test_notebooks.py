"""The notebooks of `examples/`: each runs from its first cell to its last, and is stored without outputs."""

import json
import shutil
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

import max_weights
from conftest import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
# Expected parts of some cells' outputs.
DECLARED = {
    "tour": {
        "open": "<details",
        "near": "did you mean",
        "damaged": "100 bytes early",
        "versions": max_weights.__version__,
    },
    "explore_checkpoint": {"tree": "mw-tree", "one": "values", "stats": "<svg", "check": "clean", "plan": "LoadPlan"},
    "gguf_to_transformers": {"names": "q_proj", "save": "model.safetensors", "generate": "Paris"},
    "training_checkpoint": {"tree": "gate", "objects": "200", "check": "clean", "save": "bfloat16", "diff": "changed"},
    "is_it_loaded": {
        "clean": "16 parameters and buffers were compared, 0 findings",
        "errors": "it holds '0.k.weight'",
        "fingerprint": "rows 40",
        "reload": "2 differ",
    },
    "new_weights_in_seconds": {
        "step": "8 tensors in part, 1 whole, 15 as they were",
        "open": "'2.o.bias'",
        "apply": "True",
        "wrong": "delta.base",
        "others": "000001 000001",
    },
}


# test_convert.py also converts a GGUF file to a folder for transformers.
SLOW = {"gguf_to_transformers"}


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.nightly] if path.stem in SLOW else [], id=path.stem) for path in NOTEBOOKS],
)
def test_a_notebook_runs(path: Path, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook: Any = nbformat.read(path, as_version=4)
    shutil.copy(ROOT / "examples" / "tour.safetensors", tmp_path)
    monkeypatch.setenv("MAX_WEIGHTS_MODELS", str(models))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # its output is removed with the test
    client = nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    outputs = {cell.id: json.dumps(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"}
    for cell, message in DECLARED[path.stem].items():
        assert message in outputs[cell], (cell, outputs[cell][:2000])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    notebook: Any = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


def test_a_bar_renders_in_a_kernel(models: Path) -> None:
    source = (
        f"import max_weights\nlen(max_weights.load_weights({str(models / 'minilm.safetensors')!r}).load(progress=True))"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    nbclient.NotebookClient(notebook, timeout=240).execute()
    bar, result = notebook.cells[0].outputs
    assert bar.output_type == "display_data"
    assert "90.86 of 90.86 MB" in bar.data["text/html"]
    assert bar.data["text/plain"].startswith("90.86 of 90.86 MB")
    assert result.data["text/plain"] == "104"
