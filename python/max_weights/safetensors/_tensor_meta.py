"""`TensorMeta`: what the header says about a tensor."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["TensorMeta"]


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """What the header of a file says about a tensor; the result of `get_tensor_meta`."""

    dtype: str
    """The dtype as safetensors spells it, such as `F32`."""
    shape: list[int] = field(hash=False)
    """The shape, slowest dimension first."""
    data_offsets: tuple[int, int]
    """The first byte and the end in the data, which begins after the header."""
