"""`DeviceRef`: devices by name."""

import copy
import pickle

import pytest

from max_weights._devices import DeviceKind, DeviceRef, parse_device
from max_weights.driver import (
    CPU,
    Accelerator,
    Device,
    DeviceSpec,
    accelerator_api,
    accelerator_count,
    devices_exist,
    is_virtual_device_mode,
    load_devices,
    scan_available_devices,
    virtual_devices,
)
from max_weights.errors import DeviceError, UnsupportedError
from refusals import refuses


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


@pytest.mark.parametrize("text", ["cpu", "CPU:0", "gpu", "GPU:1", "cuda", "cuda:2", "CUDA:3"])
def test_a_text_names_the_same_device_for_a_load_and_for_a_weight(text: str) -> None:
    assert parse_device(text) == (DeviceRef.from_device(text).device_type, DeviceRef.from_device(text).id)


@pytest.mark.parametrize("text", ["", "tpu", "gpu:", "gpu:-1", "gpu:x", "gpu:1:2", "gpu: 1", ":1", "gpu:²"])
def test_texts_that_name_no_device(text: str) -> None:
    with refuses(ValueError):
        DeviceRef.from_device(text)


def test_arguments_are_checked() -> None:
    with refuses(ValueError):
        DeviceRef("gpu", -1)
    for number in (1.0, True, "1", None):
        with pytest.raises(TypeError):
            DeviceRef("gpu", number)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        DeviceRef(0)  # type: ignore[arg-type]
    with refuses(TypeError):
        DeviceRef.from_device(3)


def test_references_are_frozen() -> None:
    device = DeviceRef.GPU(1)
    with refuses(AttributeError):
        device.id = 2
    with refuses(AttributeError):
        del device.id
    assert device == pickle.loads(pickle.dumps(device)) == copy.deepcopy(device) == DeviceRef.GPU(1)


def test_kinds_are_their_names() -> None:
    assert DeviceRef.GPU().device_type is DeviceKind.GPU
    assert DeviceKind("CPU") is DeviceKind.CPU
    assert (f"{DeviceKind.GPU}", DeviceKind.CPU) == ("gpu", "cpu")
    for text in ("tpu", "gpu:1"):
        with refuses(ValueError):
            DeviceKind(text)


def test_devices_are_frozen_and_compare_by_value() -> None:
    device = Device("gpu", 1)
    assert device == pickle.loads(pickle.dumps(device)) == copy.copy(device)
    assert len({device, Device("gpu", 1), CPU()}) == 2
    assert (repr(device), device.is_host, device.api) == ("gpu:1", False, "gpu")
    with refuses(AttributeError):
        device.label = "cpu"  # type: ignore[misc]


def test_references_become_devices_where_there_are_any() -> None:
    assert DeviceRef.CPU().to_device() == CPU()
    with refuses(DeviceError, "device.absent"):
        DeviceRef.GPU(1).to_device()


def test_without_an_accelerator_programs_are_told_so() -> None:
    assert (accelerator_count(), accelerator_api(), is_virtual_device_mode()) == (0, "cpu", False)
    assert load_devices(scan_available_devices()) == [CPU()]
    assert load_devices([]) == []
    assert devices_exist([DeviceSpec.cpu()])
    assert not devices_exist([DeviceSpec.cpu(), DeviceSpec.accelerator()])
    for absent in (Accelerator, lambda: load_devices([DeviceSpec.accelerator(2)])):
        with refuses(ValueError, "device.absent"):
            absent()


def test_the_host_is_waited_for_and_a_gpu_by_those_who_use_it() -> None:
    CPU().synchronize()
    with refuses(UnsupportedError, "unsupported.device"):
        Device("gpu", 1).synchronize()


def test_virtual_devices_exist_by_name() -> None:
    with virtual_devices():
        assert is_virtual_device_mode()
        assert load_devices([DeviceSpec.cpu(), DeviceSpec.accelerator(1)]) == [CPU(), Device("gpu", 1)]
        assert DeviceRef.GPU(1).to_device() == Accelerator(1)
    assert not is_virtual_device_mode()


def test_specs_are_those_of_max() -> None:
    assert (DeviceSpec.cpu(), DeviceSpec.accelerator()) == (DeviceSpec(-1, "cpu"), DeviceSpec(0, "gpu"))
    assert repr(DeviceSpec(0, "gpu")) == "DeviceSpec(id=0, device_type='gpu')"
    for number, kind in ((0, "tpu"), (-1, "gpu"), (-2, "cpu")):
        with refuses(ValueError):
            DeviceSpec(number, kind)
