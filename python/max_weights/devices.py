"""Where tensors live: `Device`; `DeviceRef`, which names one whether or not it is here; and compiling without any."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn

from max_weights._core import hand_over, shown
from max_weights.errors import DeviceError, UnsupportedError

__all__ = ["CPU", "Device", "DeviceRef", "virtual_devices"]


class Device:
    """One device: a label (`cpu` or `gpu`) and its number among the devices of its kind. Immutable."""

    __slots__ = ("id", "label")

    label: str
    id: int

    def __init__(self, label: str, id: int = 0) -> None:
        """Name a device; nothing is looked up.

        Raises:
            ValueError: for a label other than `cpu` and `gpu`, or a negative id.
        """
        if label not in ("cpu", "gpu"):
            raise ValueError(f"a device is 'cpu' or 'gpu', not {label!r}")
        if id < 0:
            raise ValueError(f"a device's id cannot be negative: {id}")
        object.__setattr__(self, "label", label)
        object.__setattr__(self, "id", id)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Device is immutable: cannot set {name!r}")

    @property
    def is_host(self) -> bool:
        """True for host memory."""
        return self.label == "cpu"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Device):
            return NotImplemented
        return (self.label, self.id) == (other.label, other.id)

    def __hash__(self) -> int:
        return hash((self.label, self.id))

    def __repr__(self) -> str:
        return f"{self.label}:{self.id}"

    def __reduce__(self) -> tuple[type[Device], tuple[str, int]]:
        return Device, (self.label, self.id)


def CPU(id: int = 0) -> Device:
    """The host."""
    return Device("cpu", id)


def require_cpu(device: object) -> None:
    """Refuse every device but the host.

    Raises:
        DeviceError: this build reads host memory only.
    """
    if str(device) not in ("cpu", "cpu:0"):
        shown = ascii(device) if isinstance(device, str) else str(device)
        raise DeviceError(
            f"no device {shown:.60}: this version places tensors in host memory only, the device 'cpu' (or 'cpu:0')"
        )


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


_VIRTUAL: ContextVar[bool] = ContextVar("max_weights_virtual_devices", default=False)


@contextmanager
def virtual_devices() -> Iterator[None]:
    """Make `WeightData.astype` return the target dtype over no data, as a compilation needs it that only looks at
    dtypes
    and shapes. Holds for the current context (thread or task) alone.
    """
    token = _VIRTUAL.set(True)
    try:
        yield
    finally:
        _VIRTUAL.reset(token)


def devices_are_virtual() -> bool:
    """True inside `virtual_devices()`."""
    return _VIRTUAL.get()


class NoData:
    """Stands for data that was never converted; reading it raises."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        """Stand for the data of the weight `name`."""
        self._name = name

    def _refuse(self) -> NoReturn:
        raise UnsupportedError(
            f"weight '{shown(self._name)}' was converted inside virtual_devices(), which keeps dtype and shape "
            "but no data; convert it outside to read it"
        )

    def __dlpack__(self, **_: Any) -> NoReturn:
        self._refuse()

    def __dlpack_device__(self) -> NoReturn:
        self._refuse()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        self._refuse()

    def __repr__(self) -> str:
        return "NoData()"


hand_over(Device=Device, require_cpu=require_cpu)
