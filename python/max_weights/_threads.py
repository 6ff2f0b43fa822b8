"""`threads=` of a verb: how many threads one call uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from max_weights._core import limit_threads

__all__ = ["threads_of_call"]


@contextmanager
def threads_of_call(threads: int | None) -> Iterator[None]:
    """Limit the threads that calls on this thread use within the block; `None` keeps the number.

    Raises:
        ArgumentError: It is below 1 (a ValueError).
    """
    if threads is None:
        yield
        return
    before = limit_threads(threads)
    try:
        yield
    finally:
        limit_threads(before)
