"""Where a tensor's bytes live."""

from __future__ import annotations

from max_weights.errors import DeviceError


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
