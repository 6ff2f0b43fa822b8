"""Where tensors are: `Device`; `DeviceRef`, which names a device that may not exist here; and compiling without any."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from max_weights import _core
from max_weights._core import escape, missing_accelerator
from max_weights.errors import DeviceError, UnsupportedError

if TYPE_CHECKING:
    from types import ModuleType

    import torch

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


DeviceLike: TypeAlias = "str | Device | DeviceRef | torch.device"
"""A device, or its name, such as `cuda:1`."""


class DeviceKind(StrEnum):
    """The kinds of devices; equal to their names in lower case."""

    CPU = "cpu"
    GPU = "gpu"

    @classmethod
    def _missing_(cls, value: object) -> DeviceKind:
        if not isinstance(value, str):
            raise TypeError(f"the type of a device must be 'cpu' or 'gpu', not {value!r}")
        if value.lower() not in ("cpu", "gpu"):
            raise ValueError(f"the type of a device must be 'cpu' or 'gpu', not {value!r}")
        return cls(value.lower())


@dataclass(frozen=True, repr=False)
class Device:
    """One device; creating it does not look it up.

    Args:
        label: The kind, `cpu` or `gpu`. ValueError for any other.
        id: The number among the devices of the kind. ValueError for a negative one.
    """

    label: str
    id: int = 0

    def __post_init__(self) -> None:
        if self.label not in ("cpu", "gpu"):
            raise ValueError(f"a device must be 'cpu' or 'gpu', not {self.label!r}")
        if self.id < 0:
            raise ValueError(f"a device's id cannot be negative: {self.id}")

    @property
    def is_host(self) -> bool:
        """Whether this is host memory."""
        return self.label == "cpu"

    @property
    def api(self) -> str:
        """The API that drives the device: `cpu` for the host."""
        return self.label

    def synchronize(self) -> None:
        """Wait until the work of the device is done; work of the host is done when a call returns.

        Raises:
            UnsupportedError: a GPU, whose streams belong to the libraries that use them: a reader of a tensor waits for
                that tensor.

        Example:
            >>> max_weights.driver.CPU().synchronize()
        """
        if not self.is_host:
            raise UnsupportedError(
                f"{self} is not waited for as a whole: what reads a tensor waits for it, and `torch.cuda.synchronize` "
                "waits for the work of torch",
                rule="unsupported.device",
            )

    def __repr__(self) -> str:
        return f"{self.label}:{self.id}"


def CPU(id: int = 0) -> Device:
    """Name the host.

    Args:
        id: Always 0 for memory; other numbers only name.

    Returns:
        The device.

    Raises:
        ValueError: A negative number.

    Example:
        >>> max_weights.driver.CPU()
        cpu:0
    """
    return Device("cpu", id)


def Accelerator(id: int = 0) -> Device:
    """Name a GPU. Inside `virtual_devices()`, every number exists.

    Args:
        id: Its number, from 0.

    Returns:
        The device.

    Raises:
        DeviceError: There is no such device, or no driver (a ValueError).

    Example:
        >>> with max_weights.driver.virtual_devices():
        ...     max_weights.driver.Accelerator(1)
        gpu:1
    """
    device = Device("gpu", id)
    if not is_virtual_device_mode() and (reason := missing_accelerator(min(id, 2**31))):
        raise DeviceError(f"no accelerator {device}: {reason}", rule="device.absent")
    return device


def accelerator_count() -> int:
    """Count the CUDA devices that the driver shows this process.

    Returns:
        The number of devices; 0 without a driver.

    Example:
        >>> max_weights.driver.accelerator_count() >= 0
        True
    """
    return _core.accelerator_count()


def accelerator_api() -> str:
    """Say which API drives the accelerators.

    Returns:
        `cuda`, or `cpu` if there are none.

    Example:
        >>> max_weights.driver.accelerator_api() in ("cuda", "cpu")
        True
    """
    return "cuda" if accelerator_count() else "cpu"


@dataclass(frozen=True)
class DeviceSpec:
    """A device that a program asks for, whether it exists here or not; `load_devices` turns specs into devices.

    Args:
        id: The number of the device; -1 for the host.
        device_type: `cpu` or `gpu`. ValueError for any other.
    """

    id: int
    device_type: str = "cpu"

    def __post_init__(self) -> None:
        kind = DeviceKind(self.device_type)
        if self.id < (-1 if kind is DeviceKind.CPU else 0):
            raise ValueError(f"the number of a device must not be negative; found {self.id}")

    @classmethod
    def cpu(cls, id: int = -1) -> DeviceSpec:
        """Ask for the host.

        Args:
            id: Its number; -1 for any.

        Returns:
            The spec.

        Raises:
            ValueError: A number below -1.

        Example:
            >>> max_weights.driver.DeviceSpec.cpu().device_type
            'cpu'
        """
        return cls(id, "cpu")

    @classmethod
    def accelerator(cls, id: int = 0) -> DeviceSpec:
        """Ask for a GPU.

        Args:
            id: Its number, from 0.

        Returns:
            The spec.

        Raises:
            ValueError: A negative number.

        Example:
            >>> max_weights.driver.DeviceSpec.accelerator(1).id
            1
        """
        return cls(id, "gpu")


def load_devices(device_specs: Iterable[DeviceSpec]) -> list[Device]:
    """Find the devices of specs.

    Args:
        device_specs: What is asked for.

    Returns:
        The devices, in the same order.

    Raises:
        DeviceError: One of them does not exist (a ValueError).

    Example:
        >>> max_weights.driver.load_devices([max_weights.driver.DeviceSpec.cpu()])
        [cpu:0]
    """
    return [Accelerator(spec.id) if spec.device_type == "gpu" else CPU(max(0, spec.id)) for spec in device_specs]


def scan_available_devices() -> list[DeviceSpec]:
    """List the devices to compute on.

    Returns:
        The specs of the GPUs, or of the host if there are none.

    Example:
        >>> max_weights.driver.scan_available_devices()
        [DeviceSpec(...)]
    """
    return [DeviceSpec.accelerator(id) for id in range(accelerator_count())] or [DeviceSpec.cpu()]


def devices_exist(devices: Iterable[DeviceSpec]) -> bool:
    """Ask whether `load_devices` can return all of these devices.

    Args:
        devices: The specs.

    Returns:
        Whether they exist.

    Raises:
        TypeError: `devices` is not iterable.

    Example:
        >>> max_weights.driver.devices_exist([max_weights.driver.DeviceSpec.cpu()])
        True
    """
    return is_virtual_device_mode() or all(
        spec.device_type == "cpu" or spec.id < accelerator_count() for spec in devices
    )


def _unknown(device: object, cause: str) -> DeviceError:
    text = ascii(device) if isinstance(device, str) else str(device)
    return DeviceError(f"no device {text:.60}: {cause}", rule="device.absent")


def named_device(text: str) -> tuple[str, int] | None:
    """Return the kind and number of the device that a text names, in upper or lower case; `None` for any other text.

    `cuda` is the device that torch would use, if torch uses any, and `gpu` the first.
    """
    kind, colon, digits = text.lower().partition(":")
    if colon and not (digits.isascii() and digits.isdigit() and len(digits) < 10 and digits == str(int(digits))):
        return None
    if kind == "cuda":
        return "gpu", int(digits) if colon else current_gpu()
    return (kind, int(digits or "0")) if kind in ("cpu", "gpu") else None


def parse_device(device: object) -> tuple[str, int]:
    """Return the kind and number of the device that an argument names.

    The argument is `cpu`, `cuda:1` (or `gpu:1`), or an object that prints as that, such as a `Device`, a `DeviceRef` or
    a `torch.device`; see `named_device`.

    Raises:
        DeviceError: it does not name a device; of the host there is one.
    """
    kind_and_number = named_device(str(device))
    if kind_and_number is not None and (kind_and_number[0] == "gpu" or kind_and_number[1] == 0):
        return kind_and_number
    raise _unknown(device, "there are 'cpu' (or 'cpu:0') and, with a GPU, 'cuda' (or 'cuda:0', 'cuda:1', …)")


def current_gpu() -> int:
    """Return the number of the CUDA device that torch would use, if it is in use; otherwise the first."""
    torch = sys.modules.get("torch")
    return int(torch.cuda.current_device()) if torch is not None and torch.cuda.is_initialized() else 0


def torch_gpu(torch: ModuleType, device: object) -> str | None:
    """Return the GPU, such as `cuda:1`, that is filled here if torch wants tensors on a device, or `None`.

    `None` leaves it to torch: for another kind of device, one that does not exist, or a torch that sees other GPUs than
    the driver shows us.

    Args:
        torch: The module.
        device: A name, a number or a `torch.device`; `cuda` is torch's current device.
    """
    if torch.version.hip or not torch.cuda.is_available():
        return None
    try:
        target = torch.device(device)
    except RuntimeError:
        return None
    if target.type != "cuda":
        return None
    index = torch.cuda.current_device() if target.index is None else target.index
    return f"cuda:{index}" if index < torch.cuda.device_count() == accelerator_count() else None


def require_cpu(device: object) -> None:
    """Refuse every device but the host.

    Raises:
        DeviceError: it is another device.
    """
    if parse_device(device) != ("cpu", 0):
        raise _unknown(
            device, "a file is opened in host memory, the device 'cpu' (or 'cpu:0'); move tensors with .to()"
        )


@dataclass(frozen=True, repr=False)
class DeviceRef:
    """A device by kind and number; equal and hashed by both.

    Args:
        device_type: `cpu` or `gpu`, in upper or lower case. ValueError for any other.
        id: The number of the device among those of its kind, from 0. ValueError for a negative one.
    """

    device_type: str
    id: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.id, bool):
            raise TypeError(f"the number of a device must be an int, not {self.id!r}")
        number = operator.index(self.id)
        if number < 0:
            raise ValueError(f"the number of a device must not be negative; found {number}")
        object.__setattr__(self, "device_type", DeviceKind(self.device_type))
        object.__setattr__(self, "id", number)

    @classmethod
    def CPU(cls, id: int = 0) -> DeviceRef:
        """Name the CPU.

        Args:
            id: Its number, from 0.

        Returns:
            The reference.

        Raises:
            ValueError: A negative number.

        Example:
            >>> max_weights.DeviceRef.CPU()
            cpu:0
        """
        return cls("cpu", id)

    @classmethod
    def GPU(cls, id: int = 0) -> DeviceRef:
        """Name a GPU, which need not exist here.

        Args:
            id: Its number, from 0.

        Returns:
            The reference.

        Raises:
            ValueError: A negative number.

        Example:
            >>> max_weights.DeviceRef.GPU(1)
            gpu:1
        """
        return cls("gpu", id)

    @classmethod
    def from_device(cls, device: object) -> DeviceRef:
        """Name a device.

        Args:
            device: A string such as `gpu`, `gpu:1` or `cuda:1`; a driver device, which has `label` and `id`; or a
                `DeviceRef`, which is returned unchanged. For `cuda` it is the device that torch would use, like for
                `load`.

        Returns:
            The reference.

        Raises:
            ValueError: A string that names no device.
            TypeError: Neither a string nor a device.

        Example:
            >>> max_weights.DeviceRef.from_device("gpu:1").id
            1
        """
        if isinstance(device, DeviceRef):
            return device
        if isinstance(device, str):
            kind_and_number = named_device(device)
            if kind_and_number is None:
                raise ValueError(f"a device is written as 'cpu', 'gpu', 'gpu:1' or 'cuda:1', not {device!r}")
            return cls(*kind_and_number)
        label, number = getattr(device, "label", None), getattr(device, "id", None)
        if label is None or number is None:
            raise TypeError(
                f"neither a DeviceRef, a string such as 'gpu:1', nor a device with a label and an id: {device!r}"
            )
        return cls(label, number)

    def is_cpu(self) -> bool:
        """Ask whether this is a CPU.

        Returns:
            Whether it is.

        Example:
            >>> max_weights.DeviceRef("cpu").is_cpu()
            True
        """
        return self.device_type == "cpu"

    def is_gpu(self) -> bool:
        """Ask whether this is a GPU.

        Returns:
            Whether it is.

        Example:
            >>> max_weights.DeviceRef("cpu").is_gpu()
            False
        """
        return self.device_type == "gpu"

    def to_device(self) -> Device:
        """Find the device itself.

        Returns:
            The device.

        Raises:
            DeviceError: It does not exist.

        Example:
            >>> max_weights.DeviceRef("cpu").to_device()
            cpu:0
        """
        return CPU(self.id) if self.is_cpu() else Accelerator(self.id)

    def __repr__(self) -> str:
        return f"{self.device_type}:{self.id}"


_VIRTUAL: ContextVar[bool] = ContextVar("max_weights_virtual_devices", default=False)


@contextmanager
def virtual_devices() -> Iterator[None]:
    """Make `WeightData.astype` return the target dtype without data, for compilations that need no values.

    Accelerators exist by name. This applies to the current context (thread or task).

    Returns:
        A context manager.

    Example:
        >>> with max_weights.driver.virtual_devices():
        ...     weights.lm_head.weight.data().astype("float16").dtype
        float16
    """
    token = _VIRTUAL.set(True)
    try:
        yield
    finally:
        _VIRTUAL.reset(token)


def is_virtual_device_mode() -> bool:
    """Ask whether the current context is inside of `virtual_devices()`.

    Returns:
        Whether it is.

    Example:
        >>> max_weights.driver.is_virtual_device_mode()
        False
    """
    return _VIRTUAL.get()


class NoData:
    """Stands for data that was never converted; reading it raises an error."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        """Stand for the data of the weight `name`."""
        self._name = name

    def _refuse(self) -> NoReturn:
        raise UnsupportedError(
            f"weight '{escape(self._name)}' was converted inside virtual_devices(), which keeps dtype and shape "
            "but no data; convert it outside to read it",
            rule="unsupported.device",
        )

    def __dlpack__(self, **_: object) -> NoReturn:
        self._refuse()

    def __dlpack_device__(self) -> NoReturn:
        self._refuse()

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NoReturn:
        self._refuse()

    def __repr__(self) -> str:
        return "NoData()"
