"""The tour: the bundled file, `max-weights tour` over it, and the notebook."""

import ast
from pathlib import Path
from typing import Any

import ml_dtypes
import nbclient
import nbformat
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import make_tour_file
import max_weights
import max_weights.numpy
from conftest import ROOT
from max_weights.cli import app
from max_weights.cli.tour import FILE, STEPS

NOTEBOOK = ROOT / "examples" / "tour.ipynb"


def test_the_bundled_file_is_what_its_script_makes() -> None:
    assert FILE.read_bytes() == make_tour_file.content()
    assert FILE.stat().st_size < 20_000


def test_the_bundled_file_is_whole_aligned_and_finite() -> None:
    weights = max_weights.load_weights(FILE)
    assert weights.warnings == []
    assert all(info.aligned for info in weights.infos())
    ours, theirs = max_weights.numpy.load_file(FILE), load_file(FILE)
    assert set(ours) == set(theirs)
    for name, array in ours.items():
        assert array.tobytes() == theirs[name].contiguous().view(torch.uint8).numpy().tobytes(), name
        assert np.isfinite(array.astype(np.float32)).all(), name
    assert ours["model.embed_tokens.weight"].dtype == ml_dtypes.bfloat16
    assert ours["model.causal_mask"].tolist() == np.tri(8, dtype=bool).tolist()


@pytest.fixture(scope="module")
def shown() -> str:
    result = CliRunner().invoke(app, ["tour"], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_the_tour_shows_every_line_that_it_runs(shown: str) -> None:
    for sentence, lines in STEPS:
        assert f"# {sentence}\n" in shown
        for line in lines:
            assert f">>> {line}\n" in shown


def test_the_tour_shows_what_the_lines_really_give(shown: str) -> None:
    def after(line: str) -> list[str]:
        return shown.split(f">>> {line}\n")[1].split("\n>>> ")[0].split("\n\n# ")[0].splitlines()

    weights = max_weights.load_weights(FILE)
    original = float(np.asarray(weights.model.layers[0].self_attn.q_proj.weight)[0, 0])
    assert "\n".join(after("print(weights)")) == str(weights)
    assert ast.literal_eval(after("array.shape, array.dtype, float(array[0, 0])")[0].replace("dtype", "")) == (
        (16, 16),
        "float32",
        original,
    )
    assert after("float(numpy.asarray(query)[0, 0])") == ["42.0"]
    assert after("float(numpy.asarray(again)[0, 0])") == [repr(original)]
    (near,) = after("weights.model.layers[0].self_attn.query.weight.data()")
    assert near.startswith("WeightNotFoundError: ")
    assert "did you mean 'model.layers.0.self_attn.q_proj.weight'" in near
    (damaged,) = after("max_weights.load_weights(damaged)")
    assert damaged.startswith("FormatError: ")
    assert "100 bytes early" in damaged


def test_the_notebook_runs(tmp_path: Path) -> None:
    notebook: Any = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    outputs = {cell.id: "".join(map(str, cell.outputs)) for cell in notebook.cells if cell.cell_type == "code"}
    assert "<details" in outputs["open"]
    assert "did you mean" in outputs["near"]
    assert "100 bytes early" in outputs["damaged"]
    assert max_weights.__version__ in outputs["versions"]


def test_the_notebook_is_kept_without_outputs() -> None:
    notebook: Any = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
