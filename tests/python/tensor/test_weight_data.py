"""`WeightData` over NumPy arrays, buffers and torch tensors."""

import copy
import dataclasses
import gc
import sys
import weakref

import ml_dtypes
import numpy as np
import pytest
import torch

from max_weights.driver import Buffer, DLPackArray
from max_weights.dtype import DType
from max_weights.errors import UnsupportedError
from max_weights.graph.quantization import QuantizationEncoding
from max_weights.graph.shape import Shape
from max_weights.graph.weights import WeightData

DTYPES = [
    np.float32,
    np.float16,
    np.int8,
    np.uint64,
    np.bool_,
    np.complex64,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_an_array_and_back_without_a_copy(dtype: type, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    weight = WeightData.from_numpy(array, "w")
    assert weight.name == "w"
    assert weight.dtype is DType.from_numpy(dtype)
    assert type(weight.shape) is Shape
    assert weight.shape == shape
    assert weight.quantization_encoding is None
    again = np.asarray(weight)
    assert again.dtype == array.dtype
    assert again.shape == shape
    assert again.tobytes() == array.tobytes()
    assert array.size == 0 or np.shares_memory(again, array)


def test_foreign_byte_order_is_converted() -> None:
    array = np.array([1.5, -2.0], ">f4" if sys.byteorder == "little" else "<f4")
    weight = WeightData.from_numpy(array, "w")
    assert weight.dtype is DType.float32
    assert np.asarray(weight).dtype.isnative
    assert torch.from_dlpack(weight).tolist() == [1.5, -2.0]


def test_dtypes_without_a_counterpart_are_refused() -> None:
    with pytest.raises(ValueError, match="no counterpart"):
        WeightData.from_numpy(np.array(["a"]), "w")


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_torch_takes_it_by_dlpack(dtype: type) -> None:
    array = np.array([[1, 2], [3, 4]], dtype)
    weight = WeightData.from_numpy(array, "w")
    assert isinstance(weight, DLPackArray)
    tensor = torch.from_dlpack(weight)
    assert tensor.dtype == weight.dtype.to_torch()
    tensor[0, 0] = 9
    assert array[0, 0] == 9


def test_read_only_arrays_reach_torch_or_are_refused_by_name() -> None:
    array = np.array([1.0, 2.0], np.float32)
    array.flags.writeable = False
    weight = WeightData.from_numpy(array, "w")
    assert weight.to_buffer().to_numpy().tolist() == [1.0, 2.0]
    assert not np.asarray(weight).flags.writeable


def test_the_buffer_is_made_once() -> None:
    weight = WeightData.from_numpy(np.arange(3), "w")
    buffer = weight.to_buffer()
    assert isinstance(buffer, Buffer)
    assert buffer.shape == (3,)
    assert weight.to_buffer() is buffer is weight.data


def test_torch_tensors_are_data_too() -> None:
    tensor = torch.tensor([1.5, 2.0], dtype=torch.bfloat16)
    weight = WeightData(tensor, "w", DType.bfloat16, tensor.shape)
    assert np.asarray(weight).astype(np.float32).tolist() == [1.5, 2.0]
    assert weight.to_buffer()._data_ptr() == tensor.data_ptr()


def test_data_of_no_framework_is_refused_by_name() -> None:
    weight = WeightData([1, 2], "w", DType.int64, [2])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the data of weight 'w': list is not a tensor"):
        weight.to_buffer()


def test_array_protocol_converts_and_copies_on_request() -> None:
    array = np.arange(3, dtype=np.float32)
    over_array, over_buffer = WeightData.from_numpy(array, "w"), WeightData(Buffer.from_numpy(array), "w", "f32", [3])
    for weight in (over_array, over_buffer):
        assert np.asarray(weight, np.float64).dtype == np.float64
        assert not np.shares_memory(np.array(weight, copy=True), array)
        assert np.shares_memory(np.array(weight, copy=False), array)
        with pytest.raises(ValueError, match="copy"):
            np.array(weight, np.float64, copy=False)


def test_astype_of_the_same_dtype_is_the_weight_itself() -> None:
    weight = WeightData.from_numpy(np.zeros(3, np.float32), "layer.w")
    assert weight.astype(DType.float32) is weight
    assert weight.astype("f32") is weight
    assert weight.astype("f16") is not weight


def test_the_shape_may_be_any_iterable() -> None:
    data = Buffer.zeros((2, 3), "f32")
    for shape in ((2, 3), [2, 3], Shape([2, 3]), iter([2, 3])):
        assert WeightData(data, "w", DType.float32, shape).shape == (2, 3)
    weight = WeightData(data, "w", DType.float32, (2, 3))
    assert weight.shape is weight.shape
    weight.shape = [6]
    assert weight.shape == Shape([6])


@pytest.mark.parametrize(
    ("weight", "shown"),
    [
        (WeightData(None, "a", DType.float32, (6, 4)), "WeightData('a', DType.float32, [6, 4], 96 bytes)"),
        (WeightData(None, "a", DType.float4_e2m1fn, (3,)), "WeightData('a', DType.float4_e2m1fn, [3], 2 bytes)"),
        (WeightData(None, "a", DType.bool, ()), "WeightData('a', DType.bool, [], 1 byte)"),
        (WeightData(None, "a", DType.int8, (3, 1024, 512)), "WeightData('a', DType.int8, [3, 1024, 512], 1.6 MB)"),
        (WeightData(None, "a", DType.int8, (5, 2**40)), "WeightData('a', DType.int8, [5, 1099511627776], 5.5 TB)"),
        (WeightData(None, "a", DType.int8, ("n",)), "WeightData('a', DType.int8, [n], size not known)"),
        (
            WeightData(None, "a", DType.uint8, (144,), QuantizationEncoding.Q4_K),
            "WeightData('a', DType.uint8, [144], QuantizationEncoding.Q4_K, 144 bytes)",
        ),
    ],
)
def test_repr_says_dtype_shape_and_size(weight: WeightData, shown: str) -> None:
    assert repr(weight) == shown


def test_a_weight_equals_only_itself() -> None:
    array = np.arange(3)
    one, other = WeightData.from_numpy(array, "w"), WeightData.from_numpy(array, "w")
    assert one == one
    assert one != other
    assert len({one, other}) == 2


def test_nothing_keeps_the_array_but_the_weight() -> None:
    array = np.arange(3)
    alive = weakref.ref(array)
    weight = WeightData.from_numpy(array, "w")
    view = torch.from_dlpack(weight)
    del array, weight
    gc.collect()
    assert alive() is not None
    assert view.tolist() == [0, 1, 2]
    del view
    gc.collect()
    assert alive() is None


def test_weight_data_is_a_dataclass() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    weight = WeightData.from_numpy(array, "model.w")
    assert dataclasses.is_dataclass(WeightData)
    names = [field.name for field in dataclasses.fields(weight)]
    assert names[:5] == ["data", "name", "dtype", "shape", "quantization_encoding"]
    renamed = dataclasses.replace(weight, name="w")
    assert (renamed.name, renamed.data, renamed.shape, renamed.dtype) == ("w", array, [2, 3], DType.float32)
    reshaped = dataclasses.replace(weight, data=array.reshape(6), shape=(6,))
    assert type(reshaped.shape) is Shape
    assert reshaped.logical_shape == [6]
    if sys.version_info >= (3, 13):
        assert copy.replace(weight, name="w").name == "w"
    match weight:
        case WeightData(_, name, dtype, shape, encoding):
            assert (name, dtype, shape, encoding) == ("model.w", DType.float32, [2, 3], None)


def test_replacing_keeps_why_a_type_that_is_not_known_cannot_be_converted() -> None:
    problem = UnsupportedError("a type of the future")
    weight = WeightData(np.zeros(3, np.uint8), "w", DType.uint8, [3], refusal=problem)
    assert "future" not in repr(weight)
    with pytest.raises(UnsupportedError, match="of the future"):
        dataclasses.replace(weight, name="v").astype("float32")


def test_the_logical_shape_follows_shape_and_encoding() -> None:
    blocks = WeightData(np.zeros((3, 36), np.uint8), "w", "uint8", (3, 36), QuantizationEncoding.Q4_0)
    assert blocks.logical_shape == [3, 64]
    assert dataclasses.replace(blocks, shape=(2, 18)).logical_shape == [2, 32]
    assert dataclasses.replace(blocks, quantization_encoding=QuantizationEncoding.GPTQ).logical_shape == [3, 36]
    assert dataclasses.replace(blocks, quantization_encoding=None).logical_shape == [3, 36]


def test_size_rank_and_array() -> None:
    array = np.arange(6, dtype=np.float16).reshape(2, 3)
    weight = WeightData.from_numpy(array, "w")
    assert (weight.nbytes, weight.ndim) == (12, 2)
    assert np.shares_memory(weight.to_numpy(), array)
    assert WeightData(None, "w", DType.float4_e2m1fn, (3, 3)).nbytes == 5
    with pytest.raises(ValueError, match=r"'w' has the symbolic shape \[n, 4\]"):
        _ = WeightData(None, "w", "f32", ("n", 4)).nbytes


def test_brackets_give_a_view() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    for weight in (WeightData.from_numpy(array, "w"), WeightData(torch.from_numpy(array), "w", "f32", (3, 4))):
        part = weight[0:2]
        assert isinstance(part, Buffer)
        assert np.shares_memory(part.to_numpy(), array)
        assert (weight[1:, ..., None].to_numpy() == array[1:, ..., None]).all()
        assert weight[2, 3].item() == 11
        with pytest.raises(IndexError):
            weight[3]
