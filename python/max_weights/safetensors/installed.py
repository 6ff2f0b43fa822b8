"""The installed safetensors package: its error class, and what saves. Found also where this package stands in its place
in `sys.modules`.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from types import ModuleType

__all__ = ["extension", "found_extension", "module", "version"]

_EXTENSION = "safetensors._safetensors_rust"
# The surface that is here, where no package says another number.
_VERSION = "0.8.0"

_modules: dict[str, ModuleType] = {}


def found_extension() -> ModuleType | None:
    """The compiled part of the installed package; None where there is none."""
    if found := sys.modules.get(_EXTENSION):
        return found
    if not _is_replaced():
        try:
            return importlib.import_module(_EXTENSION)
        except ImportError:
            return None
    spec = _spec("_safetensors_rust")
    return None if spec is None else _made(spec, _EXTENSION)


def extension(name: str) -> ModuleType:
    """The compiled part of the installed package, for this name of it.

    Raises:
        ImportError: the package is not installed.
    """
    found = found_extension()
    if found is None:
        raise _missing(name)
    return found


def module(name: str, wanted: str) -> ModuleType:
    """A module of the installed package, such as `torch`, for this name in it.

    Raises:
        ImportError: the package is not installed.
    """
    if not _is_replaced():
        try:
            return importlib.import_module(f"safetensors.{name}")
        except ModuleNotFoundError as error:
            raise (_missing(f"{name}.{wanted}") if error.name == "safetensors" else error) from None
    if name not in _modules:
        spec = _spec(name)
        if spec is None:
            raise _missing(f"{name}.{wanted}")
        _modules[name] = _made(spec, f"{__name__}_{name}")
    return _modules[name]


def version() -> str:
    """The version of the installed package, or else that of the surface that is here."""
    found = found_extension()
    return str(getattr(found, "__version__", _VERSION))


def _is_replaced() -> bool:
    """Whether `import safetensors` gives this package."""
    return sys.modules.get("safetensors") is sys.modules.get(__name__.rpartition(".")[0])


def _spec(name: str) -> ModuleSpec | None:
    package = PathFinder.find_spec("safetensors")
    if package is None or package.submodule_search_locations is None:
        return None
    return PathFinder.find_spec(f"safetensors.{name}", package.submodule_search_locations)


def _made(spec: ModuleSpec, name: str) -> ModuleType:
    made = module_from_spec(spec)
    assert spec.loader is not None  # a file was found
    sys.modules[name] = made
    try:
        spec.loader.exec_module(made)
    except BaseException:
        del sys.modules[name]
        raise
    return made


def _missing(name: str) -> ImportError:
    return ImportError(
        f"safetensors.{name} saves, which max_weights leaves to the safetensors package; it is not installed: "
        "pip install safetensors",
        name="safetensors",
    )
