"""DLPack capsules of every kind, valid and invalid: a right tensor or a BufferError, and never foreign memory."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch

import max_weights
from max_weights import DType, FileChangedError
from max_weights.driver import Buffer
from random_entry_points import COPIED, READ_ONLY, Capsules, Producer
from refusals import refuses

Make = Callable[..., Path]
MEMORY = np.arange(16, dtype=np.float32)
DATA = MEMORY.ctypes.data


def test_capsules_made_at_random_are_a_right_tensor_or_refused() -> None:
    capsules = Capsules(seed=11)
    count = int(os.environ.get("MAX_WEIGHTS_RANDOM_CASES", "300")) * 50
    taken = sum(capsules.check(capsules.one()) for _ in range(count))
    assert count / 20 < taken < count


@pytest.mark.parametrize(
    "lie",
    [
        {"device": (2, 0)},
        {"device": (13, 1)},
        {"device": (0, 0)},
        {"data": 0},
        {"data": 0, "byte_offset": 64},
        {"byte_offset": 2**64 - 1},
        {"data": 2**64 - 8},
        {"shape": [2**62, 4], "strides": [0, 0]},
        {"shape": [4], "strides": [2**62]},
        {"shape": [-1]},
        {"shape": None, "rank": 1},
        {"shape": [1] * 65},
        {"rank": -1},
        {"lanes": 4},
        {"bits": 24},
        {"version": (2, 0)},
    ],
    ids=str,
)
@pytest.mark.parametrize("versioned", [True, False])
def test_a_producer_that_lies_is_refused_and_gets_its_memory_back(lie: dict[str, Any], versioned: bool) -> None:
    producer = Producer(**{"data": DATA, "versioned": versioned, **lie})
    if "version" in lie and not versioned:
        return  # it reports none
    with pytest.raises(BufferError):
        Buffer.from_dlpack(producer)
    assert producer.deleted == int(producer.taken)


@pytest.mark.parametrize("device", [(2**40, 0), (1, -(2**63)), "cpu", None, (1,), (1.5, 0), (1, 0, 0)], ids=repr)
def test_a_device_that_is_no_device_is_refused(device: Any) -> None:
    producer = Producer(data=DATA)
    producer.device_text = device
    with refuses(BufferError):
        Buffer.from_dlpack(producer)
    assert producer.capsule is None


def test_no_data_is_fine_where_there_are_no_elements() -> None:
    buffer = Buffer.from_dlpack(Producer(data=0, shape=[0, 3]))
    assert (buffer.shape, buffer.nbytes) == ((0, 3), 0)
    assert torch.from_dlpack(buffer).shape == (0, 3)


def test_unversioned_capsules_arrive_read_only_as_numpy_takes_them() -> None:
    for producer, writable in (
        (Producer(data=DATA, versioned=False), False),
        (Producer(data=DATA), True),
        (Producer(data=DATA, flags=READ_ONLY), False),
        (Producer(data=DATA, flags=COPIED), True),
    ):
        buffer = Buffer.from_dlpack(producer)
        assert buffer.is_writable == writable
        assert buffer.to_numpy().flags.writeable == writable
        assert np.from_dlpack(producer).flags.writeable == writable


class OldTorch(torch.Tensor):
    """From a torch without versioned capsules."""

    def __dlpack__(self) -> Any:  # type: ignore[override]
        return super().__dlpack__()


class OldArray(np.ndarray):
    """From a NumPy without versioned capsules."""

    def __dlpack__(self) -> Any:  # type: ignore[override]
        return super().__dlpack__()


def test_old_torch_and_old_numpy_make_capsules_of_writable_memory_only() -> None:
    tensor, array = torch.zeros(2).as_subclass(OldTorch), np.zeros(2).view(OldArray)
    for producer in (tensor, array):
        buffer = Buffer.from_dlpack(producer)
        buffer[1] = 7
        assert np.asarray(buffer).tolist() == [0, 7]
        assert buffer.__dlpack__() is not None, "and it leaves as it came"
    assert tensor.tolist() == array.tolist() == [0, 7]
    array.flags.writeable = False
    with pytest.raises((BufferError, ValueError)):
        Buffer.from_dlpack(array)


def test_jax_arrays_arrive_read_only_and_stay_as_they_are() -> None:
    array = jax.numpy.arange(4.0)
    buffer = Buffer.from_dlpack(array)
    assert not buffer.is_writable
    with pytest.raises(ValueError, match="read-only"):
        buffer[0] = 9
    with refuses(ValueError):
        Buffer.zeros([4], "float64").astype("float32", out=array)
    assert array.tolist() == [0, 1, 2, 3]
    assert Buffer.from_dlpack(array, copy=True).is_writable


def test_torch_tensors_arrive_writable() -> None:
    tensor = torch.zeros(4)
    Buffer.from_dlpack(tensor)[1] = 5
    assert tensor.tolist() == [0, 5, 0, 0]


def test_negative_strides_are_not_handed_out_by_dlpack_but_by_the_buffer_protocol() -> None:
    """Torch may abort the process for them, and the consumer of a capsule is unknown."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    for key in (np.s_[::-1], np.s_[:, ::-1], np.s_[::-1, ::-2]):
        buffer = Buffer.from_dlpack(array[key])  # they come in
        with refuses(BufferError):
            torch.from_dlpack(buffer)
        with refuses(BufferError):
            np.from_dlpack(buffer)
        for out in (buffer.to_numpy(), np.asarray(buffer), np.asarray(memoryview(buffer))):
            assert np.array_equal(out, array[key])
        assert torch.from_dlpack(buffer.contiguous()).tolist() == array[key].tolist()
        assert np.array_equal(np.from_dlpack(buffer, copy=True), array[key])
    for short in (array[:1][::-1], array[:, :0][::-1, ::-1], array[:, 1:2][:, ::-1]):  # no strides are negative
        assert torch.from_dlpack(Buffer.from_numpy(short)).tolist() == short.tolist()


def test_tensors_of_ours_that_come_back_still_know_their_file(make_file: Make) -> None:
    path = make_file({"w": np.arange(4096, dtype=np.float32), "v": ("BF16", [2], b"1234")})
    weights = max_weights.load_weights(path)
    for producer in (weights.w, weights.w.data(), weights.w.data().data):
        assert Buffer.from_dlpack(producer).is_mapped
        copied = Buffer.from_dlpack(producer, copy=True)
        assert not copied.is_mapped
        assert copied[7].item() == 7
    lazy = weights.v.allocate(DType.float32)
    assert Buffer.from_dlpack(weights.allocated_weights[lazy.name]).dtype is DType.float32
    kept = weights.w.data()
    os.truncate(path, 4096)
    for producer in (weights.w, kept, kept.data):
        with refuses(FileChangedError, "file.truncated"):
            Buffer.from_dlpack(producer, copy=True)


SUBINTERPRETER = """
import sys
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
main_first = sys.argv[1] == "main first"
if main_first:
    from max_weights import DType, load_weights
    from max_weights.driver import Buffer
    Buffer.zeros([2], "float32").astype("bf16")
sub = interpreters.create()
problem = interpreters.run_string(sub, '''
try:
    import max_weights._core
except ImportError as error:
    assert "subinterpreter" in str(error), error  # from 3.12 on Python says so itself
else:
    raise AssertionError("imported")
try:
    import max_weights
    max_weights.Buffer
except ImportError as error:
    assert "subinterpreter" in str(error), error  # from 3.12 on Python says so itself
else:
    raise AssertionError("imported")
''')
assert problem is None, problem
interpreters.destroy(sub)
import numpy as np
from max_weights import DType, load_weights
from max_weights.driver import Buffer
buffer = Buffer.zeros([2], "float32")
assert buffer.astype("float64").dtype is DType.float64
assert np.asarray(buffer).tolist() == [0, 0] and buffer.device.label == "cpu"
try:
    buffer.view("nonsense")
except ValueError:
    print("works")
"""


@pytest.mark.parametrize("order", ["main first", "subinterpreter first"])
def test_a_subinterpreter_is_refused_and_the_main_one_works_afterwards(order: str) -> None:
    done = subprocess.run([sys.executable, "-c", SUBINTERPRETER, order], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "works\n", "")
