"""`show_versions`: what a bug report needs to say about the machine and the packages, without importing them."""

from __future__ import annotations

from max_weights._core import versions

__all__ = ["show_versions"]


def show_versions() -> None:
    """Print the versions of the package, the interpreter, the platform, the processor and the packages it may meet.

    To be pasted into a bug report; it is what `max-weights versions` prints.
    """
    print(versions(), end="")
