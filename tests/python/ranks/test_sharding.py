"""`ShardingStrategy`: each row of the table in docs/ranks.md, as ranges, shapes and errors."""

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import max_weights.graph.weight as functions
from max_weights.graph import Dim, Segment, Shape, ShardingStrategy, Weight
from max_weights.sharding._strategies import ShapeOnly, concat

S = ShardingStrategy
Make = Callable[[int], ShardingStrategy]


def own_rows(weight: Any, index: int, count: int) -> Any:
    each = weight.shape[0] // count
    return weight[each * index : each * (index + 1)]


MAKERS: dict[str, Make] = {
    "rowwise": S.rowwise,
    "columnwise": S.columnwise,
    "axiswise": lambda n: S.axiswise(-1, n),
    "replicate": S.replicate,
    "stacked_qkv": lambda n: S.stacked_qkv(n, 8, 64),
    "head_aware_columnwise": lambda n: S.head_aware_columnwise(n, 8, 64),
    "gate_up": S.gate_up,
    "segmented": lambda n: S.segmented(n, 0, [Segment.even(6), Segment.head_aware(2, 4)]),
    "tensor_parallel": S.tensor_parallel,
    "expert_parallel": S.expert_parallel,
    "custom": lambda n: S(n, own_rows),
}
PROPERTIES = {
    "rowwise": "is_rowwise",
    "columnwise": "is_colwise",
    "axiswise": "is_axiswise",
    "replicate": "is_replicate",
    "stacked_qkv": "is_stacked_qkv",
    "head_aware_columnwise": "is_head_aware_colwise",
    "gate_up": "is_gate_up",
    "segmented": "is_segmented",
    "tensor_parallel": "is_tensor_parallel",
    "expert_parallel": "is_expert_parallel",
    "custom": "is_custom",
}
AXES = {"rowwise": 0, "columnwise": 1, "axiswise": -1, "stacked_qkv": 0, "head_aware_columnwise": 1, "gate_up": 2}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_strategy_says_what_it_is_and_nothing_else(kind: str) -> None:
    strategy = MAKERS[kind](2)
    assert [name for name in PROPERTIES.values() if getattr(strategy, name)] == [PROPERTIES[kind]]
    assert strategy.num_devices == 2
    assert strategy.sharded_axis == AXES.get(kind, 0 if kind == "segmented" else None)


@pytest.mark.parametrize("kind", MAKERS)
def test_equal_arguments_make_equal_strategies_however_they_were_copied(kind: str) -> None:
    make = MAKERS[kind]
    for same in (make(3), copy.deepcopy(make(3)), pickle.loads(pickle.dumps(make(3)))):
        assert same == make(3)
        assert hash(same) == hash(make(3))
    assert make(3) != make(4)
    others = [other(3) for name, other in MAKERS.items() if name != kind]
    assert make(3) not in others
    assert make(3) != "rowwise"


@pytest.mark.parametrize("kind", [kind for kind in MAKERS if kind != "custom"])
def test_the_repr_of_a_strategy_makes_it_again(kind: str) -> None:
    strategy = MAKERS[kind](2)
    assert eval(repr(strategy)) == strategy


@pytest.mark.parametrize("kind", MAKERS)
def test_a_strategy_never_changes(kind: str) -> None:
    strategy = MAKERS[kind](2)
    with pytest.raises(AttributeError, match="cannot assign to field 'num_devices'"):
        strategy.num_devices = 3
    with pytest.raises(AttributeError, match="cannot delete field 'num_devices'"):
        del strategy.num_devices


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("devices", [0, -1])
def test_fewer_than_one_device_is_an_error(kind: str, devices: int) -> None:
    with pytest.raises(ValueError, match="num_devices must be at least 1"):
        MAKERS[kind](devices)


@pytest.mark.parametrize(("size", "devices"), [(10, 4), (8, 4), (7, 8), (3, 8), (0, 2), (1, 1)])
def test_the_first_shards_get_the_remainder_and_the_last_are_empty(size: int, devices: int) -> None:
    expected = [len(part) for part in np.array_split(np.arange(size), devices)]
    assert [S.rowwise(devices).pieces([size, 5], i).shape for i in range(devices)] == [(part, 5) for part in expected]
    assert [S.columnwise(devices).pieces([5, size], i).shape for i in range(devices)] == [(5, p) for p in expected]
    assert [S.axiswise(-2, devices).pieces([2, size, 5], i).shape for i in range(devices)] == [
        (2, part, 5) for part in expected
    ]


def test_pieces_are_plain_ranges() -> None:
    pieces = S.gate_up(3, axis=1).pieces([4, 14], 1)
    assert pieces.boxes == (((0, 4), (3, 5)), ((0, 4), (10, 12)))
    assert (pieces.axis, pieces.shape, len(pieces)) == (1, (4, 4), 2)
    assert list(pieces) == list(pieces.boxes)
    assert pieces == S.gate_up(3, axis=-1)(Weight("w", "int8", [4, 14], "cpu"), 1)
    assert pickle.loads(pickle.dumps(pieces)) == pieces


def test_ranges_that_touch_are_one_piece() -> None:
    assert len(S.gate_up(1, axis=0).pieces([8], 0)) == 1
    assert len(S.stacked_qkv(1, 2, 4).pieces([24, 3], 0)) == 1
    assert S.stacked_qkv(1, 2, 4).pieces([24, 3], 0).is_complete
    assert S.stacked_qkv(3, 2, 4).pieces([24, 3], 2).shape == (0, 3)


def test_queries_go_where_the_keys_of_their_group_go() -> None:
    strategy = S.stacked_qkv(2, num_heads=6, head_dim=1, num_kv_heads=3)
    assert [strategy.pieces([12], i).boxes for i in (0, 1)] == [
        (((0, 4),), ((6, 8),), ((9, 11),)),  # two heads of keys, and the four of queries that read them
        (((4, 6),), ((8, 9),), ((11, 12),)),
    ]


@pytest.mark.parametrize(
    ("columns", "expected"), [(8 * 32, [96, 96, 64]), (8 * 16, [48, 48, 32]), (8 * 24, [72, 72, 48])]
)
def test_heads_are_whole_in_columns_packed_as_fp4_and_mxfp6_too(columns: int, expected: list[int]) -> None:
    strategy = S.head_aware_columnwise(3, 8, 32)
    assert [strategy.pieces([5, columns], i).shape for i in range(3)] == [(5, size) for size in expected]


def test_segments_may_be_packed_as_fp4() -> None:
    strategy = S.segmented(2, 0, [Segment.even(12), Segment.head_aware(3, 4)])
    assert [strategy.pieces([24], i).boxes for i in (0, 1)] == [(((0, 6),), ((12, 20),)), (((6, 12),), ((20, 24),))]
    assert [strategy.pieces([12], i).boxes for i in (0, 1)] == [(((0, 3),), ((6, 10),)), (((3, 6),), ((10, 12),))]


@pytest.mark.parametrize(
    ("strategy", "shape", "message"),
    [
        (S.columnwise(2), [4], "no axis 1"),
        (S.rowwise(2), [], "no axis 0"),
        (S.axiswise(-3, 2), [4, 4], "no axis -3"),
        (S.gate_up(2), [4, 4], "no axis 2"),
        (S.gate_up(2, axis=0), [5], "size 5 is odd"),
        (S.stacked_qkv(2, 4, 8), [95, 2], r"make 96 rows; found 95"),
        (S.stacked_qkv(2, 4, 8, num_kv_heads=2), [96, 2], r"make 64 rows; found 96"),
        (S.head_aware_columnwise(2, 4, 8), [3, 31], r"make 32 columns .* found 31"),
        (S.head_aware_columnwise(2, 2, 1), [3, 1], "inside a byte"),
        (S.head_aware_columnwise(2, 4, 8), [32], "no axis 1"),
        (S.segmented(2, 0, [Segment.even(3)]), [4], r"segments make 3 .* found 4"),
        (S.segmented(2, 0, [Segment.even(2)]), [1], "inside a byte"),
        (S.rowwise(2), ["n", 4], "axis 0 is the dimension n"),
        (S.columnwise(2), [4, Dim("n") + 1], r"axis 1 is the dimension n \+ 1"),
    ],
)
def test_a_shape_that_does_not_fit_is_an_error_that_says_which_and_why(
    strategy: ShardingStrategy, shape: list[Any], message: str
) -> None:
    for index in range(strategy.num_devices):
        with pytest.raises(ValueError, match=message) as error:
            strategy.pieces(shape, index)
        assert repr(strategy) in str(error.value)
    with pytest.raises(ValueError, match=r"weight 'w' of shape \["):
        strategy.pieces(Weight("w", "int8", shape, "cpu"), strategy.num_devices - 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: S.stacked_qkv(2, 0, 8),
        lambda: S.stacked_qkv(2, 8, 0),
        lambda: S.stacked_qkv(2, 8, 4, num_kv_heads=3),
        lambda: S.head_aware_columnwise(2, 8, -1),
        lambda: S.segmented(2, 0, []),
        lambda: Segment.even(-1),
        lambda: Segment.head_aware(0, 4),
    ],
)
def test_arguments_that_fit_no_weight_are_refused_at_once(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"at least|evenly|multiple"):
        make()


def test_arguments_of_the_wrong_kind_are_refused_at_once() -> None:
    with pytest.raises(TypeError, match=r"Segment\.even"):
        S.segmented(2, 0, [4])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="shard must be a function"):
        S(2, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        S.rowwise(2.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        S.axiswise("0", 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("index", [-1, 2])
def test_there_is_no_shard_beyond_the_devices(index: int) -> None:
    with pytest.raises(IndexError, match=f"no shard {index} of 2"):
        S.rowwise(2).pieces([4], index)


@pytest.mark.parametrize("strategy", [S.tensor_parallel(2), S.expert_parallel(2)])
def test_markers_are_for_modules(strategy: ShardingStrategy) -> None:
    with pytest.raises(NotImplementedError, match="modules"):
        strategy([4, 4], 0)


def test_symbolic_dimensions_that_are_not_split_stay() -> None:
    assert S.columnwise(2).pieces(["n", 5], 0).shape == ["n", 3]
    assert S.columnwise(2).pieces(["n", 5], 0).slices == ((slice(None), slice(0, 3)),)
    assert S.replicate(2).pieces(["n", Dim("n") + 1], 1).shape == Shape(["n", Dim("n") + 1])
    assert S(2, lambda w, i, _: w[:, i : i + 1])(["n", 2], 1).shape == ["n", 1]


def test_quantized_rows_are_split_between_blocks_only() -> None:
    weight = Weight("w", "uint8", [6, 4 * 144], "cpu", "q4_k")  # rows of 1024 elements, in blocks of 256
    assert S.columnwise(2).pieces(weight, 1).boxes == (((0, 6), (288, 576)),)
    assert S.columnwise(4).pieces(weight, 3).boxes == (((0, 6), (432, 576)),)
    assert S.rowwise(4).pieces(weight, 0).shape == (2, 576)
    assert S.head_aware_columnwise(2, 4, 256).pieces(weight, 0).shape == (6, 288), "rules count elements, not bytes"
    assert S.gate_up(2, axis=1).pieces(weight, 0).boxes == (((0, 6), (0, 144)), ((0, 6), (288, 432)))
    for strategy in (S.columnwise(3), S.head_aware_columnwise(8, 8, 128), S(2, lambda w, i, _: w[:, : 100 + i])):
        with pytest.raises(ValueError, match=r"'w' .* inside a block: Q4_K packs 256 elements in 144 bytes"):
            strategy.pieces(weight, 0)
    with pytest.raises(ValueError, match=r"577 bytes are not whole blocks of Q4_K \(144 bytes\)"):
        S.rowwise(2).pieces(Weight("w", "uint8", [6, 577], "cpu", "q4_k"), 0)
    gptq = Weight("w", "uint8", [6, 577], "cpu", "gptq")
    assert S.columnwise(2).pieces(gptq, 0).shape == (6, 289), "GPTQ has no blocks"


def test_an_own_function_is_given_the_weight_the_shard_and_the_number_of_shards() -> None:
    calls = []

    def every_nth(weight: Any, index: int, count: int) -> Any:
        calls.append((tuple(weight.shape), index, count))
        rows = int(weight.shape[0])
        return concat([weight[row : row + 1, ...] for row in range(index, rows, count)])

    strategy = S(2, shard=every_nth)
    assert strategy.shard is every_nth
    weight = Weight("w", "int8", [5, 3], "cpu", sharding_strategy=strategy)
    shards = weight.shard(["gpu:0", "gpu:1"])
    value = np.arange(15).reshape(5, 3)
    for index, shard in enumerate(shards):
        np.testing.assert_array_equal(shard.data_of(value), value[index::2])
        assert shard.shape == value[index::2].shape
    assert sorted(set(calls)) == [((5, 3), 0, 2), ((5, 3), 1, 2)]
    assert len(calls) == 2, "a shard remembers its pieces"


def test_the_functions_of_max_make_the_strategies_of_their_names() -> None:
    for function, strategy, shape in (
        (functions.row_sharding_strategy, S.rowwise(2), (5, 4)),
        (functions.col_sharding_strategy, S.columnwise(2), (5, 4)),
        (functions.replicate_sharding_strategy, S.replicate(2), (5, 4)),
    ):
        assert S(2, function) == strategy
        assert strategy.shard is function
        assert function(shape, 1, 2) == strategy.pieces(shape, 1)
    segments = [Segment.even(6), Segment.head_aware(2, 4)]
    for made, strategy, shape in (
        (partial(functions.axiswise_sharding_strategy, axis=1), S.axiswise(1, 2), (5, 4)),
        (partial(functions.gate_up_sharding_strategy, axis=0), S.gate_up(2, axis=0), (8, 3)),
        (partial(functions.stacked_qkv_sharding_strategy, num_heads=2, head_dim=4), S.stacked_qkv(2, 2, 4), (24, 3)),
        (
            partial(functions.head_aware_col_sharding_strategy, num_heads=3, head_dim=4),
            S.head_aware_columnwise(2, 3, 4),
            (3, 12),
        ),
        (
            partial(functions.segmented_sharding_strategy, axis=0, segments=segments),
            S.segmented(2, 0, segments),
            (14, 3),
        ),
    ):
        assert S(2, made).pieces(shape, 1) == made(shape, 1, 2) == strategy.pieces(shape, 1)
    for marker, strategy in (
        (functions.tensor_parallel_sharding_strategy, S.tensor_parallel(2)),
        (functions.expert_parallel_sharding_strategy, S.expert_parallel(2)),
    ):
        assert S(2, marker) == strategy
        with pytest.raises(NotImplementedError, match="modules"):
            marker((4, 4), 0, 2)


def test_segments_are_those_of_max() -> None:
    heads = Segment.head_aware(5, 8)
    assert (heads.size, heads.num_heads, Segment.even(6).num_heads) == (40, 5, None)
    assert heads == Segment(size=40, num_heads=5)
    assert [heads.shard_range(i, 2) for i in (0, 1)] == [(0, 24), (24, 40)]
    assert [Segment.even(5).shard_range(i, 2) for i in (0, 1)] == [(0, 3), (3, 5)]
    with pytest.raises(ValueError, match="multiple of its 4 heads; found 33"):
        Segment(33, 4)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda w, *_: w[0], TypeError, "index 0"),
        (lambda w, *_: w[::2], TypeError, "slice of step 2"),
        (lambda w, *_: w[::-1], TypeError, "slice of step -1"),
        (lambda w, *_: w[None], TypeError, "index None"),
        (lambda w, *_: w[..., ...], TypeError, "index Ellipsis"),
        (lambda w, *_: w.T, AttributeError, r"there is no `\.T`"),
        (lambda w, *_: w[:, :, :], IndexError, "3 indices into a weight of 2"),
        (lambda w, *_: list(w), TypeError, "not iterable"),
        (lambda *_: np.zeros(3), TypeError, "must return a slice"),
        (lambda *_: None, TypeError, "must return a slice"),
        (lambda *_: concat([]), ValueError, "at least one"),
        (lambda w, *_: concat([w, 3]), TypeError, "joins slices"),
        (lambda w, *_: concat([w], axis=2), ValueError, "no axis 2"),
        (lambda w, *_: concat([w[:, :1], w], axis=0), ValueError, "same ranges"),
        (lambda w, *_: concat([concat([w[1:], w[:1]]), w], axis=1), ValueError, "joined along axis 0"),
    ],
)
def test_what_an_own_function_cannot_do_is_said(function: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        S(2, function).pieces([4, 4], 0)


def test_a_symbolic_axis_cannot_be_sliced_by_an_own_function() -> None:
    with pytest.raises(ValueError, match="symbolic dimension n"):
        S(2, lambda w, i, _: w[i:]).pieces(["n", 4], 0)


def test_slices_of_slices_and_of_joined_parts_are_followed() -> None:
    value = np.arange(60).reshape(10, 6)
    functions: list[Callable[[Any, Callable[..., Any]], Any]] = [
        lambda w, _: w[2:][1:4, -3:],
        lambda w, join: join([w[6:8], w[1:3], w[3:4]])[1:4],
        lambda w, join: join([w[:, 4:], w[:, :2]], 1)[3:, 1:3],
        lambda w, join: join([w[6:], w[:2]])[:, 2:][5:],
        lambda w, _: w[8:3],
        lambda w, join: join([w[3:3], w[5:5]]),
    ]
    for function in functions:
        pieces = S(1, lambda w, *_, f=function: f(w, concat))([10, 6], 0)  # type: ignore[misc]
        expected = function(value, lambda parts, axis=0: np.concatenate(parts, axis))
        parts = [value[index] for index in pieces.slices]
        np.testing.assert_array_equal(np.concatenate(parts, pieces.axis or 0), expected)
        assert pieces.shape == expected.shape
    assert "ShapeOnly" in repr(ShapeOnly(S.rowwise(1).pieces([2], 0)))
