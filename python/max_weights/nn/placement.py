"""`Module.to`: where weights are wanted, and how they are split."""

from __future__ import annotations

from typing import Any

from max_weights.devices import DeviceRef
from max_weights.errors import ArgumentError
from max_weights.nn.named_weights import NamedWeights
from max_weights.nn.walk import ModuleNode


def place(root: ModuleNode, devices: tuple[Any, ...], strategy: Any) -> None:
    """Set device and strategy of every weight; see `Module.to`."""
    found = [DeviceRef.from_device(device) for device in devices]
    if not found:
        raise ArgumentError(f"{type(root).__name__}.to() needs a device, such as DeviceRef.CPU()")
    if len(found) > 1 and strategy is None:
        raise ArgumentError(
            f"weights are on one device, or split over several by a sharding_strategy; {len(found)} devices were given "
            "and no strategy"
        )
    number = getattr(strategy, "num_devices", len(found))
    if number != len(found):
        raise ArgumentError(f"the sharding_strategy is for {number} devices, and {len(found)} were given")
    weights = list(NamedWeights(root).weights.values())
    before = [weight.snapshot() for weight in weights]
    try:
        for weight in weights:
            if weight.device != found[0]:
                weight.device = found[0]
            if strategy is not None:
                weight.sharding_strategy = strategy
    except BaseException:
        for weight, snapshot in zip(weights, before, strict=True):
            weight.restore(snapshot)
        raise
