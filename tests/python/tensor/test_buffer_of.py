"""`Buffer.of`: one way from any tensor to a `Buffer`, over the same memory, with one set of errors."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

from max_weights import Buffer, DType, WeightData, load_weights, save_file
from max_weights.errors import ArgumentError
from refusals import refuses


def test_a_buffer_is_itself() -> None:
    buffer = Buffer.zeros([2], DType.float32)
    assert Buffer.of(buffer) is buffer


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=np.int32).reshape(2, 3),
        np.arange(6, dtype=np.int32).reshape(2, 3)[:, ::-1],
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3),
        torch.arange(6).reshape(2, 3),
        torch.arange(6, dtype=torch.bfloat16).reshape(3, 2).T,
        jnp.arange(6, dtype=jnp.float32).reshape(2, 3),
    ],
    ids=["numpy", "reversed", "big-endian", "ml_dtypes", "torch", "transposed", "jax"],
)
def test_tensors_of_every_library_have_their_elements(value: Any) -> None:
    buffer = Buffer.of(value)
    assert buffer.shape == tuple(value.shape)
    expected = value.float().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    assert np.array_equal(buffer.astype(DType.float64).to_numpy(), expected.astype(np.float64))


def test_memory_is_shared() -> None:
    array, tensor = np.zeros(3, np.float32), torch.zeros(3)
    Buffer.of(array)[0] = 1
    Buffer.of(tensor)[0] = 2
    assert (array[0], tensor[0]) == (1, 2)


def test_a_parameter_of_torch_is_taken_without_its_history() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    buffer = Buffer.of(parameter)
    buffer[0] = 5
    assert parameter[0] == 5


def test_weights_and_their_data_have_the_same_tensor(tmp_path: Path) -> None:
    save_file({"layer.weight": np.arange(4, dtype=np.float32)}, tmp_path / "a.safetensors")
    with load_weights(tmp_path / "a.safetensors") as weights:
        node = weights.layer.weight
        for value in (node, node.data(), node.data().to_buffer()):
            assert Buffer.of(value).to_numpy().tolist() == [0, 1, 2, 3]
    data = WeightData.from_numpy(np.arange(2, dtype=np.float32), "w")
    assert Buffer.of(data)._data_ptr() == data.to_buffer()._data_ptr()


@pytest.mark.parametrize("value", ["text", None, 5, object(), [1, 2], {"a": 1}], ids=lambda value: type(value).__name__)
def test_what_is_no_tensor_is_a_type_error_with_its_name(value: Any) -> None:
    with refuses(TypeError):
        Buffer.of(value, "weight 'w'")
    with refuses(TypeError):
        Buffer.of(value)


@pytest.mark.parametrize(
    "value",
    [torch.empty(2, device="meta"), torch.zeros(2, 2).to_sparse(), np.array(["a"]), np.array([1j], np.complex128)],
    ids=["meta", "sparse", "text", "complex128"],
)
def test_a_tensor_that_no_buffer_stands_for_is_an_argument_error_with_its_name(value: Any) -> None:
    with refuses(ArgumentError, "argument.value"):
        Buffer.of(value, "weight 'w'")


@pytest.mark.parametrize("error", [OSError("the disk is gone"), MemoryError(), KeyboardInterrupt()], ids=repr)
def test_what_is_not_the_tensors_fault_stays_what_it_is(error: BaseException) -> None:
    class Failing:
        def __dlpack__(self, **_: Any) -> Any:
            raise error

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    with pytest.raises(type(error)) as raised:
        Buffer.of(Failing(), "weight 'w'")
    assert raised.value is error
