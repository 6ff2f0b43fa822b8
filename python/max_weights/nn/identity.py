"""`Identity`: a layer that returns what it is called with."""

from __future__ import annotations

from typing import TypeVar

from max_weights.nn.module import Module

__all__ = ["Identity"]

_Value = TypeVar("_Value")


class Identity(Module):
    """Stands where a model has a layer that it may go without."""

    def __call__(self, x: _Value) -> _Value:
        """The value itself."""
        return x
