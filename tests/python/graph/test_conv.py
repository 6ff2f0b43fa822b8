"""`ops.conv2d`: shapes, known and symbolic, and error messages. Its results are tested with the layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from max_weights import DeviceRef
from max_weights.engine import InferenceSession
from max_weights.graph import Graph, TensorType, ops
from max_weights.graph.type import ConvInputLayout, FilterLayout
from refusals import refuses

CPU = DeviceRef.CPU()


def given(*shapes: list[int | str], dtype: str = "float32") -> Graph:
    return Graph("g", input_types=[TensorType(dtype, shape, CPU) for shape in shapes])


@pytest.mark.parametrize(
    ("image", "window", "options", "expected"),
    [
        ([1, 5, 6, 3], [3, 3, 3, 8], {}, "[1, 3, 4, 8]"),
        ([1, 5, 6, 3], [3, 3, 3, 8], {"stride": (2, 3), "padding": (1, 1, 0, 0)}, "[1, 3, 2, 8]"),
        ([1, 7, 7, 4], [3, 3, 2, 8], {"dilation": (2, 3), "groups": 2}, "[1, 3, 1, 8]"),
        (["b", "h", "w", 3], [3, 1, 3, 8], {"padding": (1, 1, 0, 0)}, "[b, h, w, 8]"),
        (["b", "h", "w", 3], [3, 3, 3, 8], {"stride": (2, 2)}, "[b, ((h - 3) // 2) + 1, ((w - 3) // 2) + 1, 8]"),
        ([1, 3, 5, 6], [8, 3, 3, 3], {"input_layout": "NCHW", "filter_layout": "FCRS"}, "[1, 8, 3, 4]"),
        ([1, 5, 6, 3], [8, 3, 3, 3], {"filter_layout": FilterLayout.FCRS}, "[1, 3, 4, 8]"),
        ([1, 3, 5, 6], [3, 3, 3, 8], {"input_layout": ConvInputLayout.NCHW}, "[1, 8, 3, 4]"),
        ([1, 5, 6, "c"], [3, 3, "c", "f"], {}, "[1, 3, 4, f]"),
    ],
)
def test_the_size_of_the_result_is_worked_out(image: Any, window: Any, options: Any, expected: str) -> None:
    with given(image, window) as graph:
        made = ops.conv2d(*graph.inputs, **options)
    assert f"[{', '.join(str(dim) for dim in made.shape)}]" == expected


@pytest.mark.parametrize(
    ("image", "window", "options"),
    [
        ([5, 6, 3], [3, 3, 3, 8], {}),
        ([1, 5, 6, 3], [3, 3, 4, 8], {}),
        ([1, 5, 6, 4], [3, 3, 4, 8], {"groups": 2}),
        ([1, 5, 6, "c"], [3, 3, 4, 8], {}),
        ([1, 5, 6, 4], [3, 3, 2, 7], {"groups": 2}),
        ([1, 5, 6, 3], [6, 3, 3, 8], {}),
        ([1, 5, 6, 3], [3, 3, 3, 8], {"dilation": (3, 1)}),
        ([1, 5, 6, 3], [3, 3, 3, 8], {"stride": (0, 1)}),
        ([1, 5, 6, 3], [3, 3, 3, 8], {"padding": (1, 1)}),
        ([1, 5, 6, 3], [0, 3, 3, 8], {}),
        ([1, 5, 6, 3], [3, 3, 3, 8], {"groups": 0}),
        ([1, 5, 6, 3], [3, 3, 3, 8], {"filter_layout": FilterLayout.QRSCF}),
    ],
)
def test_what_does_not_fit_is_refused(image: Any, window: Any, options: Any) -> None:
    with given(image, window) as graph, refuses(ValueError, "graph.invalid"):
        ops.conv2d(*graph.inputs, **options)


def test_integers_and_a_bias_of_another_size_are_refused() -> None:
    with given([1, 5, 6, 3], [3, 3, 3, 8], dtype="int32") as graph, refuses(ValueError, "graph.invalid"):
        ops.conv2d(*graph.inputs)
    with given([1, 5, 6, 3], [3, 3, 3, 8], [7]) as graph:
        x, window, bias = graph.inputs
        with refuses(ValueError, "graph.invalid"):
            ops.conv2d(x, window, bias=bias)


def test_a_filter_may_be_an_array() -> None:
    with given([1, 2, 2, 1]) as graph:
        graph.output(ops.conv2d(graph.inputs[0], np.ones((2, 2, 1, 1), np.float32)))
    (sums,) = InferenceSession().load(graph).execute(np.arange(4, dtype=np.float32).reshape(1, 2, 2, 1))
    assert sums.to_numpy().tolist() == [[[[6.0]]]]


def test_an_image_that_is_smaller_than_a_window_is_refused_when_it_is_run() -> None:
    with given([1, "h", 4, 1]) as graph:
        graph.output(ops.conv2d(graph.inputs[0], np.ones((3, 1, 1, 1), np.float32), padding=(1, 0, 0, 0)))
    model = InferenceSession().load(graph)
    assert model.execute(np.ones((1, 2, 4, 1), np.float32))[0].shape == (1, 1, 4, 1)
    with refuses(ValueError, "graph.invalid"):
        model.execute(np.ones((1, 1, 4, 1), np.float32))
