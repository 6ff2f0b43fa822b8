"""`Identity`: a layer that returns its argument."""

from __future__ import annotations

from typing import TypeVar

from max_weights.nn._module import Module

__all__ = ["Identity"]

_Value = TypeVar("_Value")


class Identity(Module):
    """A placeholder for a layer that a model may do without."""

    def __call__(self, x: _Value) -> _Value:
        """Return the value itself."""
        return x
