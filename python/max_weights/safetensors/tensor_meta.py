"""`TensorMeta`: what the header says of a tensor."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["TensorMeta"]


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """What the header of a file says of a tensor; what `get_tensor_meta` gives."""

    dtype: str
    """The dtype as safetensors spells it, such as `F32`."""
    shape: list[int] = field(hash=False)
    """The shape, slowest dimension first."""
    data_offsets: tuple[int, int]
    """The first byte and the end in the data, which begin after the header."""
