"""Words for annotations that several modules share; nothing imports this when a program runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import torch

    from max_weights.devices import Device, DeviceRef

__all__ = ["DeviceLike", "JSONObject"]

DeviceLike: TypeAlias = "str | Device | DeviceRef | torch.device"
"""A device, or its name, such as `cuda:1`."""

JSONObject: TypeAlias = dict[str, Any]
"""What `json` makes of an object of which no schema is known here, such as another library's configuration."""
