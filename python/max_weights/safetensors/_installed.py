"""The installed safetensors package: its error class, its version, its `safe_open` for other frameworks, its files.

It is found even if this package replaces it in `sys.modules`.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from types import ModuleType

__all__ = ["found_extension", "loaded_extension", "spec_of"]

_EXTENSION = "safetensors._safetensors_rust"


def loaded_extension() -> ModuleType | None:
    """Return the compiled part of the installed package, if the program has loaded it."""
    return sys.modules.get(_EXTENSION)


def found_extension() -> ModuleType | None:
    """Return the compiled part of the installed package; `None` if it is not installed."""
    if extension := loaded_extension():
        return extension
    ours = sys.modules.get(__name__.rpartition(".")[0])
    if sys.modules.get("safetensors") is not ours:
        try:
            return importlib.import_module(_EXTENSION)
        except ImportError:
            return None
    spec = spec_of(_EXTENSION)
    if spec is None or spec.loader is None:
        return None
    module = module_from_spec(spec)
    sys.modules[_EXTENSION] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[_EXTENSION]
        raise
    return module


def spec_of(module: str) -> ModuleSpec | None:
    """Return where a module of the installed package is; `None` if there is none."""
    package = PathFinder.find_spec("safetensors")
    if package is None or package.submodule_search_locations is None:
        return None
    return PathFinder.find_spec(module, package.submodule_search_locations)
