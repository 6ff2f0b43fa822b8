"""Packages whose names are imported when they are first used."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["facade"]


def facade(
    module: str, names: Mapping[str, str], otherwise: Callable[[str], object]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package whose names are imported when they are first used.

    So `import max_weights` costs almost nothing. `names` lists them by their module; `otherwise` is called for others.
    """
    homes = {name: f"max_weights.{home}" if home else "" for home, there in names.items() for name in there.split()}
    found = vars(sys.modules[module])

    def __getattr__(name: str) -> object:
        if name not in homes:
            return otherwise(name)
        home = homes[name] or f"{module}.{name}"
        try:
            __import__(home)
        except ModuleNotFoundError as error:  # `hasattr` expects an AttributeError
            raise AttributeError(f"module {module!r} has {name!r} only with its library: {error}") from error
        value: object = getattr(sys.modules[home], name) if homes[name] else sys.modules[home]
        return found.setdefault(name, value)  # found directly from now on

    def __dir__() -> list[str]:
        return sorted({*homes, *found})

    return __getattr__, __dir__
