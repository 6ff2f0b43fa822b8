"""Sizes in readable form: a number of bytes, or a string such as "5GB" or "500MiB"."""

from __future__ import annotations

import math

from max_weights.errors import ArgumentError

__all__ = ["bytes_of"]

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


def bytes_of(size: int | str, option: str = "max_shard_size") -> int:
    """Parse a size, such as 5_000_000_000, 5e9 or "5GB", as a number of bytes."""
    number, unit = size, 1
    try:
        if isinstance(size, str):
            text = size.strip().upper().removesuffix("B")
            number = text.rstrip("KMGTI")
            unit = _UNITS[text[len(number) :]]
        count = float(number) * unit
    except (KeyError, OverflowError, TypeError, ValueError):
        count = math.nan
    if not 0 <= count < 1 << 63:
        raise ArgumentError(
            f'{option}={size!r}: give a number of bytes, or a string such as "5GB" or "500MiB"', rule="argument.number"
        )
    return int(count)
