"""Names of MAX that this package does not have; importing one raises an error with the alternative."""

from __future__ import annotations

import contextlib
import dis
import importlib
import sys
from collections.abc import Callable

__all__ = ["unsupported_names"]

_IMPORT_FROM = dis.opmap["IMPORT_FROM"]


def unsupported_names(module: str, **advice: str) -> Callable[[str], object]:
    """Return a `__getattr__` for a module that lacks some of MAX's names.

    Args:
        module: The module's `__name__`.
        advice: The alternative, as a sentence, by name.

    Returns:
        A function that imports a module below, and else raises AttributeError, so that `hasattr` is False; with that
        sentence for these names. For `from module import name` it is an ImportError, because Python would replace an
        AttributeError by one without the sentence, and no class can be both.
    """

    def __getattr__(name: str) -> object:
        if name not in advice:
            if not name.startswith("_") and hasattr(sys.modules[module], "__path__"):
                with contextlib.suppress(ModuleNotFoundError):
                    return importlib.import_module(f"{module}.{name}")
            raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
        sentence = f"{module}.{name} of MAX is not in max_weights: {advice[name]}"
        if _importing():
            raise ImportError(sentence, name=module)
        raise AttributeError(sentence, name=name)

    return __getattr__


def _importing() -> bool:
    """Whether the attribute of a module is requested by `from module import name`."""
    frame = sys._getframe(2)
    if frame.f_code.co_name == "__getattr__" and frame.f_back:
        frame = frame.f_back  # a package with lazy names requests it from its own __getattr__
    return frame.f_code.co_code[frame.f_lasti] == _IMPORT_FROM
