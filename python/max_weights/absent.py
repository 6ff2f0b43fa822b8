"""Names of MAX that this package does not have; importing one says what to do instead."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["absent"]


def absent(module: str, **advice: str) -> Callable[[str], object]:
    """Return a `__getattr__` for a module that lacks some of MAX's names.

    Args:
        module: The module's `__name__`.
        advice: What to do instead, as a sentence, by name.

    Returns:
        A function that raises ImportError with that sentence for these names, and AttributeError for all others.
    """

    def __getattr__(name: str) -> object:
        if name in advice:
            raise ImportError(f"{module}.{name} of MAX is not in max_weights: {advice[name]}", name=module)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return __getattr__
