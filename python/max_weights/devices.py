"""Where tensors are: `Device`; `DeviceRef`, which names a device that may not exist here; and compiling without any."""

from max_weights._devices import (
    CPU,
    Accelerator,
    Device,
    DeviceKind,
    DeviceRef,
    DeviceSpec,
    accelerator_api,
    accelerator_count,
    current_gpu,
    devices_exist,
    is_virtual_device_mode,
    load_devices,
    scan_available_devices,
    torch_gpu,
    virtual_devices,
)

__all__ = [
    "CPU",
    "Accelerator",
    "Device",
    "DeviceKind",
    "DeviceRef",
    "DeviceSpec",
    "accelerator_api",
    "accelerator_count",
    "current_gpu",
    "devices_exist",
    "is_virtual_device_mode",
    "load_devices",
    "scan_available_devices",
    "torch_gpu",
    "virtual_devices",
]
