"""`ShardableLayer`: how the layers of this package are split over devices."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from max_weights._devices import DeviceRef
from max_weights.errors import ArgumentError
from max_weights.graph._weight import Weight
from max_weights.nn._module import Module
from max_weights.sharding._strategies import ShardingStrategy

if TYPE_CHECKING:
    from typing import Self

__all__ = ["ShardableLayer"]


class ShardableLayer(Module):
    """A layer whose weights, and the layers in it, are split over devices by one strategy of the whole.

    Its shards are layers of the same class that have their part of each weight. They own no weights: the state dict of
    the whole layer has the values of all of them.
    """

    device: DeviceRef | None
    devices: list[DeviceRef]
    _sharding_strategy: ShardingStrategy | None = None

    @property
    def sharding_strategy(self) -> ShardingStrategy | None:
        """How the layer is split over devices; `None` if it is not.

        Setting it sets the strategies of the weights and layers in it. ValueError if the layer cannot be split this
        way.
        """
        return self._sharding_strategy

    @sharding_strategy.setter
    def sharding_strategy(self, strategy: ShardingStrategy) -> None:
        for name, part in self._strategies(strategy).items():
            layer = getattr(self, name, None)
            if layer is not None:
                layer.sharding_strategy = part
        self._sharding_strategy = strategy

    def shard(self, devices: Iterable[DeviceRef | str]) -> list[Self]:
        """Return the shards, one for each device.

        Args:
            devices: One device for each shard.

        Raises:
            ValueError: there is no strategy, or it is for another number of devices.

        Example:
            >>> layer = nn.Linear(3, 4, DType.float32, CPU)
            >>> layer.sharding_strategy = ShardingStrategy.rowwise(2)
            >>> [shard.weight.shape for shard in layer.shard([CPU, CPU])]
            [[Dim(2), Dim(3)], [Dim(2), Dim(3)]]
        """
        if self.sharding_strategy is None:
            raise ArgumentError(
                f"this {type(self).__name__} has no sharding strategy: set sharding_strategy, such as "
                "ShardingStrategy.replicate(2), then shard it"
            )
        places = [DeviceRef.from_device(device) for device in devices]
        parts = {name: value.shard(places) for name, value in self._parts().items()}
        shards = [copy.copy(self) for _ in places]
        for index, (shard, place) in enumerate(zip(shards, places, strict=True)):
            for name, values in parts.items():
                setattr(shard, name, values[index])
            shard._become_shard(index, place)
        return shards

    def _strategies(self, strategy: ShardingStrategy) -> Mapping[str, ShardingStrategy]:
        """Return the strategy of each attribute that is a weight or a layer; here, all shards are the whole layer."""
        if not strategy.is_replicate:
            raise self._refuse(strategy, "replicate")
        return dict.fromkeys(self._parts(), strategy)

    def _parts(self) -> dict[str, Weight | ShardableLayer]:
        return {name: value for name, value in vars(self).items() if isinstance(value, (Weight, ShardableLayer))}

    def _become_shard(self, _index: int, device: DeviceRef) -> None:
        """Make the other changes for shard `index`, once its weights are parts."""
        if hasattr(self, "devices"):
            self.devices = [device]
        else:
            self.device = device

    def _refuse(self, strategy: ShardingStrategy, takes: str) -> ArgumentError:
        """Return the error for a strategy that a layer cannot be split by."""
        return ArgumentError(f"this {type(self).__name__} cannot be split by {strategy!r}; it takes {takes}")
