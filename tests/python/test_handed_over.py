"""What the compiled part knows of the package: its errors, and the classes and functions that were handed to it."""

import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from max_weights import _core, load_weights

BINDING = Path(__file__).resolve().parents[2] / "crates" / "python" / "src"


def test_the_core_imports_no_module_of_the_package_but_its_errors() -> None:
    sources = list(BINDING.rglob("*.rs"))
    assert len(sources) > 10
    for path in sources:
        text = re.sub(r"//.*|module = \"[^\"]*\"", "", path.read_text())  # a class may say where people find it
        named = set(re.findall(r"max_weights\.\w+", text)) - {"max_weights._core"}
        assert named <= {"max_weights.errors"}, path


def test_what_was_not_handed_over_is_a_clear_error(make_file: Callable[..., Path]) -> None:
    path = make_file({"a": np.zeros(2, "f4")})
    script = f"from max_weights._core import open_weights; open_weights([{str(path)!r}]).a.data()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "RuntimeError: max_weights._core was not handed" in done.stderr
    assert "import them from max_weights" in done.stderr


def test_nothing_else_than_what_is_used_can_be_handed_over() -> None:
    with pytest.raises(TypeError, match="nothing here uses 'Shape'"):
        _core.hand_over(Shape=list)


@pytest.mark.parametrize("module", ["buffer", "weights", "weight_data", "quantization", "numpy"])
def test_one_module_alone_brings_what_its_classes_need(module: str, make_file: Callable[..., Path]) -> None:
    path = make_file({"a": np.arange(2, dtype="f4")})
    script = f"""
import max_weights.{module}, pickle, sys
from max_weights.buffer import Buffer
zeros = Buffer.zeros([2], "float32")
print(zeros.device, zeros.dtype, zeros.to_numpy(), pickle.loads(pickle.dumps(zeros)))
if {module!r} in ("weights", "numpy"):
    from max_weights.weights import SafetensorWeights
    print(SafetensorWeights({str(path)!r}).a.data())"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.startswith("cpu:0 DType.float32 [0. 0.]")


def test_pickles_name_the_modules_that_people_import(make_file: Callable[..., Path]) -> None:
    weights = load_weights(make_file({"a": np.arange(2, dtype="f4")}))
    buffer = weights.a.data().to_buffer()
    for pickled in (weights.a, buffer, buffer.copy()):
        assert b"_core" not in pickle.dumps(pickled)
