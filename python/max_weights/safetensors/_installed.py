"""The installed safetensors package: its error class, its version, its `safe_open` for other frameworks, its files.

It is found even if this package replaces it in `sys.modules`.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any

from max_weights._typing import known

__all__ = ["found_extension", "loaded_extension", "needed", "spec_of", "version"]

_EXTENSION = "safetensors._safetensors_rust"
# The version whose API is provided here, if no package gives another.
_VERSION = "0.8.0"


def loaded_extension() -> ModuleType | None:
    """Return the compiled part of the installed package, if the program has loaded it."""
    return sys.modules.get(_EXTENSION)


def found_extension() -> ModuleType | None:
    """Return the compiled part of the installed package; `None` if it is not installed."""
    if extension := loaded_extension():
        return extension
    if not _is_replaced():
        try:
            return importlib.import_module(_EXTENSION)
        except ImportError:
            return None
    spec = spec_of(_EXTENSION)
    return None if spec is None else _load(spec)


def needed(name: str) -> Any:
    """Return what the compiled part of the installed package has under this name.

    Raises:
        AttributeError: it is not installed, or too old.
    """
    try:
        return getattr(found_extension(), name)
    except AttributeError:
        raise AttributeError(f"{name} is a class of safetensors 0.8 or newer: pip install -U safetensors") from None


def version() -> str:
    """Return the version of the installed package, or else of the API that is provided here."""
    extension = found_extension()
    return str(getattr(extension, "__version__", _VERSION))


def _is_replaced() -> bool:
    """Whether `import safetensors` gives this package."""
    return sys.modules.get("safetensors") is sys.modules.get(__name__.rpartition(".")[0])


def spec_of(module: str) -> ModuleSpec | None:
    """Return where a module of the installed package is; `None` if there is none."""
    package = PathFinder.find_spec("safetensors")
    if package is None or package.submodule_search_locations is None:
        return None
    return PathFinder.find_spec(module, package.submodule_search_locations)


def _load(spec: ModuleSpec) -> ModuleType:
    module = module_from_spec(spec)
    loader = known(spec.loader)  # a file was found
    sys.modules[_EXTENSION] = module
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[_EXTENSION]
        raise
    return module
