"""Environment variables that are switches; any other value is an error that lists the valid ones."""

from __future__ import annotations

import os

__all__ = ["is_on"]

_ON = ("1", "true", "yes", "on")
_OFF = ("0", "false", "no", "off", "")


def is_on(variable: str, *, default: bool = False) -> bool:
    """Return whether an environment variable turns something on: 1, true, yes or on, in any case."""
    value = os.environ.get(variable)
    if value is None:
        return default
    word = value.strip().lower()
    if word not in _ON + _OFF:
        from max_weights.errors import ArgumentError  # torch imports this file in every program

        raise ArgumentError(
            f"{variable}={value!r} is no switch: use 1, true, yes or on, or else 0, false, no or off",
            rule="argument.choice",
        )
    return word in _ON
