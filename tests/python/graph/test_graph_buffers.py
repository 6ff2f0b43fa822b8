"""Mutable memory: inputs of type BufferType, of graphs, subgraphs and modules."""

import numpy as np
import pytest
import torch

from max_weights import Buffer
from max_weights.dtype import DType
from max_weights.engine import InferenceSession
from max_weights.graph import BufferType, BufferValue, Graph, GraphError, TensorType, TensorValue, Weight, ops
from max_weights.nn import Module
from refusals import refuses

CACHE = BufferType("float32", [4, 3], "cpu")
ROW = TensorType("float32", [3], "cpu")


def test_a_buffer_is_described_and_loaded() -> None:
    with Graph("g", input_types=[CACHE, ROW]) as graph:
        cache, row = graph.inputs[0].buffer, graph.inputs[1]
        assert isinstance(cache, BufferValue)
        assert (cache.dtype, list(cache.shape), cache.rank, cache.device.is_cpu()) == (DType.float32, [4, 3], 2, True)
        assert cache.type == CACHE == graph.input_types[0]
        assert repr(cache) == "BufferValue(dtype=float32, shape=[Dim(4), Dim(3)], device=cpu:0)"
        total = cache[...] + row
        assert isinstance(total, TensorValue)
        graph.output(total, cache[1], ops.buffer_load(cache))
    assert list(graph.stored) == []
    held = np.arange(12, dtype="f4").reshape(4, 3)
    results = InferenceSession().load(graph).execute(held, np.ones(3, "f4"))
    assert [result.to_numpy().tolist() for result in results] == [(held + 1).tolist(), held[1].tolist(), held.tolist()]


@pytest.mark.parametrize("make", [Buffer.from_numpy, np.asarray, "torch"])
def test_what_is_stored_is_in_the_memory_afterwards(make: object) -> None:
    with Graph("g", input_types=[CACHE, ROW]) as graph:
        cache, row = graph.inputs[0].buffer, graph.inputs[1]
        before = cache[...]
        cache[2] = row
        cache[0, 1:] = 7.0
        between = cache[...]
        ops.buffer_store(cache, cache[...] * 2)
        cache[3, ...] = np.array([1, 2, 3], "f4")
        graph.output(before, between)
    assert list(graph.stored) == [0]
    held = np.arange(12, dtype="f4").reshape(4, 3)
    expected = held.copy()
    if make == "torch":
        memory = torch.from_numpy(held.copy())
    else:
        assert callable(make)
        memory = make(held.copy())
    before_, between_ = InferenceSession().load(graph).execute(memory, np.full(3, 5, "f4"))
    assert (before_.to_numpy() == held).all()
    expected[2], expected[0, 1:] = 5, 7
    assert (between_.to_numpy() == expected).all()
    expected *= 2
    expected[3] = [1, 2, 3]
    assert (np.from_dlpack(memory) == expected).all()


def test_a_subgraph_stores_in_the_buffer_of_its_caller() -> None:
    with Graph("g", input_types=[CACHE, CACHE, ROW]) as graph:
        first, second, row = graph.inputs[0].buffer, graph.inputs[1].buffer, graph.inputs[2]

        def append(cache: BufferValue, position: TensorValue) -> TensorValue:
            cache[1] = position
            return cache[...] * 2

        write = graph.add_subgraph("write", append, [CACHE, ROW])
        (a,) = ops.call(write, first, row)
        (b,) = ops.call(write, second, row + 1)
        (c,) = ops.call(write, second, first[1] * 10)
        graph.output(a, b, c)
    memory = [np.zeros((4, 3), "f4"), np.ones((4, 3), "f4")]
    a_, b_, c_ = InferenceSession().load(graph).execute(*memory, np.full(3, 4, "f4"))
    assert memory[0][:, 0].tolist() == [0, 4, 0, 0]
    assert memory[1][:, 0].tolist() == [1, 40, 1, 1]
    assert a_.to_numpy()[1, 0] == 8
    assert b_.to_numpy()[1, 0] == 10
    assert c_.to_numpy()[1, 0] == 80


class Cached(Module):
    """Adds a weight to rows, and stores the last in a cache, as layers with KV caches do."""

    def __init__(self) -> None:
        self.scale = Weight("scale", "float32", [3], "cpu")

    def __call__(self, x: TensorValue, caches: list[BufferValue]) -> TensorValue:
        keys, values = caches
        keys[0] = x * self.scale
        values[3] = x
        return keys[0] + values[3]


def test_modules_with_caches_become_subgraphs() -> None:
    layer = Cached()
    layer.load_state_dict({"scale": np.array([1, 2, 3], "f4")})
    with Graph("g", input_types=[ROW, CACHE, CACHE]) as graph:
        x, keys, values = graph.inputs[0], graph.inputs[1].buffer, graph.inputs[2].buffer
        called = layer.build_subgraph("layer", [x.type, [keys.type, values.type]])
        assert called.input_types == [ROW, CACHE, CACHE]
        same = layer.build_subgraph("again", [x, [keys, values]])
        (once,) = ops.call(called, x, [keys, values])
        (twice,) = ops.call(same, once, [keys, values])
        graph.output(twice)

    memory = [np.zeros((4, 3), "f4"), np.zeros((4, 3), "f4")]
    weights = {"scale": np.array([1, 2, 3], "f4")}
    (result,) = InferenceSession().load(graph, weights_registry=weights).execute(np.ones(3, "f4"), *memory)
    once_ = np.array([2, 3, 4], "f4")
    assert (memory[0][0] == once_ * [1, 2, 3]).all()
    assert (memory[1][3] == once_).all()
    assert (result.to_numpy() == memory[0][0] + memory[1][3]).all()


def test_symbolic_sizes_of_buffers_are_bound() -> None:
    grown = BufferType("int64", ["n", 2], "cpu")
    with Graph("g", input_types=[grown]) as graph:
        rows = graph.inputs[0].buffer
        rows[1:] = 0
        graph.output()
    for size in (2, 5):
        memory = np.full((size, 2), 9)
        assert InferenceSession().load(graph).execute(memory) == []
        assert memory[:, 0].tolist() == [9] + [0] * (size - 1)


def test_what_does_not_fit_a_buffer_is_refused() -> None:
    with Graph("g", input_types=[CACHE, ROW, BufferType("int32", [3], "cpu")]) as graph:
        cache, row, numbers = graph.inputs[0].buffer, graph.inputs[1], graph.inputs[2].buffer
        with refuses(GraphError, "graph.invalid"):
            ops.buffer_store(cache, row)
        with refuses(GraphError, "graph.invalid"):
            numbers[0:3] = row
        with refuses(TypeError):
            ops.buffer_load(row)  # type: ignore[arg-type]
        with refuses(TypeError):
            _ = ops.add(cache, row)  # type: ignore[arg-type]
        with refuses(TypeError):
            _ = cache.tensor
        with refuses(TypeError):
            _ = row.buffer
        with refuses(TypeError):
            list(cache)

        def swap(a: BufferValue, b: BufferValue) -> None:
            a[...], b[...] = b[...], a[...]

        both = graph.add_subgraph("swap", swap, [CACHE, CACHE])
        with refuses(GraphError, "graph.invalid"):
            ops.call(both, cache, cache)
        with refuses(GraphError, "graph.invalid"):
            ops.call(graph.add_subgraph("plain", lambda x: x, [ROW]), numbers)
        with refuses(GraphError, "graph.invalid"):
            ops.call(both, cache, cache[...])
        graph.output()
    with Graph("other"), refuses(GraphError, "graph.invalid"):
        _ = cache[...]
    with graph, refuses(GraphError, "graph.invalid"):
        cache[0] = 1.0


@pytest.mark.parametrize("bad", ["read-only", "strided", "list"])
def test_memory_that_cannot_be_stored_in_is_refused_before_the_run(bad: str) -> None:
    with Graph("g", input_types=[CACHE]) as graph:
        graph.inputs[0].buffer[0] = 1.0
        graph.output()
    model = InferenceSession().load(graph)
    memory = np.zeros((4, 3), "f4")
    if bad == "read-only":
        memory.flags.writeable = False
    elif bad == "strided":
        memory = np.zeros((4, 6), "f4")[:, ::2]
    with refuses((GraphError, TypeError)):
        model.execute(memory.tolist() if bad == "list" else memory)
    assert not memory.any()


def test_a_listing_shows_what_is_stored() -> None:
    with Graph("g", input_types=[CACHE]) as graph:
        graph.inputs[0].buffer[...] = graph.inputs[0].buffer[...] + 1
        graph.output()
    text = repr(graph)
    assert "input(index=0, buffer=True)" in text
    assert "buffer_store(%" in text
