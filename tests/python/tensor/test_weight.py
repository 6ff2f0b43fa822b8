"""`Weight` outside a graph."""

import copy
import operator
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from max_weights import nn
from max_weights.dtype import DType
from max_weights.graph import DeviceRef, Shape, ShardingStrategy, Weight
from max_weights.graph.quantization import QuantizationEncoding


class Layer(nn.Module):
    def __init__(self) -> None:
        self.weight = Weight("w", DType.float32, [6, 4], DeviceRef.CPU())


class Model(nn.Module):
    def __init__(self) -> None:
        self.layer = Layer()


@pytest.fixture
def weight() -> Weight:
    return Weight("w", DType.float32, [6, 4], DeviceRef.CPU())


def test_the_declaration_is_readable(weight: Weight) -> None:
    assert weight.name == "w"
    assert weight.dtype is DType.float32
    assert type(weight.shape) is Shape
    assert weight.shape == (6, 4)
    assert weight.device == DeviceRef.CPU()
    assert (weight.align, weight.quantization_encoding, weight.shard_idx, weight.sharding_strategy) == (None,) * 4
    assert weight.original_dtype_and_shape == (DType.float32, Shape([6, 4]))


def test_repr(weight: Weight) -> None:
    assert repr(weight) == "Weight(w, DType.float32, [Dim(6), Dim(4)], cpu:0)"
    packed = Weight("q", "uint8", (6, 144), "gpu:1", quantization_encoding=QuantizationEncoding.Q4_K)
    assert repr(packed) == "Weight(q, DType.uint8, [Dim(6), Dim(144)], gpu:1, QuantizationEncoding.Q4_K)"


def test_everything_can_be_changed_the_origin_for_itself_alone(weight: Weight) -> None:
    strategy = object()
    weight.name, weight.dtype, weight.shape, weight.device = "v", DType.uint8, [6, "n"], DeviceRef.GPU(1)
    weight.align, weight.quantization_encoding = 32, QuantizationEncoding.Q4_0
    weight.shard_idx, weight.sharding_strategy = 2, strategy
    assert repr(weight) == "Weight(v, DType.uint8, [Dim(6), Dim('n')], gpu:1, QuantizationEncoding.Q4_0)"
    assert (weight.align, weight.shard_idx, weight.sharding_strategy) == (32, 2, strategy)
    assert weight.original_dtype_and_shape == (DType.float32, (6, 4))
    weight.original_dtype_and_shape = DType.int32, [6, 1]
    assert weight.original_dtype_and_shape == (DType.int32, Shape([6, 1]))
    assert (weight.dtype, weight.shape) == (DType.uint8, [6, "n"])


def test_the_origin_is_not_reached_through_the_shape(weight: Weight) -> None:
    weight.shape.append(9)
    weight.original_dtype_and_shape[1].append(9)
    assert weight.original_dtype_and_shape == (DType.float32, (6, 4))


def test_the_shape_given_is_copied() -> None:
    given = Shape([2])
    weight = Weight("w", DType.int8, given, DeviceRef.CPU())
    given.append(3)
    assert weight.shape == [2]


@pytest.mark.parametrize(
    ("attribute", "value", "error"),
    [
        ("name", 3, TypeError),
        ("dtype", "flaot32", ValueError),
        ("shape", [-1], ValueError),
        ("shape", 3, TypeError),
        ("device", "tpu", ValueError),
        ("device", None, TypeError),
        ("align", 3, ValueError),
        ("align", 0, ValueError),
        ("align", 1.5, TypeError),
        ("quantization_encoding", "Q9", ValueError),
    ],
)
def test_bad_values_are_refused_and_change_nothing(
    weight: Weight, attribute: str, value: Any, error: type[Exception]
) -> None:
    before = getattr(weight, attribute)
    with pytest.raises(error):
        setattr(weight, attribute, value)
    assert getattr(weight, attribute) == before
    arguments = {"name": "w", "dtype": DType.int8, "shape": [], "device": "cpu", attribute: value}
    with pytest.raises(error):
        Weight(**arguments)


array = np.ones((6, 6), np.float32)
GRAPH_OPERATIONS: dict[str, Callable[[Any], object]] = {
    "T": lambda w: w.T,
    "index": lambda w: w[0],
    "slice": lambda w: w[1:, ...],
    "iterate": lambda w: next(iter(w)),
    "negate": operator.neg,
    "absolute": abs,
    "less": lambda w: w < 1,
    "greater": lambda w: w > 1,
    **{
        f"{operation.__name__} {side}": (
            (lambda w, operation=operation: operation(w, 2))
            if side == "left"
            else (lambda w, operation=operation: operation(array, w))
        )
        for operation in (
            operator.add,
            operator.sub,
            operator.mul,
            operator.truediv,
            operator.floordiv,
            operator.mod,
            operator.pow,
            operator.matmul,
        )
        for side in ("left", "right of an array")
    },
}


@pytest.mark.parametrize("operation", GRAPH_OPERATIONS)
def test_computing_needs_a_graph(weight: Weight, operation: str) -> None:
    with pytest.raises(ValueError, match="no parent graph: weight 'w'"):
        GRAPH_OPERATIONS[operation](weight)


def test_a_weight_equals_only_itself_and_can_be_a_key(weight: Weight) -> None:
    other = Weight("w", DType.float32, [6, 4], DeviceRef.CPU())
    assert weight == weight
    assert weight != other
    assert len({weight, other}) == 2


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda weight: pickle.loads(pickle.dumps(weight))])
def test_copies_say_the_same(weight: Weight, again: Callable[[Weight], Weight]) -> None:
    weight.align = 64
    other = again(weight)
    assert repr(other) == repr(weight)
    assert (other.align, other.original_dtype_and_shape) == (64, weight.original_dtype_and_shape)


def test_a_loaded_weight_says_its_value_and_its_local_name() -> None:
    model = Model()
    weight = model.layer.weight
    assert weight.value is None
    with pytest.raises(ValueError, match=r"'w' has no value yet: load_state_dict"):
        weight.data()
    value = np.arange(24, dtype=np.float32).reshape(6, 4)
    model.load_state_dict({"layer.w": value})
    assert weight.value is value
    assert weight.data() is value
    assert (weight.name, weight.local_name) == ("layer.w", "w")
    weight.load(None)
    assert weight.value is None


def test_a_shard_gives_its_part_of_the_loaded_weight() -> None:
    model = Model()
    weight = model.layer.weight
    weight.sharding_strategy = ShardingStrategy.columnwise(2)
    first, second = weight.shard([DeviceRef.GPU(0), DeviceRef.GPU(1)])
    assert second.value is None
    with pytest.raises(ValueError, match=r"'w\[1\]' has no value yet"):
        second.data()
    value = np.arange(24, dtype=np.float32).reshape(6, 4)
    model.load_state_dict({"layer.w": value})
    assert (second.data() == value[:, 2:]).all()
    assert (first.value == value[:, :2]).all()
    assert second.name == "layer.w[1]"
    with pytest.raises(ValueError, match=r"load the whole weight 'layer\.w'"):
        second.load(value)


def test_a_weight_goes_back_to_its_snapshot(weight: Weight) -> None:
    before = weight._snapshot()
    weight.name, weight.dtype, weight.shape, weight.device, weight.align = "v", "uint8", [6], DeviceRef.GPU(1), 32
    weight.load(np.zeros(6, np.uint8), "all.v")
    weight._restore(before)
    assert repr(weight) == "Weight(w, DType.float32, [Dim(6), Dim(4)], cpu:0)"
    assert (weight.align, weight.value, weight.local_name) == (None, None, "w")
