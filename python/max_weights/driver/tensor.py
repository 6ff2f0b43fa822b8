"""What counts as a tensor of any framework: whatever speaks DLPack."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

__all__ = ["DLPackArray"]


@runtime_checkable
class DLPackArray(Protocol):
    """Anything that can hand its memory over by DLPack: NumPy, torch, jax and cupy arrays, `Buffer`, `WeightData`."""

    def __dlpack__(self, *, stream: Any = None) -> Any:
        """A capsule that holds the tensor."""

    def __dlpack_device__(self) -> tuple[Any, Any]:
        """The DLPack device type and the number of the device."""
