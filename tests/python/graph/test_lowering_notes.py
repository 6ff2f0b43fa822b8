"""The notes of a model about costs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from graphs import CPU
from max_weights._quantization import quantize
from max_weights.engine import InferenceSession, Model
from max_weights.graph import Graph, TensorType, Weight, ops

X = TensorType("float32", ["n", 64], CPU)


def loaded(function: Any, memory: Any, **weights: Any) -> Model:
    return InferenceSession().load(Graph("g", function, [X]), weights_registry=weights, memory=memory)


@pytest.mark.parametrize(("memory", "when"), [("shared", "in each run"), ("fast", "when the model is loaded")])
def test_a_weight_that_is_converted(memory: str, when: str) -> None:
    narrow = Weight("a", "bfloat16", [32, 64], CPU)
    model = loaded(lambda x: x @ narrow.T, memory, a=np.ones((32, 64), ml_dtypes.bfloat16))
    assert model.cost_notes == [
        f"weight 'a' of bfloat16 is converted to float32 where matmul uses it: 8192 bytes {when}"
    ]


@pytest.mark.parametrize(("memory", "when"), [("shared", "in each run"), ("fast", "when the model is loaded")])
def test_a_weight_that_is_turned_around(memory: str, when: str) -> None:
    """In a product with `.T` it is not."""
    weight = Weight("a", "float32", [32, 64], CPU)
    model = loaded(lambda x: (x @ weight.T, ops.exp(weight.T)), memory, a=np.ones((32, 64), np.float32))
    assert model.cost_notes == [f"weight 'a' of float32 is transposed where permute uses it: 8192 bytes {when}"]


def test_weights_of_each_call() -> None:
    with Graph("g", input_types=[X]) as graph:
        (x,) = graph.inputs
        block = graph.add_subgraph(
            "block", lambda x: x @ Weight("0.w", "float16", [64, 64], CPU).T, [x.type], weight_prefix="0."
        )
        for number in range(2):
            (x,) = ops.call(block, x, prefix=f"{number}.")
        graph.output(x)
    weights = {f"{number}.w": np.ones((64, 64), np.float16) for number in range(2)}
    model = InferenceSession().load(graph, weights_registry=weights)
    assert model.cost_notes == [
        f"weight '{number}.w' of float16 is converted to float32 where matmul uses it: 16384 bytes in each run"
        for number in range(2)
    ]


def test_packed_weights() -> None:
    matrix = np.random.default_rng(0).standard_normal((32, 64), np.float32)
    blocks = quantize(matrix, "Q4_0")
    weight = Weight("a", "uint8", [32, 36], CPU, "Q4_0")
    model = loaded(lambda x: ops.qmatmul("Q4_0", None, x, weight), "shared", a=blocks)
    numbers, scales = 32 * 64 // 2, 32 * 64 // 32 * 4
    assert model.cost_notes == [
        f"weight 'a' of Q4_0 is rearranged for products of blocks when the model is loaded: {numbers + scales} bytes"
    ]
    model = loaded(lambda x: x @ ops.dequantize("Q4_0", weight).T, "shared", a=blocks)
    assert model.cost_notes == ["weight 'a' of Q4_0 is decoded to float32 when the model is loaded: 8192 bytes"]


def test_nothing_to_say() -> None:
    weight = Weight("a", "float32", [32, 64], CPU)
    assert loaded(lambda x: x @ weight.T, "shared", a=np.ones((32, 64), np.float32)).cost_notes == []
