"""`WeightShard`: one device's part of a `Weight`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from max_weights._core import shown
from max_weights.devices import DeviceRef
from max_weights.dim import DimLike
from max_weights.dtype import DType, DTypeLike
from max_weights.graph.weight import Weight
from max_weights.quantization import QuantizationEncoding
from max_weights.shape import Shape
from max_weights.sharding.data import readable, require_fit, take
from max_weights.sharding.pieces import Pieces

__all__ = ["WeightShard", "shards"]


class WeightShard(Weight):
    """One device's part of a weight, created by `Weight.shard`.

    Name, dtype, shape and encoding follow those of the whole weight, which may still change until it is in a graph.
    """

    whole: Weight
    """The weight that this is a part of."""

    def __init__(self, whole: Weight, index: int, device: DeviceRef | str) -> None:
        self.whole = whole
        self._index = index
        self._own_name: str | None = None
        self._known: tuple[object, Pieces] | None = None  # the pieces, and what they were computed from
        self.sharding_strategy = whole.sharding_strategy
        super().__init__(
            self.name,
            whole.dtype,
            self.shape,
            device,
            whole.quantization_encoding,
            whole.align,
            whole.sharding_strategy,
        )
        self.shard_idx = index

    @property
    def name(self) -> str:
        """The name: that of the whole weight with the shard's number, until it is given another."""
        return f"{self.whole.name}[{self._index}]" if self._own_name is None else self._own_name

    @name.setter
    def name(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"the name of a weight must be a string, not {name!r}")
        self._name = name
        self._own_name = None if name == f"{self.whole.name}[{self._index}]" else name

    @property
    def dtype(self) -> DType:
        """The type of the elements: that of the whole weight."""
        return self.whole.dtype

    @dtype.setter
    def dtype(self, dtype: DTypeLike) -> None:
        self._dtype = self.whole.dtype
        self._keep("dtype", DType(dtype), self._dtype)

    @property
    def shape(self) -> Shape:
        """The shape of the shard."""
        return self.pieces.shape

    @shape.setter
    def shape(self, shape: Iterable[DimLike]) -> None:
        self._shape = self.shape
        self._keep("shape", shape if isinstance(shape, Shape) else Shape(shape), self._shape)

    @property
    def quantization_encoding(self) -> QuantizationEncoding | None:
        """How the elements are packed: as those of the whole weight."""
        return self.whole.quantization_encoding

    @quantization_encoding.setter
    def quantization_encoding(self, encoding: QuantizationEncoding | str | None) -> None:
        wanted = None if encoding is None else QuantizationEncoding(encoding)
        self._quantization_encoding = self.whole.quantization_encoding
        self._keep("quantization_encoding", wanted, self._quantization_encoding)

    def _join(self, graph: str) -> None:
        super()._join(graph)
        self.whole._join(graph)  # the shard's type follows from it

    @property
    def pieces(self) -> Pieces:
        """Which part of the whole weight this is, as plain numbers."""
        strategy = self.sharding_strategy
        if strategy is None:
            raise ValueError(f"the sharding strategy of shard '{shown(self.name)}' was removed: set it again")
        whole = self.whole
        key = strategy, tuple(whole.shape), whole.quantization_encoding
        if self._known is None or self._known[0] != key:
            self._known = key, strategy.pieces(whole, self._index)
        return self._known[1]

    @property
    def value(self) -> Any:
        """The part of the whole weight's loaded value, cut at each access; `None` before there is one."""
        return None if self.whole.value is None else self.data_of(self.whole.value)

    def load(self, value: Any, name: str | None = None) -> None:  # noqa: ARG002
        """Raise an error: a shard has its part of the whole weight's value.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"load the whole weight '{shown(self.whole.name)}', of which this is a shard")

    def data_of(self, value: Any) -> Any:
        """Return the part of a value of the whole weight that belongs to this shard.

        If the part is one run of memory, such as the rows of a mapped weight, this is a view, and nothing is read.
        Otherwise the runs are gathered into one new tensor; the rest of a file is not read.

        Args:
            value: The value of the whole weight: a `Buffer`, a `WeightData`, a weight of a checkpoint, a NumPy array, a
                torch tensor, or any other tensor that supports DLPack.

        Returns:
            The same kind of object; a `WeightData` for a weight of a checkpoint, a `Buffer` for other DLPack tensors.

        Raises:
            ValueError: the value has another shape or encoding than the whole weight.
            FileChangedError: the file of a mapped value was truncated.
        """
        value = readable(value)
        require_fit(self.whole, value)
        return take(value, self.pieces, self.name)

    def _keep(self, what: str, wanted: object, own: object) -> None:
        if wanted != own:
            raise ValueError(
                f"the {what} of shard '{shown(self.name)}' comes from its part of '{shown(self.whole.name)}'; change "
                "the whole weight"
            )


def shards(weight: Weight, devices: Iterable[DeviceRef | str]) -> list[WeightShard]:
    """Return the shards, as `Weight.shard` does."""
    if isinstance(weight, WeightShard):
        raise ValueError(
            f"weight '{shown(weight.name)}' is already a shard and cannot be sharded again; shard "
            f"'{shown(weight.whole.name)}' over all the devices instead"
        )
    strategy, devices = weight.sharding_strategy, list(devices)
    if strategy is None:
        raise ValueError(
            f"weight '{shown(weight.name)}' has no sharding strategy: set sharding_strategy, such as "
            f"ShardingStrategy.rowwise({max(1, len(devices))}), then shard it"
        )
    if len(devices) != strategy.num_devices:
        raise ValueError(
            f"weight '{shown(weight.name)}' is sharded over {strategy.num_devices} devices by {strategy!r}; "
            f"{len(devices)} were given"
        )
    return [WeightShard(weight, index, device) for index, device in enumerate(devices)]
