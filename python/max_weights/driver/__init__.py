"""Tensors and devices under the dotted path of MAX."""

from max_weights.buffer import Buffer, DLPackArray
from max_weights.buffer import Buffer as Tensor
from max_weights.devices import CPU, Device, virtual_devices

__all__ = ["CPU", "Buffer", "DLPackArray", "Device", "Tensor", "virtual_devices"]
