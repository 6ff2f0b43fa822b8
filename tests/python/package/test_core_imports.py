"""What the compiled module knows of the package: its errors, and one table of its lazy imports."""

import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from max_weights import load_weights

BINDING = Path(__file__).resolve().parents[3] / "crates" / "python" / "src"


def test_the_core_alone_imports_nothing_of_the_package_but_its_errors() -> None:
    script = "import max_weights._core, sys; print(*sorted(name for name in sys.modules if name.startswith('max_w')))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"max_weights", "max_weights._core", "max_weights._facade", "max_weights.errors"}


def test_one_table_alone_names_the_modules_that_are_imported_later() -> None:
    sources = [path for path in BINDING.rglob("*.rs") if path.name != "package.rs"]
    assert len(sources) > 10
    for path in sources:
        text = re.sub(r"//.*|module = \"[^\"]*\"", "", path.read_text())  # a class may name its public module
        named = set(re.findall(r"max_weights\.\w+\b(?!\()", text)) - {"max_weights._core"}
        assert named <= {"max_weights.errors"}, path


def test_a_class_of_the_core_finds_what_it_needs(make_file: Callable[..., Path]) -> None:
    path = make_file({"a": np.zeros(2, "f4")})
    script = f"from max_weights._core import open_weights; print(open_weights([{str(path)!r}]).a.data())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "WeightData('a', DType.float32, [2], 8 bytes)\n"


@pytest.mark.parametrize("module", ["_buffer", "_weights", "_weight_data", "_quantization", "numpy"])
def test_one_module_alone_brings_what_its_classes_need(module: str, make_file: Callable[..., Path]) -> None:
    path = make_file({"a": np.arange(2, dtype="f4")})
    script = f"""
import max_weights.{module}, pickle, sys
from max_weights._buffer import Buffer
zeros = Buffer.zeros([2], "float32")
print(zeros.device, zeros.dtype, zeros.to_numpy(), pickle.loads(pickle.dumps(zeros)))
if {module!r} in ("_weights", "numpy"):
    from max_weights._weights import SafetensorWeights
    print(SafetensorWeights({str(path)!r}).a.data())"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.startswith("cpu:0 DType.float32 [0. 0.]")


def test_pickles_name_the_modules_that_people_import(make_file: Callable[..., Path]) -> None:
    weights = load_weights(make_file({"a": np.arange(2, dtype="f4")}))
    buffer = weights.a.data().to_buffer()
    for pickled in (weights.a, buffer, buffer.copy()):
        assert b"_core" not in pickle.dumps(pickled)
