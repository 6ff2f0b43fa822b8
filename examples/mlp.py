#!/usr/bin/env python3
"""The model of MAX's page on Module: its tree, its state dict, its graph, and what loading says when something does not
fit.

Two lines of that page are corrected here, and marked: the names of the parameters, and the product.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from max_weights import DeviceRef, DType, nn
from max_weights.graph import Graph, TensorType, Weight, ops


class Linear(nn.Module):
    """One matrix."""

    def __init__(self, in_dims: int, out_dims: int) -> None:
        super().__init__()
        # The page writes in_dim and out_dim here, which are no names.
        self.weight = Weight("weight", DType.float32, (in_dims, out_dims), DeviceRef.CPU())

    def __call__(self, x: Any) -> Any:
        """The product, inside a graph."""
        # The page writes self.weight.T, which is (out_dims, in_dims) and does not fit x.
        return x @ self.weight


class MLP(nn.Module):
    """Three matrices."""

    def __init__(self) -> None:
        self.up = Linear(5, 10)
        self.gate = Linear(5, 10)
        self.down = Linear(10, 5)

    def __call__(self, x: Any) -> Any:
        """The gated layer, inside a graph: [batch, 5] in and out."""
        return self.down(ops.silu(self.gate(x)) + self.up(x))


def main() -> None:
    """Print the model, load it, write its graph, and fail to load it."""
    model = MLP()
    print(model)
    print(model.state_dict())

    generator = np.random.default_rng(0)
    model.load_state_dict(
        {name: generator.random(w.shape.static_dims, np.float32) for name, w in model.raw_state_dict().items()}
    )
    model.summary()
    print(Graph("mlp", forward=model, input_types=[TensorType(DType.float32, ("batch", 5), DeviceRef.CPU())]))

    try:
        model.load_state_dict({"up.wieght": np.ones((5, 10), np.float32), "gate.weight": np.ones((10, 5))})
    except ValueError as error:
        print(error)


if __name__ == "__main__":
    main()
