"""The public names: few modules, few names, and nothing internal."""

from __future__ import annotations

import importlib
import pkgutil
import types
from collections.abc import Iterator

import pytest

import max_weights
import surface

# The paths of MAX and of the safetensors package, named by others; and graphs and models.
OTHERS = {*surface.PATHS, "graph", "nn", "engine", "safetensors"}
MODULES = 16
NAMES = 130


def modules() -> Iterator[str]:
    """The importable modules below the package, as counted by its folders."""
    for found in pkgutil.walk_packages(max_weights.__path__, "max_weights."):
        below = found.name.removeprefix("max_weights.")
        if not any(part.startswith("_") for part in below.split(".")):
            yield below


def is_counted(below: str) -> bool:
    parts = below.split(".")
    return not OTHERS & {".".join(parts[:length]) for length in range(1, len(parts) + 1)}


def test_there_are_few_public_modules() -> None:
    counted = ["", *filter(is_counted, modules())]
    assert len(counted) <= MODULES, counted


def test_there_are_few_public_names() -> None:
    counted: dict[object, str] = {}
    for below in ["", *filter(is_counted, modules())]:
        module = importlib.import_module(f"max_weights.{below}".removesuffix("."))
        for name in module.__all__:
            value = getattr(module, name)
            if not isinstance(value, types.ModuleType):
                counted.setdefault((name, value) if isinstance(value, str) else id(value), f"{below}.{name}")
    assert len(counted) <= NAMES, f"{len(counted)}: a name that comes says which one goes; {sorted(counted.values())}"


# `safetensors.torch` and the like execute the package's files, and have their names.
@pytest.mark.parametrize("below", [one for one in modules() if not one.startswith("safetensors.")])
def test_a_public_module_has_no_names_but_those_that_it_lists(below: str) -> None:
    module = importlib.import_module(f"max_weights.{below}")
    others = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert others <= set(getattr(module, "__all__", ()))
    assert all(hasattr(module, name) for name in getattr(module, "__all__", ()))


def test_the_package_lists_its_names_and_modules() -> None:
    below = {name.split(".")[0] for name in modules()} - {"run"}  # a command
    assert below <= set(max_weights.__all__) <= set(dir(max_weights))
