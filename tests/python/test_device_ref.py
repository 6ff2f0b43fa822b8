"""`DeviceRef`: devices by name."""

import copy
import pickle

import pytest

from max_weights.devices import DeviceRef
from max_weights.driver import Device


def test_type_and_number_decide_equality() -> None:
    assert DeviceRef("cpu") == DeviceRef("CPU", 0) == DeviceRef.CPU() == DeviceRef.CPU(0)
    assert DeviceRef.GPU(1) == DeviceRef("gpu", 1)
    assert len({DeviceRef.GPU(), DeviceRef("gpu"), DeviceRef.GPU(1), DeviceRef.CPU()}) == 3
    assert DeviceRef.CPU() != DeviceRef.GPU()
    assert DeviceRef.CPU() != "cpu:0"


def test_text_and_kind() -> None:
    gpu = DeviceRef.GPU(1)
    assert str(gpu) == repr(gpu) == "gpu:1"
    assert str(DeviceRef.CPU()) == "cpu:0"
    assert (gpu.device_type, gpu.id) == ("gpu", 1)
    assert gpu.is_gpu()
    assert not gpu.is_cpu()
    assert DeviceRef.CPU().is_cpu()
    assert not DeviceRef.CPU().is_gpu()


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("cpu", "cpu:0"),
        ("gpu:1", "gpu:1"),
        ("GPU:12", "gpu:12"),
        ("cuda:1", "gpu:1"),
        (Device("gpu", 2), "gpu:2"),
        (DeviceRef.GPU(3), "gpu:3"),
    ],
)
def test_devices_and_texts_become_references(device: object, expected: str) -> None:
    assert str(DeviceRef.from_device(device)) == expected


@pytest.mark.parametrize("text", ["", "tpu", "gpu:", "gpu:-1", "gpu:x", "gpu:1:2", "gpu: 1", ":1", "gpu:²"])
def test_texts_that_name_no_device(text: str) -> None:
    with pytest.raises(ValueError, match="'cpu'"):
        DeviceRef.from_device(text)


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="negative"):
        DeviceRef("gpu", -1)
    for number in (1.0, True, "1", None):
        with pytest.raises(TypeError):
            DeviceRef("gpu", number)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        DeviceRef(0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="label"):
        DeviceRef.from_device(3)


def test_references_are_frozen() -> None:
    device = DeviceRef.GPU(1)
    with pytest.raises(AttributeError, match="immutable"):
        device.id = 2
    with pytest.raises(AttributeError, match="immutable"):
        del device.id
    assert device == pickle.loads(pickle.dumps(device)) == copy.deepcopy(device) == DeviceRef.GPU(1)
