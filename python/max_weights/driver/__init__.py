# fmt: off
# ruff: noqa: I001, RUF100
"""The dotted path `max.driver` of MAX."""

from max_weights._buffer import Buffer, Buffer as Tensor, DLPackArray
from max_weights._core import __version__
from max_weights._devices import (
    Accelerator, CPU, Device, DeviceSpec, accelerator_api, accelerator_count, devices_exist, is_virtual_device_mode,
    load_devices, scan_available_devices, virtual_devices,
)
from max_weights._unsupported import unsupported_names as _unsupported

__all__ = [
    "CPU", "Accelerator", "Buffer", "DLPackArray", "Device", "DeviceSpec", "Tensor", "__version__", "accelerator_api",
    "accelerator_count", "devices_exist", "is_virtual_device_mode", "load_devices", "scan_available_devices",
    "virtual_devices",
]

__getattr__ = _unsupported(__name__)
