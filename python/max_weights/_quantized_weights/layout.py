"""How one weight is quantized, and how it is decoded: what each scheme's module returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from max_weights._core import Buffer
    from max_weights.dtype import DType

__all__ = ["Decode", "Layout"]

Decode = Callable[["DType", Any], "Buffer"]
"""Decodes to a dtype, into `out` if it is not `None`."""


@dataclass(frozen=True)
class Layout:
    """How one weight is quantized."""

    scheme: str
    bits: int
    shape: tuple[int, ...]
    """The logical shape: [out, in], of experts [experts, out, in]."""
    block: tuple[int, int]
    """Rows and columns that share a scale."""
    decode: Decode
    symmetric: bool | None = True
    """Whether there are no zero points; `None` where only their values would tell."""
    reordered: bool = False
    """Whether an index says which inputs make a group."""
