"""`Module`: a component of a model that owns weights and other modules; lists of them, and how they are split."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, SupportsIndex, cast, overload, runtime_checkable

from max_weights._devices import DeviceRef
from max_weights.errors import ArgumentError
from max_weights.graph._weight import Weight
from max_weights.nn._base_layer import Layer
from max_weights.nn._layer_v2 import LayerV2
from max_weights.nn._load_state import load
from max_weights.nn._walk import Walk
from max_weights.sharding._strategies import ShardingStrategy

if TYPE_CHECKING:
    from typing import Self

    from max_weights._devices import DeviceRef
    from max_weights._load_report import LoadReport
    from max_weights._weights_protocol import Weights
    from max_weights.sharding._strategies import ShardingStrategy

__all__ = ["LayerList", "MissingLayer", "Module", "Sequential", "Shardable", "ShardableLayer", "recursive_named_layers"]


@runtime_checkable
class Shardable(Protocol):
    """An object that can be split over devices: a `Weight`, or a layer with these two members."""

    @property
    def sharding_strategy(self) -> ShardingStrategy | None:
        """How it is split; `None` if it is not."""

    @sharding_strategy.setter
    def sharding_strategy(self, strategy: ShardingStrategy | None) -> None: ...

    def shard(self, devices: Iterable[DeviceRef]) -> Sequence[Self]:
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
        ...


class Module(LayerV2):
    """A component of a model, with weights and other modules as attributes, and its `__call__`.

    A `Weight` in an attribute belongs to the module. So does another module in an attribute, or in a list, tuple or
    dict in an attribute (including `LayerList`), where the index or key is part of its path. Whatever you assign,
    delete or mutate takes effect at once; you need not call `super().__init__()`.

    The full name of a weight is the path of its module, a dot, and the weight's own name. The names of attributes that
    hold weights do not matter. A shard (`Weight.shard`) is not listed; the weight that it is part of is.
    """

    if TYPE_CHECKING:

        @property
        def sublayers(self) -> dict[str, Module]:  # type: ignore[override] # a model is of modules, or of LayerV2
            """The modules directly below, by their part of the path (`up`, `blocks.0`)."""

        def named_modules(self) -> Iterator[tuple[str, Module]]:
            """Iterate over this module and all modules below it, as (prefix of names, module)."""

    @overload  # type: ignore[override] # what it returns follows from `strict`
    def load_state_dict(
        self,
        state_dict: Mapping[str, object] | Weights,
        *,
        override_quantization_encoding: bool = False,
        weight_alignment: int | None = None,
        strict: Literal[True] = True,
        copy_if_misaligned: bool = False,
    ) -> None: ...
    @overload
    def load_state_dict(
        self,
        state_dict: Mapping[str, object] | Weights,
        *,
        override_quantization_encoding: bool = False,
        weight_alignment: int | None = None,
        strict: bool,
        copy_if_misaligned: bool = False,
    ) -> LoadReport | None: ...
    def load_state_dict(
        self,
        state_dict: Mapping[str, object] | Weights,
        *,
        override_quantization_encoding: bool = False,
        weight_alignment: int | None = None,
        strict: bool = True,
        copy_if_misaligned: bool = False,
    ) -> LoadReport | None:
        """Give every weight its value: all of them, or, on any error or interrupt, none.

        The values are kept and never copied (except with `copy_if_misaligned`); for a `WeightData`, its
        data is kept. From then on, the weights are named by their full names. A packed weight takes the shape of the
        value in bytes; `original_dtype_and_shape` keeps what was declared, or the dtype and shape of a GPTQ value
        before it was taken as bytes.

        Args:
            state_dict: Values by full names: NumPy arrays, `Buffer`, tensors that support DLPack, `WeightData`. Or the
                weights of a checkpoint, or of a node in it, with names from there on; only those that the model has are
                examined.
            override_quantization_encoding: Use the encodings of the values if they differ from those declared. Bytes
                without an encoding are taken as the weight declares them.
            weight_alignment: The alignment in bytes that every value must have; it becomes the weights' `align`.
                Default: the `align` of the weight, or else what its dtype requires.
            strict: Refuse missing and unexpected names; otherwise they are logged and returned as a `LoadReport`.
            copy_if_misaligned: Copy values that are not aligned, instead of refusing them.

        Returns:
            A report, unless `strict`.

        Raises:
            ValueError: names are missing or unexpected; a value has another shape (symbolic dimensions match anything),
                dtype or encoding, or is not contiguous or aligned. One error lists it all.

        Example:
            >>> layer = nn.Linear(3, 4, DType.float32, CPU)
            >>> layer.load_state_dict({"weight": np.ones((4, 3), "f4")})
        """
        report = load(
            self,
            state_dict,
            override_quantization_encoding=override_quantization_encoding,
            weight_alignment=weight_alignment,
            strict=strict,
            copy_if_misaligned=copy_if_misaligned,
        )
        return None if strict else report


def recursive_named_layers(parent: LayerV2, prefix: str = "") -> Iterator[tuple[str, LayerV2]]:
    """Iterate over `parent` and the modules below it with their paths, breadth first; each once, by its first path.

    The paths do not end with a dot, unlike the prefixes of `Module.named_modules`.

    Args:
        parent: The module to start at.
        prefix: Its own path, with which the others begin.

    Raises:
        TypeError: `prefix` is not a string.

    Example:
        >>> [path for path, _ in nn.recursive_named_layers(nn.Sequential(nn.Identity()), "model")]
        ['model', 'model.0']
    """
    tree = Walk(parent)
    paths = [".".join(filter(None, [prefix, path])) for path in tree.paths]
    return zip(paths, cast("list[LayerV2]", tree.modules), strict=True)


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
                "ShardingStrategy.replicate(2), then shard it",
                rule="argument.strategy",
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
        return ArgumentError(
            f"this {type(self).__name__} cannot be split by {strategy!r}; it takes {takes}", rule="argument.strategy"
        )


class LayerList(Module, list[Layer]):
    """A list of layers that is also a module; the index of a layer is its part of the path.

    It behaves like a Python list in every way. It compares as a list does, by its layers, and slices and sums are
    `LayerList`s too. A call of it calls the layers in order, each with what the one before returned.

    Args:
        layers: The layers. TypeError for anything else, here and wherever something is added to the list.
    """

    __hash__ = Layer.__hash__  # type: ignore[assignment] # a module can be a key; lists of the same layers are equal, not the same

    def __init__(self, layers: Iterable[Layer] = ()) -> None:
        list.__init__(self, self._checked(layers))

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Call the first layer with the arguments, and each further layer with the outputs of the one before.

        Raises:
            ValueError: the list is empty.
        """
        if not self:
            raise ArgumentError(f"a {type(self).__name__} without layers has nothing to call", rule="argument.layer")
        first, *rest = self
        outputs = first(*args, **kwargs)
        for layer in rest:
            outputs = layer(outputs)
        return outputs

    def append(self, layer: Layer) -> None:
        list.append(self, self._checked_one(layer))

    def insert(self, i: SupportsIndex, layer: Layer) -> None:
        list.insert(self, i, self._checked_one(layer))

    def extend(self, layers: Iterable[Layer]) -> None:
        list.extend(self, self._checked(layers))

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> Any: ...
    @overload
    def __getitem__(self, index: slice, /) -> LayerList: ...
    def __getitem__(self, index: SupportsIndex | slice, /) -> Any:
        item: Any = list.__getitem__(self, index)
        return LayerList(item) if isinstance(index, slice) else item

    def __setitem__(self, index: SupportsIndex | slice, value: Any, /) -> None:
        if isinstance(index, slice):
            list.__setitem__(self, index, self._checked(value))
        else:
            list.__setitem__(self, index, self._checked_one(value))

    def copy(self) -> LayerList:
        return LayerList(self)

    def __add__(self, other: Iterable[Layer], /) -> LayerList:  # type: ignore[override]
        return LayerList([*self, *other]) if isinstance(other, (list, tuple)) else NotImplemented

    def __radd__(self, other: Iterable[Layer], /) -> LayerList:
        return LayerList([*other, *self]) if isinstance(other, (list, tuple)) else NotImplemented

    def __iadd__(self, other: Iterable[Layer], /) -> Self:  # type: ignore[override]
        self.extend(other)
        return self

    def __mul__(self, times: SupportsIndex, /) -> LayerList:
        return LayerList(list.__mul__(self, times))

    __rmul__ = __mul__

    def __imul__(self, times: SupportsIndex, /) -> Self:
        # With a `__mul__` here, Python would no longer reach that of the list.
        list.__imul__(self, times)
        return self

    def _checked_one(self, value: object) -> Layer:
        if not isinstance(value, Layer):
            raise TypeError(f"a LayerList holds layers, not {value!r}")
        self._pass_placement_on([value])
        return value

    def _checked(self, values: Iterable[object]) -> list[Layer]:
        if isinstance(values, Layer) and not isinstance(values, list):
            raise TypeError(f"several layers must be a list of them, not one {type(values).__name__}; append takes one")
        return [self._checked_one(value) for value in values]


class Sequential(LayerList):
    """A `LayerList` that also accepts its layers as separate arguments. The names below are `0.weight`, as in torch.

    Args:
        layers: The layers, as a list (by position or by name) or as separate arguments.
    """

    def __init__(self, *one_by_one: Layer | Iterable[Layer], layers: Iterable[Layer] = ()) -> None:
        sequence: Any = one_by_one
        if len(one_by_one) == 1 and isinstance(one_by_one[0], Iterable) and not isinstance(one_by_one[0], Sequential):
            sequence = one_by_one[0]
        super().__init__([*sequence, *layers])


class MissingLayer(Module):
    """Holds the place of a layer that another stage of a pipeline builds. It has no weights, and cannot be called.

    The layers around it thus keep their index, which is part of the names of their weights.

    Args:
        layer_id: The number of the layer in the model.
    """

    def __init__(self, layer_id: int) -> None:
        self.layer_id = layer_id

    def __call__(self, *_args: object, **_kwargs: object) -> NoReturn:
        """Raise an error, because there is nothing to call.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(
            f"layer {self.layer_id} is not here: another stage of the pipeline has it; call only the layers of this "
            "stage"
        )
