"""What Python asks of a tensor: numbers, indices, devices, outputs, and invalid arguments."""

import operator
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import max_weights
from max_weights import DeviceError, DType, FileChangedError, WeightData, dequantize, quantize, scale_blocks
from max_weights._quantization import QuantizationEncoding
from max_weights.driver import CPU, Buffer, Device
from max_weights.graph import DeviceRef
from refusals import refuses

Make = Callable[..., Path]


def of(value: Any, dtype: Any = None) -> Buffer:
    return Buffer.from_numpy(np.array(value, dtype))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_numbers_are_the_value_and_not_the_bytes_read_as_text(shape: tuple[int, ...]) -> None:
    for value, dtype in ((55, "u1"), (875770417, "i4"), (-3, "i8"), (2**63, "u8")):
        buffer = of(np.full(shape, value, dtype))
        assert (int(buffer), float(buffer), complex(buffer), operator.index(buffer)) == (value, value, value, value)
        assert bool(buffer)
    for number in (-2.75, 0.0, float("inf")):
        buffer = of(np.full(shape, number))
        assert (float(buffer), complex(buffer), bool(buffer)) == (number, number, bool(number))
    half = of(np.full(shape, 2.5, ml_dtypes.bfloat16))
    assert (int(half), float(half), complex(half)) == (2, 2.5, 2.5)
    assert complex(of(np.full(shape, 1 + 2j, "c8"))) == 1 + 2j
    assert (int(of(np.full(shape, True))), [10, 20][of(np.full(shape, 1, "i2"))]) == (1, 20)


def test_what_is_no_number_is_a_type_error() -> None:
    for convert in (int, float, complex, operator.index):
        for buffer in (of([1, 2]), of(np.zeros((0,)))):
            with refuses(TypeError):
                convert(buffer)
    for buffer in (of(1.0), of(True)):
        with refuses(TypeError):
            operator.index(buffer)
    for convert in (int, float):
        with refuses(TypeError):
            convert(of(1j, "c8"))


def test_a_number_of_a_truncated_file_is_an_error(make_file: Make) -> None:
    path = make_file({"w": np.arange(4096, dtype=np.int64)})
    last = max_weights.load_weights(path).w.data().data[-1]
    assert int(last) == 4095
    os.truncate(path, 4096)
    for convert in (int, float, complex, operator.index, bool):
        with refuses(FileChangedError, "file.truncated"):
            convert(last)


def test_a_value_is_in_a_tensor_as_in_an_array() -> None:
    array = np.array([[1.0, 2.5], [np.nan, 0.0]], np.float32)
    buffer = of(array)
    for value in (1, 1.0, 2.5, 3.0, np.nan, np.float32(0), True, None):
        assert (value in buffer) == (value in array), value
    assert 2 in of([1, 2], ml_dtypes.bfloat16)
    assert 1 not in of(np.zeros((0, 3)))


def test_a_tensor_changes_so_it_is_no_key_and_equals_only_itself() -> None:
    buffer = of([1, 2])
    with pytest.raises(TypeError, match="unhashable"):
        hash(buffer)
    assert buffer == buffer
    assert buffer != of([1, 2])


def test_slices_are_of_integers() -> None:
    buffer = of(np.arange(8))
    for key in (slice(1.5, 2), slice(None, "2"), slice(None, None, 2.0), (slice(0, 1.0),)):
        with refuses(TypeError):
            buffer[key]
    assert buffer[np.int8(1) : np.uint64(3)].to_numpy().tolist() == [1, 2]

    class Broken:
        def __index__(self) -> int:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        buffer[Broken() :]


@pytest.mark.parametrize("value", [True, False, np.True_, 1.0, np.int64(1), 1 + 0j], ids=repr)
def test_what_only_equals_a_dtypes_number_is_no_dtype(value: Any) -> None:
    for use in (DType, of([1.0]).astype, of([1.0]).view, lambda value: Buffer.zeros([1], value)):
        with refuses((TypeError, ValueError)):
            use(value)
    assert DType(81) is DType.float32


class Listed:
    """A sequence that lies about its length."""

    def __init__(self, length: int, items: list[Any]) -> None:
        self.length, self.items = length, items

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


@pytest.mark.parametrize("length", [2**62, 2**40, 0, 1])
def test_a_shape_that_lies_about_its_length_is_read_item_by_item(length: int) -> None:
    shape: Any = Listed(length, [2, 3])
    assert Buffer.zeros(shape, "float32").shape == (2, 3)
    assert of(np.zeros(6)).view("float64", shape).shape == (2, 3)
    core: Any = max_weights._core
    blocks = of(np.zeros(34, np.uint8))
    assert core._buffer_of_bytes(bytes(6), DType.uint8, shape).shape == (2, 3)
    with pytest.raises(max_weights.MissingFileError):
        core.open_weights(Listed(length, ["no such file"]))
    with refuses(ValueError):
        core.dequantize(blocks, QuantizationEncoding.Q8_0, "float32", shape)


def test_a_shape_is_integers() -> None:
    class Endless:
        def __iter__(self) -> Iterator[str]:
            yield "2"

    for shape in ("12", 3, [1.0], [None], {"a": 1}, Endless()):
        with pytest.raises(TypeError):
            Buffer.zeros(shape, "float32")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "device", ["cpufoo", "cpu:7", "cpu:", "cpu:00", "gpu", "", CPU(7), Device("gpu"), 3, "x" * 999]
)
def test_a_device_that_is_not_there_is_an_error_that_names_those_that_are(device: Any) -> None:
    with refuses(DeviceError) as caught:
        of([1]).to(device)
    assert len(str(caught.value)) < 200
    with pytest.raises(DeviceError):
        Buffer.zeros([1], "float32", device)


def test_the_device_that_is_there_has_several_names() -> None:
    buffer = of([1])
    for device in ("cpu", "cpu:0", CPU(), Device("cpu"), DeviceRef.CPU(), torch.device("cpu")):
        assert buffer.to(device) is buffer


def fields() -> np.ndarray:
    return np.zeros(4, [("tag", "u1"), ("value", "f4")])["value"]


def read_only() -> np.ndarray:
    array = np.zeros(4, "f4")
    array.flags.writeable = False
    return array


UNFIT: dict[str, Callable[[], Any]] = {
    "a field of a structured array": fields,
    "bytes in the other order": lambda: np.zeros(4, ">f4"),
    "read-only": read_only,
    "a scalar": lambda: np.float32(0),
    "a weight over a field": lambda: WeightData(fields(), "w", DType.float32, [4]),
    "read-only bytes": lambda: Buffer.from_numpy(np.frombuffer(bytes(16), "f4")),
    "not contiguous": lambda: np.zeros(8, "f4")[::2],
}


@pytest.mark.parametrize("name", UNFIT)
def test_out_that_cannot_be_written_in_place_is_refused(name: str) -> None:
    values = Buffer.from_numpy(np.arange(4.0))
    with refuses(ValueError):
        values.astype("float32", out=UNFIT[name]())
    with refuses(ValueError):
        WeightData(values, "v", DType.float64, [4]).astype("float32", out=UNFIT[name]())
    blocks = quantize(np.ones(32, np.float32), "Q8_0")
    with refuses(ValueError):
        dequantize(blocks, "Q8_0", out=UNFIT[name]())


def test_a_producer_that_hands_over_a_copy_of_out_is_refused() -> None:
    class Copies:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self, **_: Any) -> Any:
            return Buffer.zeros([4], "float32").__dlpack__(max_version=(1, 0), copy=True)

    with refuses(BufferError):
        Buffer.from_numpy(np.arange(4.0)).astype("float32", out=Copies())


def test_out_that_can_be_written_in_place_is_written() -> None:
    values = Buffer.from_numpy(np.arange(4.0))
    tensor = torch.zeros(4)
    old = torch.zeros(4)

    class Old:
        """From before DLPack 1."""

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self) -> Any:
            return old.__dlpack__()

    record = np.zeros(4, [("a", "f4"), ("b", "f4")])
    weight = WeightData(np.zeros(4, np.float32), "w", DType.float32, [4])
    array = np.zeros((1, 4), np.float32)
    own = Buffer.zeros([4], "float32")
    for out in (tensor, Old(), weight, array[0], own):
        values.astype("float32", out=out)
    for written in (tensor, old, weight, array[0], own):
        assert np.asarray(written).tolist() == [0, 1, 2, 3]
    scalar = np.zeros((), np.float32)
    values[3].astype("float32", out=scalar)
    assert scalar == 3
    with refuses(ValueError):
        values.astype("float32", out=record["b"])


def test_blocks_take_a_weight_of_a_checkpoint_as_it_is(make_file: Make) -> None:
    rows = np.arange(64, dtype=np.float32).reshape(2, 32)
    weights = max_weights.load_weights(make_file({"w": rows, "s": np.full((1, 1), 2, np.float32)}))
    assert bytes(quantize(weights.w, "Q8_0")) == bytes(quantize(rows, "Q8_0"))
    scaled = scale_blocks(weights.w, weights["s"], dtype="float32")
    assert np.array_equal(scaled.to_numpy(), rows * 2)
    with pytest.raises(max_weights.WeightNotFoundError):
        quantize(weights.wieght, "Q8_0")


CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "np.array": lambda value: np.array(value, copy=True),
    "np.array of another dtype": lambda value: np.array(value, "f8"),
    "np.asarray of another dtype": lambda value: np.asarray(value, "f8"),
    "np.asarray": np.asarray,
    "memoryview": memoryview,
    "bytes": bytes,
    "in": lambda value: 3 in value,
}


@pytest.mark.parametrize("how", CONVERSIONS)
@pytest.mark.parametrize("part", ["whole", "strided", "weight"])
def test_numpys_copies_of_a_truncated_file_are_an_error_too(make_file: Make, how: str, part: str) -> None:
    """Only if it was truncated before they begin, as docs/security.md says."""
    path = make_file({"w": np.arange(4096, dtype=np.float32)})
    weight = max_weights.load_weights(path).w.data()
    value = {"whole": weight.data, "strided": weight.data[::2], "weight": weight}[part]
    if (part, how) in {("weight", "memoryview"), ("weight", "bytes"), ("weight", "in"), ("strided", "bytes")}:
        return  # it has no such entry point
    CONVERSIONS[how](value)
    os.truncate(path, 8192)
    with refuses(FileChangedError, "file.truncated"):
        CONVERSIONS[how](value)
    if part == "whole":
        assert np.array(weight.data[:100])[99] == 99, "what the file still has"
    path.unlink()  # the mapping keeps a removed file, of which nothing is known
    weight.data[:100].to_numpy().sum()
