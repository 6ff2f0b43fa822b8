"""Tensors and devices: `Buffer` (also as `Tensor`), `Device`, `CPU`, `DLPackArray`."""

from max_weights._core import Buffer
from max_weights.driver.device import CPU, Device
from max_weights.driver.tensor import DLPackArray
from max_weights.driver.virtual import virtual_devices

Tensor = Buffer

__all__ = ["CPU", "Buffer", "DLPackArray", "Device", "Tensor", "virtual_devices"]
