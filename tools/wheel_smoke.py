"""Smoke test of an installed wheel, run by `wheel_check.py`: the main paths, with only NumPy and the standard library.

python -I -W error wheel_smoke.py PROGRAM    PROGRAM is the command max-weights that was installed
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import pickle
import pkgutil
import subprocess
import sys
from pathlib import Path

import numpy

import max_weights

# Modules of a framework, or of a tool that calls this package.
OTHERS = {"torch", "jax", "safetensors", "integrations", "pytest_plugin", "__main__", "autoload"}


def import_everything() -> None:
    """Every module that needs no framework."""
    assert "site-packages" in max_weights.__file__, max_weights.__file__
    for module in pkgutil.iter_modules(max_weights.__path__):
        if module.name not in OTHERS:
            importlib.import_module(f"max_weights.{module.name}")


def save_and_load() -> None:
    """Write a file and read it in three ways."""
    first = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
    max_weights.save_file({"a.b": first, "c": numpy.ones(2, numpy.int8)}, "made.safetensors")
    weights = max_weights.load_weights("made.safetensors")
    assert numpy.array_equal(numpy.asarray(weights.a.b), first)
    assert numpy.array_equal(max_weights.numpy.load_file("made.safetensors")["a.b"], first)
    assert weights.a.b.data().astype("bfloat16").dtype == max_weights.DType.bfloat16
    assert numpy.array_equal(numpy.asarray(weights.load(dtype="float64")["a.b"]), first)
    assert numpy.array_equal(numpy.from_dlpack(weights.a.b.data().to_buffer()), first)


def validate() -> None:
    """A good file is clean, and a pickle that calls something is not; the call is never executed."""
    assert not max_weights.validate("made.safetensors").findings

    class Call:
        def __reduce__(self) -> tuple[object, ...]:
            return print, ("called",)

    Path("bad.pkl").write_bytes(pickle.dumps(Call()))
    assert max_weights.validate("bad.pkl").findings


def command_line(program: str) -> None:
    """The program that was installed, and the module."""
    version = importlib.metadata.version("max-weights")
    for command in ([program], [sys.executable, "-I", "-W", "error", "-m", "max_weights"]):
        printed = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
        assert version in printed, printed
        listed = subprocess.run([*command, "ls", "--json", "made.safetensors"], capture_output=True, check=True).stdout
        assert [weight["name"] for weight in json.loads(listed)["weights"]] == ["a.b", "c"]


if __name__ == "__main__":
    import_everything()
    save_and_load()
    validate()
    command_line(sys.argv[1])
