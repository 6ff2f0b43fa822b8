"""`show_versions`: facts for a bug report about the machine and the packages, without importing them."""

from __future__ import annotations

from max_weights._core import versions

__all__ = ["show_versions"]


def show_versions() -> None:
    """Print the versions of the package, the interpreter, the platform, the processor and related packages.

    The output is meant for a bug report; it is what `max-weights versions` prints.

    Example:
        >>> max_weights.show_versions()
        max_weights ...
    """
    print(versions(), end="")
