"""Buffer: its entry points (NumPy, the buffer protocol, DLPack both ways) and NumPy's basic indexing."""

import copy
import ctypes
import gc
import pickle
import weakref
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from max_weights import DType
from max_weights.driver import CPU, Buffer, Device, DLPackArray, Tensor
from max_weights.errors import DeviceError, UnsupportedError
from refusals import refuses

NUMPY_DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8"]
SMALL_FLOATS = ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]


def counted(dtype: Any, shape: tuple[int, ...] = (2, 3, 4)) -> np.ndarray:
    return (np.arange(np.prod(shape)).reshape(shape) % 2).astype(dtype)


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_numpy_round_trip_shares_memory(dtype: str) -> None:
    array = counted(dtype)
    buffer = Buffer.from_numpy(array)
    back = buffer.to_numpy()
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)
    assert np.shares_memory(back, array)
    assert np.array_equal(np.asarray(buffer), array)
    assert np.array_equal(np.asarray(memoryview(buffer)) if dtype != "c8" else back, array)
    assert buffer.dtype == DType.from_numpy(array.dtype)


@pytest.mark.parametrize("name", SMALL_FLOATS)
def test_small_floats_reach_numpy_through_ml_dtypes_but_not_the_buffer_protocol(name: str) -> None:
    array = counted(getattr(ml_dtypes, name))
    buffer = Buffer.from_numpy(array)
    assert buffer.dtype == DType[name]
    assert buffer.to_numpy().dtype == array.dtype
    assert buffer.to_numpy().tobytes() == array.tobytes()
    with refuses(BufferError):
        memoryview(buffer)
    assert bytes(memoryview(buffer.view(DType.uint8))) == array.tobytes()


@pytest.mark.parametrize(
    "order", ["transposed", "reversed", "stepped", "record field", "other byte order", "0-d", "empty", "read-only"]
)
def test_arrays_of_every_layout_come_in(order: str) -> None:
    base = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    record = np.zeros(5, dtype=[("a", "u1"), ("b", "f4")])
    record["b"] = np.arange(5)
    array: Any = {
        "transposed": base.T,
        "reversed": base[::-1, :, ::-1],
        "stepped": base[:, ::2, 1::2],
        "record field": record["b"],
        "other byte order": base.astype(">i4"),
        "0-d": np.float64(3.5),
        "empty": base[:, :0],
        "read-only": np.frombuffer(b"abcd", np.uint8),
    }[order]
    buffer = Buffer.from_numpy(array)
    assert buffer.shape == np.shape(array)
    assert np.array_equal(buffer.to_numpy(), array)
    assert np.array_equal(buffer.contiguous().to_numpy(), array)
    assert np.array_equal(
        torch.from_dlpack(buffer.contiguous()).numpy() if order != "reversed" else buffer.copy(), array
    )
    assert buffer.is_writable == (order != "read-only")


def test_what_no_dtype_stands_for_is_refused() -> None:
    for value in (np.array(["text"]), np.array([object()]), np.zeros(2, "datetime64[s]"), np.zeros(2, "f4,i4")):
        with refuses(ValueError):
            Buffer.from_numpy(value)
    with refuses(TypeError):
        Buffer.from_numpy([1, 2])


index_parts = st.one_of(
    st.integers(-5, 5),
    st.builds(slice, *[st.none() | st.integers(-7, 7)] * 2, st.none() | st.integers(-3, 3).filter(bool)),
    st.just(Ellipsis),
    st.none(),
)


@given(
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5), st.lists(index_parts, max_size=5), st.booleans()
)
def test_basic_indexing_equals_numpys(shape: tuple[int, ...], key: list[Any], transposed: bool) -> None:
    array = np.arange(np.prod(shape, dtype=int), dtype=np.int16).reshape(shape)
    array = array.T if transposed else array
    buffer = Buffer.from_numpy(array)
    index = tuple(key)
    try:
        expected: Any = array[index]
    except IndexError:
        with pytest.raises(IndexError):
            buffer[index]
        return
    found = buffer[index]
    assert found.shape == np.shape(expected)
    assert np.array_equal(found.to_numpy(), expected)
    assert np.array_equal(found.copy().to_numpy(), expected)
    assert found.is_contiguous == np.asarray(expected).flags.c_contiguous
    if found.num_elements and np.shape(expected):
        assert np.shares_memory(found.to_numpy(), array)


def test_advanced_indexing_is_refused_by_name() -> None:
    buffer = Buffer.zeros((3,), DType.float32)
    for key in ([0, 1], np.array([True, False, True]), True, 1.0, "a"):
        with refuses(TypeError):
            buffer[key]
    with pytest.raises(IndexError):
        buffer[10**30]
    assert buffer[-(10**30) : 10**30].shape == (3,)


def test_assignment_iteration_and_item() -> None:
    buffer = Buffer.zeros((2, 2), "f32")
    buffer[0] = [1, 2]
    buffer[1, 1] = 4
    assert [row.to_numpy().tolist() for row in buffer] == [[1, 2], [0, 4]]
    assert buffer[1, 1].item() == 4
    assert len(buffer) == 2
    assert bool(buffer[1, 1])
    with refuses(ValueError):
        buffer.item()
    with refuses(ValueError):
        bool(buffer)


def test_properties_and_repr() -> None:
    buffer = Buffer.zeros((5, 10), DType.float32)
    assert repr({"w": buffer}) == "{'w': Buffer([5, 10])}"
    assert (buffer.rank, buffer.num_elements, buffer.element_size, buffer.nbytes) == (2, 50, 4, 200)
    assert buffer.device == CPU() == Device("cpu", 0)
    assert buffer._data_ptr() % 64 == 0
    assert isinstance(buffer, DLPackArray)
    assert Tensor is Buffer
    assert buffer.to(CPU()) is buffer
    with refuses(DeviceError, "device.failed"):
        buffer.to(Device("gpu"))


def test_views_of_other_dtypes() -> None:
    buffer = Buffer.from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert buffer.view(DType.uint8).shape == (2, 12)
    assert buffer.view("int32").shape == (2, 3)
    assert buffer.view(DType.uint16, (12,)).shape == (12,)
    assert buffer.view(DType.float64, (3,)).shape == (3,)
    for dtype, shape in (
        (DType.float64, None),
        (DType.float32, (5,)),
        (DType.float32, (-6,)),
        (DType.float32, (2**62, 4)),
    ):
        with refuses(ValueError):
            buffer.view(dtype, shape)
    with refuses(ValueError):
        buffer[:, 1].view(DType.uint8)


def test_packed_four_bit_elements_reach_torch_in_pairs_and_numpy_as_bytes() -> None:
    raw = Buffer.from_numpy(np.arange(8, dtype=np.uint8).reshape(2, 4))
    packed = raw.view(DType.float4_e2m1fn)
    assert packed.shape == (2, 8)
    assert packed.nbytes == 8
    tensor = torch.from_dlpack(packed)
    assert tensor.dtype == torch.float4_e2m1fn_x2
    assert tensor.shape == (2, 4)
    back = Buffer.from_dlpack(tensor)
    assert back.shape == (2, 8)
    assert bytes(back.view(DType.uint8)) == bytes(range(8))
    column = torch.arange(3, dtype=torch.uint8).reshape(3, 1).view(torch.float4_e2m1fn_x2)
    assert Buffer.from_dlpack(column).shape == (3, 2)
    assert bytes(Buffer.from_dlpack(column).view(DType.uint8)) == b"\0\1\2"
    with refuses(UnsupportedError, "unsupported.dtype"):
        packed.to_numpy()
    with refuses(ValueError):
        packed[0]
    with refuses(ValueError):
        _ = packed.element_size
    six_bits = Buffer.from_numpy(np.zeros(3, np.uint8)).view(DType.float6_e2m3fn, (4,))
    with refuses(BufferError):
        six_bits.__dlpack__()


@pytest.mark.parametrize("max_version", [None, (0, 8), (1, 0), (1, 1), (2, 0)])
def test_dlpack_capsules_are_legacy_or_versioned_as_asked(max_version: tuple[int, int] | None) -> None:
    buffer = Buffer.from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::2])
    capsule = buffer.__dlpack__(max_version=max_version)
    versioned = max_version is not None and max_version >= (1, 0)
    assert ('"dltensor_versioned"' if versioned else '"dltensor"') in repr(capsule)
    tensor = torch.utils.dlpack.from_dlpack(capsule)
    assert tensor.tolist() == [[0, 2], [3, 5]]
    assert "used" in repr(capsule)


def test_a_capsule_that_nobody_takes_frees_its_tensor() -> None:
    class Watched(np.ndarray):
        pass

    for version in (None, (1, 0)):
        array = Watched((4,), np.uint32)
        alive = weakref.ref(array)
        capsule = Buffer.from_numpy(array).__dlpack__(max_version=version)
        del array
        gc.collect()
        assert alive() is not None
        del capsule
        gc.collect()
        assert alive() is None


def test_dlpack_refuses_what_it_cannot_say() -> None:
    read_only = Buffer.from_numpy(np.frombuffer(b"abcd", np.uint8))
    with refuses(BufferError):
        read_only.__dlpack__()
    assert read_only.__dlpack__(max_version=(1, 0)) is not None
    assert read_only.__dlpack__(copy=True) is not None
    buffer = Buffer.zeros((2,), DType.float32)
    with refuses(BufferError):
        buffer.__dlpack__(stream=1)
    with refuses(BufferError):
        buffer.__dlpack__(dl_device=(2, 0))
    copied = torch.utils.dlpack.from_dlpack(buffer.__dlpack__(copy=True, max_version=(1, 0)))
    copied[0] = 1
    assert buffer[0].item() == 0


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
        torch.arange(6, dtype=torch.float32).reshape(2, 3).T,
        torch.arange(4, dtype=torch.float32).expand(3, 4),
        torch.zeros(0, 3),
        torch.tensor(2.5),
        torch.arange(4).to(torch.float8_e4m3fn),
        torch.tensor([True, False]),
        torch.zeros(2, dtype=torch.complex64),
    ],
    ids=lambda tensor: f"{tensor.dtype}-{list(tensor.shape)}-{list(tensor.stride())}",
)
def test_torch_tensors_come_in_by_dlpack(tensor: torch.Tensor) -> None:
    buffer = Buffer.from_dlpack(tensor)
    assert buffer.dtype == DType.from_torch(tensor.dtype)
    assert buffer.shape == tuple(tensor.shape)
    assert bytes(buffer.copy().view(DType.uint8, (buffer.nbytes,))) == bytes(
        tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    )
    if tensor.numel():
        assert buffer._data_ptr() == tensor.data_ptr()
    del tensor
    gc.collect()
    assert buffer.copy().nbytes == buffer.nbytes


def test_numpy_and_jax_arrays_come_in_by_dlpack() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert np.array_equal(Buffer.from_dlpack(array).to_numpy(), array)
    assert np.array_equal(Buffer.from_dlpack(array[::-1, ::2]).to_numpy(), array[::-1, ::2])
    assert np.array_equal(Buffer.from_dlpack(jax.numpy.asarray(array)).to_numpy(), array)
    assert np.array_equal(np.from_dlpack(Buffer.from_numpy(array)), array)
    assert np.array_equal(jax.dlpack.from_dlpack(Buffer.zeros((64,), "f32")), np.zeros(64))


def test_a_producer_from_before_version_1_is_understood() -> None:
    class Old:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self, stream: Any = None) -> Any:
            return self.tensor.__dlpack__()

    assert Buffer.from_dlpack(Old(torch.arange(3))).to_numpy().tolist() == [0, 1, 2]


def test_hostile_producers_get_an_error() -> None:
    class Hostile:
        device = (1, 0)
        capsule: Any = None

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.device

        def __dlpack__(self, **_: Any) -> Any:
            return self.capsule

    hostile = Hostile()
    with refuses(BufferError):
        Buffer.from_dlpack(hostile)
    hostile.device = (2, 0)
    with refuses(BufferError):
        Buffer.from_dlpack(hostile)
    hostile.device = (1, 0)
    used = torch.arange(3).__dlpack__()
    torch.utils.dlpack.from_dlpack(used)
    hostile.capsule = used
    with refuses(BufferError):
        Buffer.from_dlpack(hostile)
    with pytest.raises(AttributeError):
        Buffer.from_dlpack(object())  # type: ignore[arg-type]


def test_the_buffer_protocol_serves_simple_consumers() -> None:
    buffer = Buffer.from_numpy(np.arange(4, dtype=np.uint16))
    assert bytes(buffer) == np.arange(4, dtype=np.uint16).tobytes()
    (ctypes.c_uint16 * 4).from_buffer(buffer)[0] = 9
    assert buffer[0].item() == 9
    view = memoryview(Buffer.from_numpy(np.arange(6, dtype=np.int32).reshape(2, 3)[:, ::2]))
    assert (view.shape, view.strides, view.format) == ((2, 2), (12, 8), "i")
    with refuses((BufferError, TypeError)):
        (ctypes.c_int32 * 4).from_buffer(Buffer.from_numpy(np.arange(8, dtype=np.int32)[::2]))
    with pytest.raises((BufferError, TypeError)):
        (ctypes.c_uint8 * 4).from_buffer(Buffer.from_numpy(np.frombuffer(b"abcd", np.uint8)))


def test_copies_are_independent_and_sizes_are_checked() -> None:
    buffer = Buffer.zeros((2, 2), DType.float32)
    for made in (buffer.copy(), copy.deepcopy(buffer)):
        made[0, 0] = 1
        assert buffer[0, 0].item() == 0
    shared = copy.copy(buffer)
    shared[0, 0] = 1
    assert buffer[0, 0].item() == 1
    for shape in ((-1,), (2**40, 2**40)):
        with refuses(ValueError):
            Buffer.zeros(shape, DType.float32)
    with pytest.raises(MemoryError):
        Buffer.zeros((2**45,), DType.float64)
    assert Buffer.zeros((), DType.int64).item() == 0
    assert Buffer.zeros((0, 5), DType.bfloat16).to_numpy().shape == (0, 5)


def test_a_device_pickles_and_compares() -> None:
    assert pickle.loads(pickle.dumps(Device("gpu", 1))) == Device("gpu", 1)
    assert repr(Device("gpu", 1)) == "gpu:1"
    for label, number in (("tpu", 0), ("cpu", -1)):
        with refuses(ValueError):
            Device(label, number)
    with pytest.raises(AttributeError):
        CPU().id = 3  # type: ignore[misc]
