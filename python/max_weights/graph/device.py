"""`DeviceRef`: which device a weight belongs on, by name, whether or not this machine has it."""

from __future__ import annotations

import operator
from typing import Any, NoReturn

__all__ = ["DeviceRef"]


class DeviceRef:
    """A device by type and number; immutable, equal and hashed by both.

    Args:
        device_type: `cpu` or `gpu`, in any case.
        id: The number of the device, from 0.
    """

    __slots__ = ("device_type", "id")
    __match_args__ = ("device_type", "id")

    device_type: str
    """`cpu` or `gpu`."""
    id: int
    """The number of the device among those of its type."""

    def __init__(self, device_type: str, id: int = 0) -> None:
        if not isinstance(device_type, str):
            raise TypeError(f"a device type is 'cpu' or 'gpu', not {device_type!r}")
        kind = device_type.lower()
        if kind not in ("cpu", "gpu"):
            raise ValueError(f"a device type is 'cpu' or 'gpu', not {device_type!r}")
        if isinstance(id, bool):
            raise TypeError(f"the number of a device is an int, not {id!r}")
        number = operator.index(id)
        if number < 0:
            raise ValueError(f"the number of a device is not negative; found {number}")
        object.__setattr__(self, "device_type", kind)
        object.__setattr__(self, "id", number)

    @classmethod
    def CPU(cls, id: int = 0) -> DeviceRef:
        """The CPU."""
        return cls("cpu", id)

    @classmethod
    def GPU(cls, id: int = 0) -> DeviceRef:
        """The GPU of this number."""
        return cls("gpu", id)

    @classmethod
    def from_device(cls, device: Any) -> DeviceRef:
        """The reference to a device.

        Args:
            device: A `DeviceRef` (given back as it is), a text such as `gpu`, `gpu:1` or `cuda:1`, or a driver device,
                which has `label` and `id`.
        """
        if isinstance(device, DeviceRef):
            return device
        if isinstance(device, str):
            kind, colon, digits = device.lower().partition(":")
            if colon and not (digits.isascii() and digits.isdigit()):
                raise ValueError(f"a device is written such as 'cpu', 'gpu' or 'gpu:1', not {device!r}")
            return cls("gpu" if kind == "cuda" else kind, int(digits or "0"))
        label, number = getattr(device, "label", None), getattr(device, "id", None)
        if label is None or number is None:
            raise TypeError(
                f"neither a DeviceRef, a text such as 'gpu:1', nor a device with a label and an id: {device!r}"
            )
        return cls(label, number)

    def is_cpu(self) -> bool:
        """Whether this is a CPU."""
        return self.device_type == "cpu"

    def is_gpu(self) -> bool:
        """Whether this is a GPU."""
        return self.device_type == "gpu"

    def __repr__(self) -> str:
        return f"{self.device_type}:{self.id}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeviceRef):
            return NotImplemented
        return self.device_type == other.device_type and self.id == other.id

    def __hash__(self) -> int:
        return hash((self.device_type, self.id))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a DeviceRef is immutable; make another one instead of setting {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a DeviceRef is immutable; {name!r} cannot be deleted")

    def __reduce__(self) -> tuple[type[DeviceRef], tuple[str, int]]:
        return type(self), (self.device_type, self.id)
