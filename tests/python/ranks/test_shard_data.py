"""`Weight.shard`, and `data_of`: shards rebuild the weight, are views if possible, and read nothing else."""

import copy
import json
import mmap
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import harness
import max_weights
from max_weights import Buffer, DeviceRef, DType, WeightData
from max_weights.graph import Segment, ShardingStrategy, Weight
from max_weights.graph.quantization import QuantizationEncoding
from refusals import refuses

S = ShardingStrategy
Make = Callable[..., Path]


def declared(shape: Any, strategy: ShardingStrategy | None = None, dtype: str = "float32", **more: Any) -> Weight:
    return Weight("w", dtype, shape, "cpu", sharding_strategy=strategy, **more)


def parts_of(strategy: ShardingStrategy, value: Any, **more: Any) -> list[Any]:
    weight = declared(value.shape, strategy, **more)
    shards = weight.shard([DeviceRef.GPU(i) for i in range(strategy.num_devices)])
    parts = [shard.data_of(value) for shard in shards]
    assert [tuple(part.shape) for part in parts] == [tuple(shard.shape.static_dims) for shard in shards]
    return parts


# Sharding a weight.


def test_shards_say_whose_they_are_and_where_they_go() -> None:
    weight = declared([10, 6], S.rowwise(4), align=64)
    shards = weight.shard(DeviceRef.GPU(i) for i in range(4))
    assert [shard.name for shard in shards] == ["w[0]", "w[1]", "w[2]", "w[3]"]
    assert [shard.shard_idx for shard in shards] == [0, 1, 2, 3]
    assert [shard.device for shard in shards] == [DeviceRef.GPU(i) for i in range(4)]
    assert [shard.shape for shard in shards] == [(3, 6), (3, 6), (2, 6), (2, 6)]
    assert {(shard.dtype, shard.align, shard.sharding_strategy) for shard in shards} == {
        (DType.float32, 64, S.rowwise(4))
    }
    assert all(isinstance(shard, Weight) for shard in shards)
    assert weight.shard_idx is None
    assert repr(shards[2]) == "Weight(w[2], DType.float32, [Dim(2), Dim(6)], gpu:2)"


def test_a_weight_without_a_strategy_cannot_be_sharded() -> None:
    with refuses(ValueError):
        declared([4]).shard(["cpu", "cpu"])


def test_a_shard_cannot_be_sharded_again() -> None:
    shard = declared([4], S.rowwise(2)).shard(["cpu", "cpu"])[1]
    with refuses(ValueError):
        shard.shard(["cpu", "cpu"])


@pytest.mark.parametrize("devices", [0, 1, 3])
def test_another_number_of_devices_than_the_strategys_is_refused(devices: int) -> None:
    with refuses(ValueError):
        declared([4], S.rowwise(2)).shard(["cpu"] * devices)


def test_a_weight_that_does_not_fit_its_strategy_cannot_be_sharded() -> None:
    with refuses(ValueError):
        declared([4], S.columnwise(2)).shard(["cpu"] * 2)
    with pytest.raises(NotImplementedError):
        declared([4], S.tensor_parallel(2)).shard(["cpu"] * 2)


def test_shards_follow_the_weight_that_they_are_parts_of() -> None:
    weight = declared(["n", 6], S.columnwise(2))
    shard = weight.shard(["cpu", "cpu"])[0]
    weight.name, weight.dtype, weight.shape = "model.w", "uint8", [5, 2 * 34]
    weight.quantization_encoding = QuantizationEncoding.Q8_0
    assert (shard.name, shard.dtype, shard.shape) == ("model.w[0]", DType.uint8, (5, 34))
    assert shard.quantization_encoding is QuantizationEncoding.Q8_0
    assert shard.original_dtype_and_shape == (DType.float32, ["n", 3])
    shard.name = "mine"
    assert (shard.name, weight.name) == ("mine", "model.w")
    shard.shape, shard.dtype, shard.quantization_encoding = (5, 34), DType.uint8, QuantizationEncoding.Q8_0
    for attribute, value in (("shape", (5, 35)), ("dtype", "int8"), ("quantization_encoding", None)):
        with refuses(ValueError):
            setattr(shard, attribute, value)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda shard: pickle.loads(pickle.dumps(shard))])
def test_copies_of_a_shard_say_the_same(again: Callable[[Weight], Weight]) -> None:
    shard = declared([5, 4], S.rowwise(2)).shard(["cpu", "gpu:1"])[1]
    other = again(shard)
    assert repr(other) == repr(shard)
    np.testing.assert_array_equal(other.data_of(np.eye(5, 4)), np.eye(5, 4)[3:])


def test_the_data_of_a_whole_weight_is_the_value() -> None:
    value = np.zeros(4, np.float32)
    assert declared([4]).data_of(value) is value


# Every strategy rebuilds the weight.

DEVICES = st.integers(1, 8)


def counted(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), DEVICES, st.data())
def test_shards_of_one_range_are_numpys_array_split(shape: list[int], devices: int, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    made = [(S.axiswise(axis, devices), axis), (S.rowwise(devices), 0)]
    if len(shape) > 1:
        made.append((S.columnwise(devices), 1))
    value = counted(*shape)
    for strategy, split in made:
        parts = parts_of(strategy, value)
        for part, expected in zip(parts, np.array_split(value, devices, axis=split), strict=True):
            np.testing.assert_array_equal(part, expected)
        np.testing.assert_array_equal(np.concatenate(parts, axis=split), value)


@given(st.lists(st.integers(0, 5), max_size=3), DEVICES)
def test_every_replica_is_everything(shape: list[int], devices: int) -> None:
    value = counted(*shape)
    for part in parts_of(S.replicate(devices), value):
        assert np.shares_memory(part, value) or not value.size
        np.testing.assert_array_equal(part, value)


def split_blocks(
    value: np.ndarray[Any, Any], axis: int, blocks: list[tuple[int, int]], devices: int
) -> list[np.ndarray[Any, Any]]:
    """An independent implementation: blocks of (size, unit), each split by units, concatenated for each device."""
    edges = np.cumsum([size for size, _ in blocks])[:-1]
    parts: list[list[np.ndarray[Any, Any]]] = [[] for _ in range(devices)]
    for block, (size, unit) in zip(np.split(value, edges, axis), blocks, strict=True):
        for index, units in enumerate(np.array_split(np.arange(size).reshape(size // unit, unit), devices)):
            parts[index].append(np.take(block, units.reshape(-1).astype(int), axis))
    return [np.concatenate(part, axis) for part in parts]


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), DEVICES)
def test_shards_of_stacked_qkv_rebuild_it(kv_heads: int, group: int, dim: int, columns: int, devices: int) -> None:
    heads = kv_heads * group
    value = counted((heads + 2 * kv_heads) * dim, columns)
    parts = parts_of(S.stacked_qkv(devices, heads, dim, num_kv_heads=kv_heads), value)
    blocks = [(heads * dim, group * dim), (kv_heads * dim, dim), (kv_heads * dim, dim)]
    for part, expected in zip(parts, split_blocks(value, 0, blocks, devices), strict=True):
        np.testing.assert_array_equal(part, expected)
    assert sorted(np.concatenate(parts).reshape(-1)) == list(range(value.size))


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 5), st.lists(st.integers(1, 3), max_size=2), st.lists(st.integers(1, 3), max_size=2), DEVICES)
def test_shards_of_gate_and_up_rebuild_them(half: int, before: list[int], after: list[int], devices: int) -> None:
    value, axis = counted(*before, 2 * half, *after), len(before)
    parts = parts_of(S.gate_up(devices, axis), value)
    for part, expected in zip(parts, split_blocks(value, axis, [(half, 1)] * 2, devices), strict=True):
        np.testing.assert_array_equal(part, expected)
    for part in parts_of(S.gate_up(devices, axis), Buffer.from_numpy(value)):  # the gather of mapped tensors
        np.testing.assert_array_equal(np.asarray(part), parts.pop(0))


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.one_of(st.tuples(st.integers(0, 7)), st.tuples(st.integers(1, 4), st.integers(1, 3))), min_size=1),
    st.integers(0, 1),
    DEVICES,
)
def test_shards_of_segments_rebuild_them(segments: list[tuple[int, ...]], axis: int, devices: int) -> None:
    blocks = [(one[0], 1) if len(one) == 1 else (one[0] * one[1], one[1]) for one in segments]
    total = sum(size for size, _ in blocks)
    value = counted(total, 2) if axis == 0 else counted(2, total)
    made = [Segment.even(*one) if len(one) == 1 else Segment.head_aware(*one) for one in segments]
    expected = split_blocks(value, axis, blocks, devices)
    for given_value in (value, Buffer.from_numpy(value), torch.from_numpy(value)):
        for part, requested in zip(parts_of(S.segmented(devices, axis, made), given_value), expected, strict=True):
            np.testing.assert_array_equal(np.asarray(part), requested)


@settings(deadline=None)
@given(st.integers(1, 8), st.sampled_from([4, 8]), st.sampled_from([1, 0.5, 0.75]), DEVICES)
def test_shards_of_heads_rebuild_the_columns(heads: int, dim: int, packing: float, devices: int) -> None:
    unit = int(dim * packing)
    value = counted(3, heads * unit)
    parts = parts_of(S.head_aware_columnwise(devices, heads, dim), value)
    for part, expected in zip(parts, split_blocks(value, 1, [(heads * unit, unit)], devices), strict=True):
        np.testing.assert_array_equal(part, expected)


# Accepted kinds of values, and the results.


def test_the_kind_of_value_that_goes_in_comes_out(make_file: Make) -> None:
    value = counted(4, 6)
    weights = max_weights.load_weights(make_file({"w": value}))
    strategy = S.columnwise(2)
    kinds: list[tuple[Any, type]] = [
        (value, np.ndarray),
        (torch.from_numpy(value), torch.Tensor),
        (Buffer.from_numpy(value), Buffer),
        (weights.w.data(), WeightData),
        (WeightData.from_numpy(value, "w"), WeightData),
    ]
    for given_value, kind in kinds:
        part = parts_of(strategy, given_value)[1]
        assert type(part) is kind
        np.testing.assert_array_equal(np.asarray(part), value[:, 3:])
    shard = declared([4, 6], strategy).shard(["cpu"] * 2)[1]
    part = shard.data_of(weights.w)
    assert repr(part).startswith("WeightData('w[1]', DType.int32, [4, 3]")
    assert part.shape == (4, 3)

    class Other:
        def __dlpack__(self, **options: Any) -> Any:
            return value.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return value.__dlpack_device__()

    part = shard.data_of(Other())
    assert type(part) is Buffer
    np.testing.assert_array_equal(part, value[:, 3:])


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "complex64", "bool", "float64"])
def test_every_bit_of_a_gathered_shard_is_that_of_the_value(dtype: str) -> None:
    item = DType(dtype).size_in_bits // 8
    raw = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 256, (6, 8, item), np.uint8)
    value = Buffer.from_numpy(raw.reshape(6, -1)).view(dtype)
    for axis in (0, 1):
        for index, part in enumerate(parts_of(S.gate_up(2, axis), value)):
            expected = split_blocks(raw, axis, [(raw.shape[axis] // 2, 1)] * 2, 2)[index]
            assert bytes(part.view("uint8")) == expected.tobytes()


def test_bfloat16_arrays_are_cut_too() -> None:
    value = np.arange(12).reshape(2, 6).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(parts_of(S.gate_up(3, 1), value)[1], value[:, [1, 4]])


def test_packed_dtypes_are_cut_between_bytes() -> None:
    raw = np.arange(32, dtype=np.uint8).reshape(4, 8)
    value = Buffer.from_numpy(raw).view("float4_e2m1fn", [4, 16])
    rows = parts_of(S.rowwise(2), value, dtype="float4_e2m1fn")
    assert (rows[1].shape, rows[1].dtype) == ((2, 16), DType.float4_e2m1fn)
    assert bytes(rows[1].view("uint8")) == raw[2:].tobytes()
    columns = parts_of(S.columnwise(4), value, dtype="float4_e2m1fn")
    assert bytes(columns[3].view("uint8")) == raw[:, 6:].tobytes()
    with refuses(ValueError):
        parts_of(S.columnwise(6), value, dtype="float4_e2m1fn")


def test_shards_of_packed_blocks_decode_to_the_shards_of_the_values() -> None:
    values = np.random.default_rng(0).standard_normal((6, 256)).astype(np.float32)
    blocks = gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    decoded = gguf.dequantize(blocks, gguf.GGMLQuantizationType.Q8_0)
    q8 = QuantizationEncoding.Q8_0
    data = WeightData(Buffer.from_numpy(blocks), "w", "uint8", blocks.shape, q8)
    for strategy, axis in ((S.rowwise(4), 0), (S.columnwise(4), 1), (S.head_aware_columnwise(2, 4, 64), 1)):
        parts = parts_of(strategy, data, quantization_encoding=q8)
        assert [part.quantization_encoding for part in parts] == [q8] * len(parts)
        for part, expected in zip(parts, np.array_split(decoded, len(parts), axis), strict=True):
            assert part.logical_shape == expected.shape
            np.testing.assert_array_equal(np.asarray(part.astype("float32")), expected)


def test_a_value_that_is_not_the_whole_weights_is_refused() -> None:
    shard = declared([4, "n"], S.rowwise(2)).shard(["cpu"] * 2)[1]
    np.testing.assert_array_equal(shard.data_of(counted(4, 7)), counted(4, 7)[2:])
    for value in (counted(2, 7), counted(4), torch.zeros(5, 2), Buffer.zeros([4, 2, 1], "int8")):
        with refuses(ValueError):
            shard.data_of(value)
    packed = WeightData(np.zeros((4, 34), np.uint8), "w", "uint8", (4, 34), QuantizationEncoding.Q8_0)
    with refuses(ValueError):
        shard.data_of(packed)


# Shards of a mapped file: views, and nothing else is read.


def test_rows_of_a_mapped_weight_stay_views_of_the_mapping(make_file: Make) -> None:
    weights = max_weights.load_weights(make_file({"w": counted(10, 6)}))
    for strategy in (S.rowwise(3), S.replicate(3), S.axiswise(0, 3)):
        for part in parts_of(strategy, weights.w.data()):
            assert part.data.is_mapped
            assert part.data.is_contiguous
    columns = parts_of(S.columnwise(2), weights.w.data())
    assert not columns[0].data.is_mapped
    assert columns[0].data.is_contiguous
    array, tensor = np.asarray(weights.w.data()), torch.from_dlpack(weights.w)
    assert np.shares_memory(parts_of(S.rowwise(2), array)[1], array)
    assert parts_of(S.rowwise(2), tensor)[1].data_ptr() == tensor[5:].data_ptr()


def test_a_gather_from_a_truncated_file_is_an_error(make_file: Make) -> None:
    path = make_file({"w": np.zeros((4096, 64), np.float32)})
    weights = max_weights.load_weights(path)
    data = weights.w.data()
    with path.open("r+b") as file:
        file.truncate(8192)
    for strategy in (S.columnwise(2), S.gate_up(2, 0), S.gate_up(2, 1)):
        with refuses(max_weights.FileChangedError, "file.truncated"):
            declared([4096, 64], strategy).shard(["cpu"] * 2)[1].data_of(data)


FORBID = """
import ctypes, json, mmap, sys
import numpy as np
import max_weights
from max_weights.graph import Weight, ShardingStrategy

path, strategy, pages = sys.argv[1], eval("ShardingStrategy." + sys.argv[2]), set(json.load(sys.stdin))
data = max_weights.load_weights(path).w.data()
weight = Weight("w", data.dtype, data.shape, "cpu", sharding_strategy=strategy)
own, other = weight.shard(["cpu"] * strategy.num_devices)[1:3]
start = data.data._data_ptr() // mmap.PAGESIZE
libc = ctypes.CDLL(None, use_errno=True)
for page in range(data.data.nbytes // mmap.PAGESIZE + 1):
    if page not in pages:
        failed = libc.mprotect(ctypes.c_void_p((start + page) * mmap.PAGESIZE), ctypes.c_size_t(mmap.PAGESIZE), 0)
        assert not failed, ctypes.get_errno()
part = own.data_of(data).data.prefetch().copy()
print(int(np.asarray(part).astype(np.int64).sum()), part.nbytes)
try:
    other.data_of(data).data.copy()
except max_weights.WeightsError:
    print("forbidden")
"""

MAPPED = {
    "rowwise(4)": (1, lambda value: np.array_split(value, 4)[1]),
    "stacked_qkv(4, 32, 32, num_kv_heads=16)": (
        3,
        lambda value: split_blocks(value, 0, [(1024, 64), (512, 32), (512, 32)], 4)[1],
    ),
    "gate_up(4, axis=0)": (2, lambda value: split_blocks(value, 0, [(1024, 1)] * 2, 4)[1]),
    "segmented(4, 0, [__import__('max_weights').graph.Segment.even(2048)])": (
        1,
        lambda value: np.array_split(value, 4)[1],
    ),
    "axiswise(1, 4)": (2048, lambda value: np.array_split(value, 4, 1)[1]),
}


@pytest.mark.skipif(sys.platform != "linux", reason="protects pages of a mapping by mprotect")
@pytest.mark.parametrize("strategy", MAPPED)
def test_a_shard_touches_the_pages_of_its_own_bytes_and_no_others(make_file: Make, strategy: str) -> None:
    runs, cut = MAPPED[strategy]
    value = np.random.default_rng(0).integers(0, 1000, (2048, 8192), np.int16)
    path = make_file({"w": value})
    page = mmap.PAGESIZE
    first = (8 + int.from_bytes(path.read_bytes()[:8], "little")) % page  # where the tensor begins in its first page
    expected = cut(value)
    positions = cut(np.arange(value.size).reshape(value.shape)) * value.itemsize
    pages = np.unique((positions + first) // page).tolist()
    command = [sys.executable, "-c", FORBID, str(path), strategy]
    done = subprocess.run(command, input=json.dumps(pages), capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(expected.astype(np.int64).sum()), str(expected.nbytes), "forbidden"]
    touched = len(pages) * page
    assert touched <= expected.nbytes + runs * page * 2
    if runs < 2048:
        assert touched <= 1.02 * expected.nbytes


COLD = """
import sys, max_weights
from max_weights.graph import Weight, ShardingStrategy

data = max_weights.load_weights(sys.argv[1]).w.data()
strategy = eval("ShardingStrategy." + sys.argv[2])
weight = Weight("w", data.dtype, data.shape, "cpu", sharding_strategy=strategy)
weight.shard(["cpu"] * 4)[1].data_of(data).data.prefetch().copy()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks the page cache")
@pytest.mark.parametrize(("strategy", "runs"), [("rowwise(4)", 1), ("gate_up(4, axis=0)", 2), ("columnwise(4)", 64)])
def test_a_shard_reads_no_more_than_its_bytes_from_the_disk(make_file: Make, strategy: str, runs: int) -> None:
    size = 64 << 20
    path = make_file({"w": ("BF16", [64, size // 128], bytes(size))})
    try:
        harness.evict(path)
    except harness.BenchError as error:
        # A RAM disk has no cold start; the test above shows the same there, by pages that must not be touched.
        pytest.skip(f"needs a file system that gives up its cache: {error}")
    before = harness.cached_fraction(path)
    subprocess.run([sys.executable, "-c", COLD, str(path), strategy], check=True)
    read = (harness.cached_fraction(path) - before) * path.stat().st_size
    # One part in a hundred for opening, which reads around the header; a run ends inside a page at both ends.
    assert 0.9 * size / 4 <= read <= 1.01 * size / 4 + runs * 2 * mmap.PAGESIZE


def test_prefetch_gives_the_view_back_and_changes_nothing(make_file: Make) -> None:
    value = counted(64, 64)
    mapped = max_weights.load_weights(make_file({"w": value})).w.data().to_buffer()
    for buffer in (mapped, Buffer.from_numpy(value)):
        for index in (slice(None), slice(0, 0), (slice(None), slice(3, 5)), (slice(None, None, -2), 1), (3, 4)):
            view = buffer[index]
            assert view.prefetch() is view
            np.testing.assert_array_equal(view.to_numpy(), value[index])
    packed = mapped.view("float4_e2m1fn", [64, 512])
    assert packed.prefetch() is packed


def test_a_strategy_takes_its_part_of_a_value() -> None:
    array = np.arange(48, dtype=np.float32).reshape(6, 8)
    columns, rows = ShardingStrategy.columnwise(2), ShardingStrategy.rowwise(3)
    np.testing.assert_array_equal(columns.take(array, 1), array[:, 4:])
    assert np.shares_memory(rows.take(array, 2), array)
    assert torch.equal(columns.take(torch.from_numpy(array), 0), torch.from_numpy(array[:, :4].copy()))
    part = columns.take(WeightData.from_numpy(array, "w"), 1)
    assert (part.name, part.shape, part.dtype) == ("w[1]", (6, 4), DType.float32)
    np.testing.assert_array_equal(np.asarray(part), array[:, 4:])
    taken = rows.take(Buffer.from_numpy(array), 0)
    assert isinstance(taken, Buffer)
    assert taken.shape == (2, 8)
    with refuses(IndexError):
        rows.take(array, 3)
    with refuses(ValueError):
        columns.take(WeightData.from_numpy(array[:, 0].copy(), "w"), 0)


def test_a_strategy_takes_its_part_of_a_checkpoint(models: Path) -> None:
    with max_weights.load_weights(models / "minilm.safetensors") as weights:
        node = weights.encoder.layer[0].intermediate.dense.weight
        part = ShardingStrategy.rowwise(4).take(node, 1)
        assert part.name == "encoder.layer.0.intermediate.dense.weight[1]"
        assert part.data.is_mapped
        np.testing.assert_array_equal(np.asarray(part), np.asarray(node.data())[384:768])


def test_a_strategy_takes_whole_blocks_of_packed_weights() -> None:
    array = np.arange(6 * 72, dtype=np.uint16).astype(np.uint8).reshape(6, 72)
    q4_0 = QuantizationEncoding.Q4_0
    blocks = WeightData(array, "w", "uint8", (6, 72), q4_0)
    part = ShardingStrategy.columnwise(2).take(blocks, 1)
    assert (part.shape, part.logical_shape, part.quantization_encoding) == ((6, 36), (6, 64), q4_0)
    np.testing.assert_array_equal(np.asarray(part), array[:, 36:])


def test_bytes_that_do_not_say_how_they_are_packed_are_cut_too() -> None:
    array = np.arange(6 * 72, dtype=np.uint16).astype(np.uint8).reshape(6, 72)
    weight = declared([6, 72], S.columnwise(2), "uint8", quantization_encoding=QuantizationEncoding.Q4_0)
    second = weight.shard(["gpu:0", "gpu:1"])[1]
    for value in (array, WeightData.from_numpy(array, "w")):
        np.testing.assert_array_equal(np.asarray(second.data_of(value)), array[:, 36:])
