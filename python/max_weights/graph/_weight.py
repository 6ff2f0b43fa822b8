"""`Weight`: a named value that a graph will load later; `WeightShard`: one device's part of it."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from max_weights._core import Buffer, escape
from max_weights._devices import DeviceRef
from max_weights._dim import DimLike
from max_weights._dtype import DType, DTypeLike
from max_weights._quantization import QuantizationEncoding
from max_weights._shape import FixedShape, Shape
from max_weights.graph._errors import NoGraphError
from max_weights.graph._stack import caller_location, current_or_none
from max_weights.graph._type import TensorType
from max_weights.graph._value import TensorValue
from max_weights.sharding._data import readable, require_fit, take
from max_weights.sharding._pieces import Pieces
from max_weights.sharding._strategies import ShardingStrategy

if TYPE_CHECKING:
    from typing import Self

    from max_weights._buffer import DLPackArray

__all__ = ["Weight", "WeightShard"]


class Weight(TensorValue):
    """A value of a graph that can be loaded later, described by everything but its data.

    Computations with it (arithmetic, order comparison, indexing, `@`, `.T`) need a graph, which the weight then joins,
    and raise ValueError without one. A weight may join several graphs; once it has joined the first, its dtype, shape
    and device are fixed. In a graph, `==` compares elements, like that of every value; outside of one, a weight is
    equal only to itself.

    Args:
        name: The name, without those of the modules around it.
        dtype: The type of the elements.
        shape: Ints and names of symbolic dimensions.
        device: The device of the value.
        quantization_encoding: How the elements are packed; `None` for a weight that is not quantized.
        align: The alignment of the data in bytes; by default, what the dtype requires.
        sharding_strategy: How the weight is split over devices.
    """

    _joined: str | None = None
    """The name of the first graph that the weight joined."""

    shard_idx: int | None
    """The number of this shard of a split weight; `None` for a whole weight."""
    sharding_strategy: ShardingStrategy | None
    """How the weight is split over devices; `None` if it is not."""

    def __new__(cls, *args: object, **kwargs: object) -> Self:  # noqa: ARG004
        """Create a weight that is in no graph yet."""
        return object.__new__(cls)

    def __init__(
        self,
        name: str,
        dtype: DTypeLike,
        shape: Iterable[DimLike],
        device: DeviceRef | str,
        quantization_encoding: QuantizationEncoding | str | None = None,
        align: int | None = None,
        sharding_strategy: ShardingStrategy | None = None,
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.device = device
        self.quantization_encoding = quantization_encoding
        self.align = align
        self.sharding_strategy = sharding_strategy
        self.shard_idx = None
        self._original = self._dtype, self._shape.copy()

    @property
    def name(self) -> str:
        """The name."""
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"the name of a weight must be a string, not {name!r}")
        if name != self._name:
            self._local_name = name
        self._name = name

    @property
    def dtype(self) -> DType:
        """The type of the elements; uint8 for packed ones."""
        return self._dtype

    @dtype.setter
    def dtype(self, dtype: DTypeLike) -> None:
        self._require_free("dtype")
        self._dtype = DType(dtype)

    @property
    def shape(self) -> Shape:
        """The shape; counted in bytes where the elements are packed. It can be changed until a graph has the weight."""
        return self._shape

    @shape.setter
    def shape(self, shape: Iterable[DimLike]) -> None:
        self._require_free("shape")
        self._shape = Shape(shape)

    @property
    def device(self) -> DeviceRef:
        """The device of the value."""
        return self._device

    @device.setter
    def device(self, device: DeviceRef | str) -> None:
        self._require_free("device")
        self._device = DeviceRef.from_device(device)

    @property
    def type(self) -> TensorType:
        """Dtype, shape and device together."""
        return TensorType(self.dtype, self.shape, self.device)

    @property
    def quantization_encoding(self) -> QuantizationEncoding | None:
        """How the elements are packed; `None` for a weight that is not quantized."""
        return self._quantization_encoding

    @quantization_encoding.setter
    def quantization_encoding(self, encoding: QuantizationEncoding | str | None) -> None:
        self._quantization_encoding = None if encoding is None else QuantizationEncoding(encoding)

    @property
    def align(self) -> int | None:
        """The alignment of the data in bytes, a power of two; `None` stands for what the dtype requires."""
        return self._align

    @align.setter
    def align(self, align: int | None) -> None:
        if align is not None:
            align = operator.index(align)
            if align <= 0 or align & (align - 1):
                raise ValueError(
                    f"the alignment of weight '{escape(self._name)}' must be a power of two; found {align}"
                )
        self._align = align

    @property
    def original_dtype_and_shape(self) -> tuple[DType, Shape]:
        """The dtype and shape that the weight was declared with; packed weights are loaded as bytes."""
        dtype, shape = self._original
        return dtype, shape.copy()

    @original_dtype_and_shape.setter
    def original_dtype_and_shape(self, dtype_and_shape: tuple[DTypeLike, Iterable[DimLike]]) -> None:
        dtype, shape = dtype_and_shape
        self._original = DType(dtype), Shape(shape)

    @property
    def local_name(self) -> str:
        """The name that the weight was given, without those of the modules around it."""
        return self._local_name

    @property
    def value(self) -> DLPackArray | None:
        """The value that `load_state_dict` gave the weight: an array, `Buffer` or tensor; `None` before that."""
        return self._loaded

    def data(self) -> DLPackArray:
        """Return the loaded value; for a shard, its part of the whole weight's value, as `data_of` cuts it.

        Raises:
            ValueError: nothing has been loaded yet.

        Example:
            >>> weight = Weight("up", DType.float32, [2], CPU)
            >>> weight.load(np.ones(2, "f4"))
            >>> weight.data()
            array([1., 1.], dtype=float32)
        """
        value = self.value
        if value is None:
            raise ValueError(
                f"weight '{escape(self.name)}' has no value yet: load_state_dict of its module gives it one"
            )
        return value

    def __dlpack__(self, **options: Any) -> object:
        return self._exported().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._exported().__dlpack_device__()

    def _exported(self) -> Buffer:
        """Return the loaded value as a tensor that exports its memory, whatever its dtype is."""
        return Buffer.of(self.data(), f"weight '{escape(self.name)}'")

    def load(self, value: DLPackArray | None, name: str | None = None) -> None:
        """Give the weight its value, without checks; `Module.load_state_dict` checks values.

        Args:
            value: What the weight holds from now on; `None` to unload it.
            name: The full name in the model; `local_name` stays.

        Raises:
            ValueError: it is a shard, whose value is a part of the whole weight's.

        Example:
            >>> Weight("up", DType.float32, [2], CPU).load(np.ones(2, "f4"), "layers.0.up")
        """
        self._loaded = value
        if name is not None:
            self._name = name

    def _snapshot(self) -> dict[str, object]:
        """Return the current state of the weight, for `restore`."""
        return self.__dict__.copy()

    def _restore(self, snapshot: dict[str, object]) -> None:
        """Restore the state of a `snapshot`, for several weights that change together or not at all."""
        self.__dict__ = snapshot.copy()

    def shard(self, devices: Iterable[DeviceRef | str]) -> list[Weight]:
        """Return the shards, one for each device, by the sharding strategy.

        Shard `i` is named `name[i]` and has `shard_idx` i. Its shape needs no graph and no data, and follows this
        weight, whose dtype, encoding and shape may still change. The part of the value that was loaded into this weight
        is `shard.data()`, that of any other `shard.data_of(value)`.

        Args:
            devices: One device for each shard.

        Raises:
            ValueError: there is no strategy, it is for another number of devices, it does not fit the shape, or this is
                a shard already.
            NotImplementedError: a strategy that modules interpret.

        Example:
            >>> up = Weight("up", DType.float32, [4, 3], CPU, sharding_strategy=ShardingStrategy.rowwise(2))
            >>> up.shard([CPU, CPU])[1].shape
            [Dim(2), Dim(3)]
        """
        strategy, devices = self.sharding_strategy, list(devices)
        if strategy is None:
            raise ValueError(
                f"weight '{escape(self.name)}' has no sharding strategy: set sharding_strategy, such as "
                f"ShardingStrategy.rowwise({max(1, len(devices))}), then shard it"
            )
        if len(devices) != strategy.num_devices:
            raise ValueError(
                f"weight '{escape(self.name)}' is sharded over {strategy.num_devices} devices by {strategy!r}; "
                f"{len(devices)} were given"
            )
        return [WeightShard(self, index, device) for index, device in enumerate(devices)]

    def data_of(self, value: object) -> Any:
        """Return the part of `value` that belongs to this weight: for a whole weight, the value itself.

        For a shard, these are its pieces, see `WeightShard.data_of`.

        Args:
            value: A value of the whole weight.

        Raises:
            ValueError: for a shard, the value has another shape or encoding than the whole weight.

        Example:
            >>> Weight("up", DType.float32, [2], CPU).data_of(np.ones(2, "f4"))
            array([1., 1.], dtype=float32)
        """
        return value

    # What a module gave the weight: a value (None for none yet), and with it the full name in place of the local one.
    _loaded: DLPackArray | None = None
    _name: str = ""
    _local_name: str = ""

    def __repr__(self) -> str:
        encoding = "" if self.quantization_encoding is None else f", {self.quantization_encoding}"
        return f"Weight({escape(self.name)}, {self.dtype!s}, {self.shape}, {self.device}{encoding})"

    def __eq__(self, other: object) -> Any:
        if current_or_none() is None:
            return self is other or NotImplemented
        return super().__eq__(other)

    def __ne__(self, other: object) -> Any:
        if current_or_none() is None:
            return self is not other if isinstance(other, Weight) else NotImplemented
        return super().__ne__(other)

    __hash__ = object.__hash__

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_joined": None, "_shape": self._shape.copy()}  # a copy has joined no graph

    def _value(self) -> TensorValue:
        graph = current_or_none()
        if graph is None:
            location = caller_location()
            error = NoGraphError(
                f"there is no parent graph: weight '{escape(self.name)}' has no value to compute with here. Use it "
                f"inside `with Graph(...)`, or load the data and compute with that (at {location})"
            )
            error.tensor, error.location = self.name, location
            raise error
        return graph._own("Weight", self)

    def _join(self, graph: str) -> None:
        """Record that the graph of this name relies on the type from now on."""
        if self._joined is None:
            self._joined = graph
            self._shape = FixedShape(self._shape, self._fixed("shape"))

    def _require_free(self, attribute: str) -> None:
        if self._joined is not None:
            raise ValueError(self._fixed(attribute))

    def _fixed(self, attribute: str) -> str:
        return (
            f"the {attribute} of weight '{escape(self.name)}' cannot change: graph {self._joined!r} uses the weight. "
            "Set it before, or make another Weight"
        )


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
        self._pieces: tuple[object, Pieces] | None = None  # the pieces, and what they were computed from
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
        """The shape of the shard, which follows from that of the whole weight."""
        return FixedShape(self.pieces.shape, self._derived("shape"))

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
        target = None if encoding is None else QuantizationEncoding(encoding)
        self._quantization_encoding = self.whole.quantization_encoding
        self._keep("quantization_encoding", target, self._quantization_encoding)

    def _join(self, graph: str) -> None:
        super()._join(graph)
        self.whole._join(graph)  # the shard's type follows from it

    @property
    def pieces(self) -> Pieces:
        """Which part of the whole weight this is, as plain numbers."""
        strategy = self.sharding_strategy
        if strategy is None:
            raise ValueError(f"the sharding strategy of shard '{escape(self.name)}' was removed: set it again")
        whole = self.whole
        key = strategy, tuple(whole.shape), whole.quantization_encoding
        if self._pieces is None or self._pieces[0] != key:
            self._pieces = key, strategy.pieces(whole, self._index)
        return self._pieces[1]

    @property
    def value(self) -> DLPackArray | None:
        """The part of the whole weight's loaded value, cut at each access; `None` before there is one."""
        return None if self.whole.value is None else self.data_of(self.whole.value)

    def load(self, value: DLPackArray | None, name: str | None = None) -> None:  # noqa: ARG002
        """Raise an error: a shard has its part of the whole weight's value.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"load the whole weight '{escape(self.whole.name)}', of which this is a shard")

    def shard(self, devices: Iterable[DeviceRef | str]) -> NoReturn:  # noqa: ARG002
        """Raise an error, because a part cannot be split again.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            f"weight '{escape(self.name)}' is already a shard and cannot be sharded again; shard "
            f"'{escape(self.whole.name)}' over all the devices instead"
        )

    def data_of(self, value: object) -> Any:
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

    def _keep(self, what: str, expected: object, own: object) -> None:
        if expected != own:
            raise ValueError(self._derived(what))

    def _derived(self, what: str) -> str:
        return (
            f"the {what} of shard '{escape(self.name)}' comes from its part of '{escape(self.whole.name)}'; change the "
            "whole weight"
        )
