"""First use: every public name, and every method reachable in a new process, works as the first call of a program.

Each program is a separate process, forked from one with NumPy but without max_weights: the process of the tests has
imported everything.
"""

import inspect
import operator
import pkgutil
import re
from pathlib import Path

import numpy as np
import pytest

import max_weights
import warm as warm_processes
from conftest import ROOT

START = "import max_weights as mw, numpy as np, pickle, copy\n"
OPEN = "w = mw.load_weights('model.safetensors')\n"
# Names that need an optional library, or a GPU.
ELSEWHERE = {"max_weights._dropin", "max_weights.integrations", "max_weights._pytest_plugin", "max_weights.__main__"}


@pytest.fixture(scope="module")
def fresh() -> warm_processes.Parent:
    return warm_processes.Parent("numpy")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    max_weights.save_file(
        {"a": np.arange(6, dtype="f4").reshape(2, 3), "b.c": np.ones(4, "f4")}, tmp_path / "model.safetensors"
    )
    return tmp_path


def run(fresh: warm_processes.Parent, folder: Path, program: str) -> None:
    ended = fresh.run(START + program, folder)
    assert ended.returncode == 0, f"{program}\n{ended.stderr}"


def test_a_documented_conversion_is_the_first_thing_that_a_program_does(
    fresh: warm_processes.Parent, folder: Path
) -> None:
    run(fresh, folder, "mw.WeightData.from_numpy(np.arange(3.), 'x').astype('float16')")


@pytest.mark.parametrize("name", max_weights.__all__)
def test_every_name_of_the_package_comes_first(name: str, fresh: warm_processes.Parent, folder: Path) -> None:
    run(fresh, folder, f"mw.{name}")


def modules() -> list[str]:
    found = ["max_weights"]
    for module in pkgutil.walk_packages(max_weights.__path__, "max_weights."):
        private = any(part.startswith("_") for part in module.name.split("."))
        if not private and not any(module.name == one or module.name.startswith(f"{one}.") for one in ELSEWHERE):
            found.append(module.name)
    return found


def test_every_public_module_is_imported_first_and_has_its_names(fresh: warm_processes.Parent, folder: Path) -> None:
    assert len(modules()) > 50
    for module in modules():
        run(fresh, folder, f"import {module} as m\nfor name in getattr(m, '__all__', []): getattr(m, name)")


# One call of each public member of the main classes. `x` is an instance, made without any other call.
BUFFER = {
    "aligned": "", "astype": "('float16')", "contiguous": "()", "copy": "()", "device": "", "dtype": "",
    "element_size": "", "is_contiguous": "", "is_host": "", "is_mapped": "", "is_writable": "", "item": "()",
    "inplace_copy_from": "(x.copy())", "nbytes": "", "num_elements": "", "numpy": "()", "prefetch": "()", "rank": "",
    "shape": "", "strides": "", "to": "('cpu')", "to_numpy": "()", "view": "('uint8')", "torch": None,
    "from_dlpack": "(np.zeros(2))", "of": "(np.zeros(2))", "from_numpy": "(np.zeros(2))", "scalar": "(1, 'float32')",
    "zeros": "([2], 'float32')", "mmap": "('model.safetensors', 'uint8', [8])",
}  # fmt: skip
WEIGHT_DATA = {
    "astype": "('bfloat16')", "logical_shape": "", "nbytes": "", "ndim": "", "numpy": "()", "to_buffer": "()",
    "to_numpy": "()", "torch": None, "from_numpy": "(np.zeros(2), 'y')", "quantization_encoding": "", "refusal": "",
}  # fmt: skip
NODE = {
    "allocate": "()", "allocate_as_bytes": "()", "allocated_weights": "", "children": "()", "close": "()",
    "data": "()", "dtype": "", "exists": "()", "items": "()", "load": "(framework='numpy')", "metadata": "",
    "name": "", "numpy": "()", "save": "('o')", "shape": "", "stream": "(framework='numpy')", "torch": None,
}  # fmt: skip
BEGINNINGS = {
    "Buffer": ("x = mw.Buffer.from_numpy(np.zeros(1, 'f4'))", BUFFER),
    "WeightData": ("x = mw.WeightData.from_numpy(np.zeros(1), 'x')", WEIGHT_DATA),
    "graph.weights.SafetensorWeights": ("x = mw.graph.weights.SafetensorWeights('model.safetensors').a", NODE),
}
# Python's own protocols, for all of them.
OF_PYTHON = ("repr(x)", "str(x)", "x._repr_html_()", "np.asarray(x)", "pickle.loads(pickle.dumps(x))", "copy.copy(x)",
             "x[0:1]", "x.__dlpack__()", "x.__dlpack_device__()")  # fmt: skip


@pytest.mark.parametrize("kind", BEGINNINGS)
def test_every_method_of_a_class_comes_first(kind: str, fresh: warm_processes.Parent, folder: Path) -> None:
    begin, members = BEGINNINGS[kind]
    found = operator.attrgetter(kind)(max_weights)
    public = {name for name, _ in inspect.getmembers(found) if not name.startswith("_")}
    assert public <= set(members), f"a member without its first use here: {public - set(members)}"
    for name, call in members.items():
        if call is not None:  # those that need torch or another file are below
            run(fresh, folder, f"{begin}\nx.{name}{call}")
    for program in OF_PYTHON:
        run(fresh, folder, f"{begin}\n{program}")


FUNCTIONS = [
    "mw.DType('f16').to_numpy()", "mw.dtype.finfo(mw.DType.float16)", "mw.DeviceRef.CPU().to_device()",
    *(f"mw.{name}(mw.load_weights('model.safetensors'))" for name in
      ("fingerprint", "infos", "lazy_state_dict", "plan", "quantized", "stats")),
    "mw.graph.weights.weights_format('model.gguf')",
    "mw.quantize(np.zeros((2, 32), 'f4'), 'q4_0')", "mw.dequantize(np.zeros((2, 18), 'u1'), 'q4_0')",
    "mw.save_file({'a': np.zeros(2)}, 'out.safetensors')", "mw.save_sharded({'a': np.zeros(2)}, 'out')",
    "mw.validate('model.safetensors')", "mw.diff('model.safetensors', 'model.safetensors')", "mw.release_memory()",
    "mw.numpy.load_file('model.safetensors')",
    "import max_weights.safetensors.numpy as n; n.load_file('model.safetensors')",
    "mw.graph.Graph('g')", "mw.nn.Linear", "mw.driver.Buffer.zeros([2], 'float32')",
    "mw.sharding.ShardingStrategy.rowwise(2)", "mw.set_threads(1)",
    "with mw.driver.virtual_devices(): mw.WeightData.from_numpy(np.zeros(2), 'x').astype('float16')",
]  # fmt: skip


@pytest.mark.parametrize("program", FUNCTIONS)
def test_every_function_comes_first(program: str, fresh: warm_processes.Parent, folder: Path) -> None:
    run(fresh, folder, program)


@pytest.mark.parametrize("program", ["mw.Buffer.zeros([2], 'float32')", "mw.WeightData.from_numpy(np.zeros(2), 'x')",
                                     "mw.load_weights('model.safetensors').a"])  # fmt: skip
def test_a_torch_tensor_comes_first(program: str, warm: warm_processes.Parent, folder: Path) -> None:
    run(warm, folder, f"assert {program}.torch().dtype.is_floating_point")


def test_what_the_core_imports_is_there(fresh: warm_processes.Parent, folder: Path) -> None:
    table = (ROOT / "crates" / "python" / "src" / "package.rs").read_text()
    homes = re.findall(r'^    "(\w+)" => \{\n(.*?)^    \}', table, re.DOTALL | re.MULTILINE)
    assert len(homes) > 5
    for module, names in homes:
        needed = re.findall(r'= "(\w+)"', names)
        assert needed
        run(fresh, folder, "\n".join(f"from max_weights.{module} import {name}" for name in needed))
