"""`Module`: a component of a model that owns weights and other modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, cast, overload, runtime_checkable

from max_weights.nn._layer_v2 import LayerV2
from max_weights.nn._load_state import load
from max_weights.nn._walk import Walk

if TYPE_CHECKING:
    from typing import Self

    from max_weights._devices import DeviceRef
    from max_weights._load_report import LoadReport
    from max_weights._weights import Weights
    from max_weights.sharding._strategies import ShardingStrategy

__all__ = ["Module", "Shardable", "recursive_named_layers"]


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
    """A component of a model, with weights and other modules as attributes, and a `__call__` of its own.

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

        The values are kept as they are and never copied (except with `copy_if_misaligned`); for a `WeightData`, its
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
