"""Run a program as if the safetensors package were not installed: `python without_safetensors.py PROGRAM ARGUMENTS`."""

import importlib.machinery
import runpy
import sys
from typing import Any

find = importlib.machinery.PathFinder.find_spec


def find_others(name: str, *where: Any) -> Any:
    """The spec of every other module."""
    return None if name.partition(".")[0] == "safetensors" else find(name, *where)


importlib.machinery.PathFinder.find_spec = find_others  # type: ignore[method-assign, assignment]
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
