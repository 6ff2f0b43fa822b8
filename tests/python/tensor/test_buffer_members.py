"""Members of `Buffer` as in MAX's driver: constructors, filling, printing; and conversion to Python's numbers."""

import operator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from max_weights import Buffer, DeviceError, DType, FileChangedError, load_weights
from max_weights.driver import CPU
from refusals import refuses


def test_the_constructor_takes_dtype_shape_and_device_and_gives_zeros() -> None:
    for buffer in (Buffer(DType.float32, (2, 3)), Buffer(dtype=DType.float32, shape=[2, 3], device=CPU())):
        assert (buffer.dtype, buffer.shape, buffer.device, buffer.is_host) == (DType.float32, (2, 3), CPU(), True)
        np.testing.assert_array_equal(buffer.to_numpy(), np.zeros((2, 3), np.float32))
    with pytest.raises(TypeError):
        Buffer((2, 3), DType.float32)  # type: ignore[arg-type]


def test_a_scalar_has_a_value_and_no_dimension() -> None:
    scalar = Buffer.scalar(5, DType.int32, CPU())
    assert (scalar.shape, scalar.dtype, scalar.item()) == ((), DType.int32, 5)
    assert Buffer.scalar(0.5, DType.bfloat16).item() == 0.5
    with pytest.raises(OverflowError):
        Buffer.scalar(300, DType.uint8)


@pytest.mark.parametrize("device", ["cpufoo", "cpu:7", "gpu", "gpu:0"])
def test_a_device_that_is_not_there_is_refused_everywhere(device: str) -> None:
    buffer = Buffer(DType.float32, (2,))
    for use in (buffer.to, lambda there: Buffer(DType.int8, (1,), there), lambda there: Buffer.scalar(1, "i8", there)):
        with pytest.raises(DeviceError):
            use(device)


def test_inplace_copy_from_fills_this_tensor() -> None:
    target, source = Buffer(DType.float32, (2, 3)), np.arange(6, dtype=np.float32).reshape(3, 2)
    target.inplace_copy_from(Buffer.from_numpy(source))  # as many elements; MAX asks for no more
    np.testing.assert_array_equal(target.to_numpy().reshape(3, 2), source)
    target.inplace_copy_from(source.reshape(2, 3)[::-1])
    np.testing.assert_array_equal(target.to_numpy(), source.reshape(2, 3)[::-1])
    for bad in (np.zeros((2, 3)), np.zeros(5, np.float32)):
        with refuses(ValueError):
            target.inplace_copy_from(Buffer.from_numpy(bad))


def test_a_tensor_that_is_copied_from_itself_stays_as_it_is() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    buffer = Buffer.from_numpy(array)
    for same in (buffer, Buffer.from_numpy(array), array, buffer[:]):
        buffer.inplace_copy_from(same)
    np.testing.assert_array_equal(array, np.arange(6).reshape(2, 3))
    with refuses(ValueError):
        buffer.inplace_copy_from(buffer.view(DType.float32, (3, 2)))


@pytest.mark.parametrize("make", ["array", "mapped"])
def test_writing_to_a_contiguous_copy_changes_nothing_else(make_file: Any, make: str) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    buffer = Buffer.from_numpy(array) if make == "array" else load_weights(make_file({"w": array})).w.data().to_buffer()
    for part in (buffer, buffer[:, ::2], buffer[0]):
        for copied in (part.contiguous(), part.copy(), part.copy(CPU()), part.copy(device="cpu")):
            assert copied.is_contiguous
            np.testing.assert_array_equal(copied.to_numpy(), part.to_numpy())
            copied[...] = 9
            np.testing.assert_array_equal(buffer.to_numpy(), np.arange(6).reshape(2, 3))


def test_a_tensor_goes_to_several_devices_at_once() -> None:
    buffer = Buffer(DType.float32, (2,))
    assert buffer.to([]) == []
    for devices in ([CPU(), CPU()], (CPU(),)):
        there = buffer.to(devices)
        assert isinstance(there, list)
        assert [copy._data_ptr() for copy in there] == [buffer._data_ptr()] * len(devices)
    with pytest.raises(DeviceError):
        buffer.to([CPU(), "gpu:7"])  # type: ignore[call-overload]
    with pytest.raises(DeviceError):
        buffer.copy("cpu:7")


def test_mmap_maps_a_file_of_bare_elements(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    np.arange(12, dtype=np.float32).tofile(path)
    before = path.read_bytes()
    mapped = Buffer.mmap(path, DType.float32, (3, 4))
    assert mapped.is_mapped
    np.testing.assert_array_equal(mapped.to_numpy(), np.fromfile(path, np.float32).reshape(3, 4))
    mapped[0, 0] = 9
    assert path.read_bytes() == before
    np.testing.assert_array_equal(Buffer.mmap(str(path), "float32", 2, offset=8).to_numpy(), [2, 3])
    Buffer.mmap(path, DType.float32, (3, 4), mode="r+")[0, 0] = 9
    assert np.fromfile(path, np.float32)[0] == 9
    with refuses(ValueError):
        Buffer.mmap(path, DType.float32, (30, 4))
    with pytest.raises(FileNotFoundError):
        Buffer.mmap(tmp_path / "none", DType.float32, 1)
    with pytest.raises(ValueError, match="mode"):
        Buffer.mmap(path, DType.float32, 1, mode="x")  # type: ignore[arg-type]


def test_print_shows_the_values_and_repr_what_it_is() -> None:
    small = Buffer.from_numpy(np.arange(4, dtype=np.int32).reshape(2, 2))
    text = "Buffer([[0 1]\n        [2 3]], dtype=DType.int32, shape=(2, 2), device=cpu:0)"
    assert str(small) == text
    assert repr(small) == "Buffer([2, 2])"
    large = str(Buffer.from_numpy(np.arange(100000, dtype=np.float32)))
    assert large.startswith("Buffer([0.0000e+00 1.0000e+00 2.0000e+00 ... 9.9997e+04")
    assert len(large) < 200
    assert "[0.5 -1]" in str(Buffer.from_numpy(np.array([0.5, -1], np.float32)).astype("bfloat16"))
    packed = Buffer(DType.float4_e2m1fn, (4,))
    assert str(packed) == "Buffer(dtype=DType.float4_e2m1fn, shape=(4,), device=cpu:0)"


def test_print_of_a_truncated_file_is_an_error_and_no_signal(make_file: Any) -> None:
    path = make_file({"w": np.zeros(100_000, np.float32)})
    buffer = load_weights(path).w.data().to_buffer()
    with path.open("r+b") as file:
        file.truncate(200)
    with pytest.raises(FileChangedError):
        str(buffer.view(DType.float32)), buffer.copy()


NUMBERS = [("uint8", 55), ("int32", 1234), ("int64", -5), ("bool", 1), ("float32", 2.5), ("bfloat16", 1.5)]


@pytest.mark.parametrize(("dtype", "value"), NUMBERS)
def test_a_number_of_a_buffer_is_its_value(dtype: str, value: float) -> None:
    buffer = Buffer.scalar(value, dtype)
    assert int(buffer) == int(value)
    assert float(buffer) == value
    assert complex(buffer) == value
    assert bool(buffer)
    if dtype.startswith(("int", "uint")):
        assert operator.index(buffer) == value
        assert list(range(60))[Buffer.scalar(3, dtype)] == 3  # type: ignore[call-overload]
    else:
        with refuses(TypeError):
            operator.index(buffer)
    many = Buffer(DType.float32, (2,))
    for convert in (int, float, complex, operator.index):
        with refuses(TypeError):
            convert(many)


def test_a_dtype_object_of_any_framework_is_taken_where_a_dtype_is() -> None:
    import jax.numpy as jnp
    import ml_dtypes
    import torch

    kinds = {
        DType.float16: [np.float16, np.dtype(np.float16), torch.float16, jnp.float16, "float16"],
        DType.bfloat16: [torch.bfloat16, jnp.bfloat16, ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16)],
        DType.int64: [np.int64, torch.int64, jnp.int64],
        DType.float8_e4m3fn: [torch.float8_e4m3fn, jnp.float8_e4m3fn, ml_dtypes.float8_e4m3fn],
    }
    values = Buffer.from_numpy(np.array([0, 1], np.float32))
    for dtype, spellings in kinds.items():
        for spelling in spellings:
            assert values.astype(spelling).dtype is dtype
            assert Buffer(spelling, (2,)).dtype is dtype
            assert Buffer.zeros((2,), spelling).dtype is dtype
            assert Buffer.scalar(1, spelling).dtype is dtype
            assert Buffer(dtype, (2,)).view(spelling).dtype is dtype
