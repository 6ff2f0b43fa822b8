"""A bounded cache of results computed from weights in files; and `release_memory`, which clears it."""

from __future__ import annotations

from typing import TypeVar

from max_weights import _core
from max_weights._fork_lock import ForkLock

__all__ = ["ContentCache", "fingerprint_cache", "release_memory"]

MAX_CACHE_BYTES = 64 << 20
"""How many bytes of results the process keeps: the fingerprints of some 40,000 weights."""
ENTRY_BYTES = 512
"""What an entry takes in addition to its texts and bytes: the objects of Python."""

_T = TypeVar("_T")


class ContentCache:
    """Results by what they were computed from, safe in threads and after a fork; the oldest are evicted first."""

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = ForkLock()
        self._entries: dict[tuple[object, ...], tuple[object, int]] = {}
        self._bytes = 0

    @property
    def nbytes(self) -> int:
        """How many bytes are kept."""
        return self._bytes

    def get(self, key: tuple[object, ...], default: _T) -> _T:
        """Return what is kept for a key."""
        with self._lock:
            value, _ = self._entries.get(key, (default, 0))
        return value  # type: ignore[return-value]

    def put(self, key: tuple[object, ...], value: object, size: int) -> None:
        """Keep a result of `size` bytes, unless it is larger than the whole cache."""
        size += ENTRY_BYTES + sum(len(part) for part in key if isinstance(part, str))
        with self._lock:
            self._drop(key)
            if size > self._max_bytes:
                return
            # A fork may have come between an entry and its count: the count alone would be wrong.
            while self._entries and self._bytes + size > self._max_bytes:
                self._drop(next(iter(self._entries)))
            self._entries[key] = value, size
            self._bytes += size

    def clear(self) -> int:
        """Clear the cache; return how many bytes it had."""
        with self._lock:
            released, self._bytes = self._bytes, 0
            self._entries.clear()
        return released

    def _drop(self, key: tuple[object, ...]) -> None:
        _, size = self._entries.pop(key, (None, 0))
        self._bytes -= size


fingerprint_cache = ContentCache()
"""Fingerprints and digests of weights."""


def release_memory() -> int:
    """Give the memory of released large tensors back to the system, and clear the cache of fingerprints.

    The memory of large results is kept for later ones, up to an eighth of the machine's memory: fresh pages are slow.

    Returns:
        The number of bytes.

    Example:
        >>> max_weights.release_memory() >= 0
        True
    """
    return _core.release_memory() + fingerprint_cache.clear()
