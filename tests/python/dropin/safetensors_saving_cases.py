"""Programs that save with the safetensors package, run with ours and with each version of the real one.

Run as a script it prints the results as JSON: `python safetensors_saving_cases.py FOLDER PACKAGE [SITE]`, as
`safetensors_cases` does.
"""

import json
import os
import pathlib
import sys
import warnings
from typing import Any

import numpy as np
import torch

import safetensors_saving_specs
import safetensors_saving_tensors
from safetensors_cases import modules_of, plain
from safetensors_saving_specs import spec
from safetensors_saving_tensors import BASE


def over_the_file_that_is_open(package: Any, folder: pathlib.Path) -> Any:
    """Saving over the file whose tensors are in use."""
    path = folder / "open.safetensors"
    package.torch.save_file({"a": torch.arange(5000), "b": torch.ones(3)}, path)
    with package.safe_open(path, "pt") as file:
        tensors = file.get_tensors()
        package.torch.save_file({name: tensor * 2 for name, tensor in tensors.items()}, path)
        package.torch.save_file(tensors, path)
        left = file.get_tensor("a")
    return [tensors, left, path.read_bytes()]


def nothing_stays_behind(package: Any, folder: pathlib.Path) -> Any:
    """The content of the folder after a save, and after a failed one."""
    package.torch.save_file({"a": torch.ones(3)}, folder / "x")
    for wrong in ({"a": BASE.T}, {"a": 3}):
        try:
            package.torch.save_file(wrong, folder / "x")
        except ValueError:
            continue
    return [sorted(os.listdir(folder)), (folder / "x").read_bytes()]


def arguments(package: Any, folder: pathlib.Path) -> Any:
    """The names of the arguments, and the result."""
    tensors, arrays = {"a": torch.ones(2)}, {"a": np.ones(2)}
    return [
        package.torch.save_file(tensors=tensors, filename=folder / "a", metadata={"x": "y"}),
        package.torch.save(tensors=tensors, metadata={"x": "y"}),
        package.numpy.save_file(tensor_dict=arrays, filename=folder / "b", metadata={"x": "y"}),
        package.numpy.save(tensor_dict=arrays, metadata={"x": "y"}),
        package.serialize(tensor_dict={"a": spec(package)}, metadata={"x": "y"}),
        package.serialize_file(tensor_dict={"a": spec(package)}, filename=folder / "c", metadata={"x": "y"}),
        [(folder / name).read_bytes() for name in "abc"],
    ]


CASES = safetensors_saving_specs.CASES | safetensors_saving_tensors.CASES
CASES |= {program.__name__: program for program in (over_the_file_that_is_open, nothing_stays_behind, arguments)}


def outcomes(package: Any, folder: pathlib.Path) -> dict[str, Any]:
    """The result of each program in a separate folder: its value, or {"error": kind, "text": message}."""
    found: dict[str, Any] = {"version": package.__version__}
    for number, (name, program) in enumerate(CASES.items()):
        own = folder / str(number)
        own.mkdir()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found[name] = plain(program(package, own))
        except Exception as error:
            found[name] = {"error": type(error).__name__, "text": str(error).replace(str(own), "FOLDER")}
    return found


if __name__ == "__main__":
    sys.path[:0] = sys.argv[3:]
    print(json.dumps(outcomes(modules_of(sys.argv[2]), pathlib.Path(sys.argv[1]))))
