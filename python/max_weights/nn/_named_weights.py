"""The weights of a model: their full names, their values, and where they are placed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from max_weights._core import Buffer, escape
from max_weights._devices import DeviceRef
from max_weights._shape import listed
from max_weights._transaction import Transaction
from max_weights.errors import ArgumentError
from max_weights.graph._weight import Weight
from max_weights.nn._walk import ModuleNode, Walk

if TYPE_CHECKING:
    from max_weights._buffer import DLPackArray
    from max_weights.sharding._strategies import ShardingStrategy

# The attribute of a module that records its placement.
_PLACEMENT = "_placement"


class NamedWeights:
    """A snapshot of the weights of a model.

    Raises:
        ArgumentError: two different weights have the same full name (a ValueError).
    """

    weights: dict[str, Weight]
    """Each weight by its full name; the first name, if it is in several modules."""

    def __init__(self, root: ModuleNode) -> None:
        walk = Walk(root)
        self.weights = _by_name(root, walk)
        self._other_names: dict[str, list[str]] = {}
        if len(set(map(id, walk.weights))) < len(walk.weights):
            self._distinguish()

    def _distinguish(self) -> None:
        first_names: dict[int, str] = {}
        for name, weight in list(self.weights.items()):
            first = first_names.setdefault(id(weight), name)
            if first != name:
                del self.weights[name]
                self._other_names.setdefault(first, []).append(name)

    def by_other_name(self, name: str, values: Mapping[str, object], default: object) -> object:
        """Return a state dict's value under another name of the weight of this name, if it is in several modules."""
        return next((values[other] for other in self._other_names.get(name, ()) if other in values), default)

    def known_names(self) -> set[str]:
        """Return every name that stands for a weight."""
        return {*self.weights, *(other for names in self._other_names.values() for other in names)}


def layer_weights(module: ModuleNode) -> dict[str, Weight]:
    """Return the weights of one module alone, by their names within it."""
    return _by_name(module, Walk(module, deep=False))


def _by_name(root: ModuleNode, walk: Walk) -> dict[str, Weight]:
    weights = dict(zip(walk.names, walk.weights, strict=True))
    if len(weights) < len(walk.weights):
        first: dict[str, Weight] = {}
        for name, weight in zip(walk.names, walk.weights, strict=True):
            if first.setdefault(name, weight) is not weight:
                raise _clash(root, name, first[name], weight)
    return weights


def _clash(root: ModuleNode, name: str, first: Weight, second: Weight) -> ArgumentError:
    return ArgumentError(
        f"two weights of {type(root).__name__} have the name '{escape(name)}': {first} and {second}; name one of them "
        "differently, or use the same Weight for both",
        rule="argument.name-twice",
    )


def state_dict(root: ModuleNode, auto_initialize: bool) -> dict[str, DLPackArray]:
    """Return the values by full names; weights without one get zeros with `auto_initialize`.

    Nothing is changed before everything is known.
    """
    weights = NamedWeights(root).weights
    values: dict[str, DLPackArray] = {}
    for name, weight in weights.items():
        value = weight.value
        if value is None:
            if not auto_initialize:
                raise ArgumentError(
                    f"weight '{escape(name)}' has no value: load_state_dict gives it one, auto_initialize=True fills "
                    "it with zeros",
                    rule="weight.no-value",
                )
            value = _zeros(name, weight)
        values[name] = value
    with Transaction() as transaction:
        keep_weights(transaction, weights.values())
        for name, weight in weights.items():
            weight.load(values[name], name)
    return values


def keep_weights(transaction: Transaction, loaded: Iterable[Weight] = (), changed: Iterable[Weight] = ()) -> None:
    """Note the values and names of weights that are loaded, and all of those of which more changes."""
    for weight in changed:
        transaction.on_undo(partial(weight._restore, weight._snapshot()))
    for weight in loaded:
        transaction.on_undo(partial(weight.load, weight.value, weight.name))


def _zeros(name: str, weight: Weight) -> Buffer:
    if not weight.shape.is_static:
        raise ArgumentError(
            f"weight '{escape(name)}' has the symbolic shape {listed(weight.shape)}, so it cannot be filled with "
            "zeros: load a value for it",
            rule="weight.no-value",
        )
    return Buffer.zeros(weight.shape.static_dims, weight.dtype)


@dataclass(frozen=True)
class Placement:
    """The arguments of `Module.to`."""

    devices: tuple[DeviceRef, ...]
    strategy: ShardingStrategy | None


def placement(module: ModuleNode) -> Placement | None:
    """Return the placement that a module was given; `None` if it was given none."""
    return vars(module).get(_PLACEMENT)


def place(root: ModuleNode, devices: Iterable[DeviceRef | str], strategy: ShardingStrategy | None) -> None:
    """Set device and strategy of every weight, and record them in every module; see `Module.to`."""
    target = Placement(tuple(DeviceRef.from_device(device) for device in devices), strategy)
    number = len(target.devices)
    if not number:
        raise ArgumentError(
            f"{type(root).__name__}.to() needs a device, such as DeviceRef.CPU()", rule="argument.devices"
        )
    if number > 1 and strategy is None:
        raise ArgumentError(
            f"weights are on one device, or split over several by a sharding_strategy; {number} devices were given, "
            "but no strategy",
            rule="argument.devices",
        )
    if strategy is not None and strategy.num_devices != number:
        raise ArgumentError(
            f"the sharding_strategy is for {strategy.num_devices} devices, but {number} were given",
            rule="argument.devices",
        )
    weights = list(NamedWeights(root).weights.values())
    with Transaction() as transaction:
        keep_weights(transaction, changed=weights)
        for weight in weights:
            if weight.device != target.devices[0]:
                weight.device = target.devices[0]
            if strategy is not None:
                weight.sharding_strategy = strategy
        for module in Walk(root).modules:
            vars(module)[_PLACEMENT] = target
