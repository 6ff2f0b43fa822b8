#!/usr/bin/env python3
"""A small model of modules: its tree, its state dict, and what loading says when something does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from max_weights import nn
from max_weights.dtype import DType
from max_weights.graph import DeviceRef, Weight


class Linear(nn.Module):
    """One matrix."""

    def __init__(self, in_dims: int, out_dims: int) -> None:
        super().__init__()
        self.weight = Weight("weight", DType.float32, (in_dims, out_dims), DeviceRef.CPU())

    def __call__(self, x: Any) -> Any:
        """The product, inside a graph."""
        return x @ self.weight.T


class MLP(nn.Module):
    """Three matrices; what is computed with them needs a graph."""

    def __init__(self) -> None:
        self.up = Linear(5, 10)
        self.gate = Linear(5, 10)
        self.down = Linear(10, 5)


def main() -> None:
    """Print the model, load it, and fail to load it."""
    model = MLP()
    print(model)
    print(model.state_dict())

    generator = np.random.default_rng(0)
    model.load_state_dict(
        {name: generator.random(value.shape, np.float32) for name, value in model.state_dict().items()}
    )
    model.summary()

    try:
        model.load_state_dict({"up.wieght": np.ones((5, 10), np.float32), "gate.weight": np.ones((10, 5))})
    except ValueError as error:
        print(error)


if __name__ == "__main__":
    main()
