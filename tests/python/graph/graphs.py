"""Runs a function of graph values on arrays, in both memory modes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from max_weights._dim import StaticDim
from max_weights.dtype import DType
from max_weights.engine import InferenceSession
from max_weights.graph import DeviceRef, Graph, TensorType

Array = np.ndarray[Any, Any]
CPU = DeviceRef.CPU()

INTEGERS = tuple(DType[f"{sign}int{bits}"] for sign in ("", "u") for bits in (8, 16, 32, 64))
FLOATS = (DType.float16, DType.bfloat16, DType.float32, DType.float64)

EVERY = (*INTEGERS, *FLOATS, DType.bool)
# The tolerance: one step of the narrow floats, which are computed as float32.
STEP = {DType.float16: 2**-10, DType.bfloat16: 2**-7, DType.float32: 2e-6, DType.float64: 1e-12}


def counted(*shape: int, dtype: DType = DType.float32) -> Array:
    """0, 1, 2 and so on, exact in every dtype; of bool, false and true in turn."""
    made = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    return (made % 2 if dtype is DType.bool else made).astype(dtype.to_numpy())


def recorded(function: Callable[..., Any], *arrays: Array, shapes: Sequence[Sequence[Any] | None] = ()) -> Graph:
    """The graph of a function of inputs like these arrays; entries of `shapes` that are not None replace the shapes."""
    given = [*shapes, *[None] * (len(arrays) - len(shapes))]
    types = [
        TensorType(DType.from_numpy(array.dtype), array.shape if shape is None else list(shape), CPU)
        for array, shape in zip(arrays, given, strict=True)
    ]
    return Graph("g", function, types)


def run(
    function: Callable[..., Any],
    *arrays: Any,
    shapes: Sequence[Sequence[Any] | None] = (),
    weights: dict[str, Any] | None = None,
) -> Any:
    """The result of a function for arrays, or a list of several; the modes agree, and the types are as recorded."""
    given = [np.asarray(array) for array in arrays]
    graph = recorded(function, *given, shapes=shapes)
    runs = []
    for memory in ("shared", "fast"):
        model = InferenceSession().load(graph, weights_registry=weights, memory=memory)
        results = [result.to_numpy() for result in model.execute(*given)]
        for kind, result in zip(graph.output_types, results, strict=True):
            assert kind.dtype is DType.from_numpy(result.dtype)
            assert len(kind.shape) == result.ndim
            for dim, size in zip(kind.shape, result.shape, strict=True):
                assert not isinstance(dim, StaticDim) or int(dim) == size, (kind, result.shape)
        runs.append(results)
    for shared, fast in zip(*runs, strict=True):
        close(fast, shared, 1e-6)
    return runs[0] if len(runs[0]) != 1 else runs[0][0]


def close(found: Array, requested: Any, tolerance: float = 0.0) -> None:
    """Equal shapes and dtypes; equal elements, or within a tolerance that is relative, and absolute below 1."""
    requested = np.asarray(requested)
    assert found.dtype == requested.dtype
    assert found.shape == requested.shape
    if DType.from_numpy(found.dtype).is_float():  # NumPy does not know the NaN of ml_dtypes
        found, requested = found.astype(np.float64), requested.astype(np.float64)
    if tolerance and requested.dtype.kind == "f":
        np.testing.assert_allclose(found, requested, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(found, requested)
