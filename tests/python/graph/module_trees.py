"""Small modules from which several tests build models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from max_weights.dtype import DType
from max_weights.graph import DeviceRef, Weight
from max_weights.nn import Module


class Linear(Module):
    def __init__(self, in_dims: int, out_dims: int, dtype: DType = DType.float32) -> None:
        super().__init__()
        self.weight = Weight("weight", dtype, (in_dims, out_dims), DeviceRef.CPU())

    def __call__(self, x: Any) -> Any:
        return x


class MLP(Module):
    """`super().__init__()` is omitted on purpose."""

    def __init__(self) -> None:
        self.up = Linear(5, 10)
        self.gate = Linear(5, 10)
        self.down = Linear(10, 5)

    def __call__(self, x: Any) -> Any:
        return self.down(self.up(self.gate(x)))


class Holder(Module):
    """A module of any attributes."""

    def __init__(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            setattr(self, name, value)


def weight(name: str = "weight", shape: Iterable[Any] = (2,), dtype: Any = DType.float32, **options: Any) -> Weight:
    return Weight(name, dtype, shape, DeviceRef.CPU(), **options)


def values(model: Module, start: float = 1.0) -> dict[str, np.ndarray[Any, Any]]:
    """A state dict of different arrays."""
    return {
        name: np.full(found.shape.static_dims, start + i, found.dtype.to_numpy())
        for i, (name, found) in enumerate(model.raw_state_dict().items())
    }


def state(model: Module) -> list[tuple[Any, ...]]:
    """Everything that loading may change, to compare by identity where it matters."""
    found = model.raw_state_dict().values()
    return [
        (w, w.name, id(w.value), w.dtype, tuple(map(str, w.shape)), w.quantization_encoding, w.align) for w in found
    ]
