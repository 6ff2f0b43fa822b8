"""The static types of modules, weights and graphs. Checked by mypy and basedpyright, never run."""

from __future__ import annotations

from typing import assert_type

from max_weights import DType
from max_weights.driver import DLPackArray
from max_weights.graph import DeviceRef, Dim, Graph, Shape, ShardingStrategy, TensorType, TensorValue, Weight, ops
from max_weights.graph.weights import load_weights
from max_weights.nn import LayerList, Module


class Linear(Module):
    """One matrix."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = Weight("weight", DType.float32, (rows, columns), DeviceRef.CPU())

    def __call__(self, x: TensorValue) -> TensorValue:
        """Multiply."""
        return x @ self.weight.T


class Model(Module):
    """Several."""

    def __init__(self) -> None:
        super().__init__()
        self.head = Linear(2, 3)
        self.layers = LayerList([Linear(3, 3)])

    def __call__(self, x: TensorValue) -> TensorValue:
        """Go through all."""
        return self.head(x)


def modules(path: str) -> None:
    """Modules and their weights."""
    model = Model()
    assert_type(model.head.weight, Weight)
    assert_type(model.head.weight.dtype, DType)
    assert_type(model.head.weight.shape, Shape)
    assert_type(model.head.weight.shape[0], Dim)
    assert_type(model.head.weight.device, DeviceRef)
    assert_type(model.raw_state_dict(), dict[str, Weight])
    assert_type(model.state_dict(), dict[str, DLPackArray])
    assert_type(model.layer_weights, dict[str, Weight])
    assert_type(model.sublayers, dict[str, Module])
    for name, module in model.named_modules():
        assert_type(name, str)
        assert_type(module, Module)
    assert_type(len(model.layers), int)
    model.load_state_dict({"head.weight": load_weights(path).head.weight.data()})
    model.load_state_dict(load_weights(path))


def sharding() -> None:
    """Shards are weights."""
    weight = Weight("w", DType.float32, [4, "n"], DeviceRef.CPU())
    weight.sharding_strategy = ShardingStrategy.rowwise(2)
    shards = weight.shard([DeviceRef.GPU(0), DeviceRef.GPU(1)])
    assert_type(shards, list[Weight])
    assert_type(shards[0].shape, Shape)
    assert_type(shards[0].shard_idx, int | None)
    assert_type(ShardingStrategy.rowwise(2).num_devices, int)


def graphs() -> None:
    """Values of a graph."""
    with Graph("g", input_types=[TensorType(DType.float32, ("batch", 3), DeviceRef.CPU())]) as graph:
        value = ops.constant(1.0, DType.float32, DeviceRef.CPU())
        assert_type(value, TensorValue)
        assert_type(value + 1, TensorValue)
        assert_type(1 - value, TensorValue)
        assert_type(-value, TensorValue)
        assert_type(value < 2, TensorValue)
        assert_type(value[0].reshape([-1]).cast("float16").max(), TensorValue)
        assert_type(ops.silu(value) @ value.T, TensorValue)
        assert_type(value.type, TensorType)
        graph.output(value)
